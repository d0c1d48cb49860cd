#include "kv_store/store_index.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace trimtab::kv_store {

namespace {
constexpr std::size_t kFirstSlots = 1'024;
}

StoreIndex::StoreIndex(std::uint32_t targets) : entries_(kFirstSlots), alive_(targets, 1) {}

std::size_t StoreIndex::slot_of(BlockKey key) const {
  const std::size_t mask = entries_.size() - 1;
  std::size_t slot = home_slot(key);
  while (entries_[slot].used && entries_[slot].key != key) slot = (slot + 1) & mask;
  return slot;
}

void StoreIndex::grow() {
  std::vector<Entry> old(entries_.size() * 2);
  old.swap(entries_);
  for (const Entry& entry : old)
    if (entry.used) entries_[slot_of(entry.key)] = entry;
}

void StoreIndex::remove(std::size_t slot) {
  strangers_ -= entries_[slot].stranger ? 1 : 0;
  // Entries behind the gap move up while that brings them nearer to where they belong.
  const std::size_t mask = entries_.size() - 1;
  for (std::size_t next = (slot + 1) & mask; entries_[next].used; next = (next + 1) & mask) {
    const std::size_t from_home = (next - home_slot(entries_[next].key)) & mask;
    if (from_home < ((next - slot) & mask)) continue;
    entries_[slot] = entries_[next];
    slot = next;
  }
  entries_[slot] = {};
  --used_;
}

StoreIndex::Entry& StoreIndex::entry_for(BlockKey key) {
  if ((used_ + 1) * 2 > entries_.size()) grow();
  Entry& entry = entries_[slot_of(key)];
  if (!entry.used) {
    entry.key = key;
    entry.at.fill(kNowhere);
    entry.used = true;
    ++used_;
  }
  return entry;
}

void StoreIndex::put_stranger(BlockKey key, std::uint32_t shard, TargetId target) {
  const std::size_t known = used_;
  Entry& entry = entry_for(key);
  if (used_ > known) {
    entry.stranger = true;
    ++strangers_;
  }
  if (entry.stranger)
    entry.at[shard] = target;
  else
    erased(key, shard, target);  // what was a shard of this block is none any more
}

TargetId StoreIndex::put(BlockKey key, std::uint32_t shard, TargetId target, TargetId home) {
  Entry& entry = entry_for(key);
  if (entry.stranger) {
    entry.stranger = false;
    entry.at.fill(kNowhere);
    --strangers_;
  }
  TargetId& at = entry.at[shard];
  TargetId other = at == target ? kNowhere : at;
  if (at == kNowhere || at == target || target == home || !alive(at))
    at = target;
  else
    other = target;
  entry.withdrawn = false;
  entry.known &= static_cast<ShardSet>(~(1U << shard));
  return other;
}

bool StoreIndex::surprising(BlockKey key, std::uint32_t shard) const {
  const Entry& entry = entries_[slot_of(key)];
  return entry.used && entry.at[shard] == kNowhere && !kv_code::has(entry.known, shard) && counts(entry);
}

void StoreIndex::erased(BlockKey key, std::uint32_t shard, TargetId target) {
  const std::size_t slot = slot_of(key);
  Entry& entry = entries_[slot];
  if (!entry.used || entry.at[shard] != target) return;
  entry.at[shard] = kNowhere;
  ++epoch_;
  if (std::ranges::all_of(entry.at, [](TargetId at) { return at == kNowhere; })) remove(slot);
}

void StoreIndex::erase(BlockKey key) {
  const std::size_t slot = slot_of(key);
  if (!entries_[slot].used) return;
  ++epoch_;
  remove(slot);
}

void StoreIndex::forget(TargetId target) {
  std::vector<BlockKey> empty;
  for (Entry& entry : entries_) {
    if (!entry.used) continue;
    bool any = false;
    for (std::uint32_t s = 0; s < kShards; ++s) {
      TargetId& at = entry.at[s];
      if (at == target) {
        at = kNowhere;
        entry.known |= static_cast<ShardSet>(1U << s);
      }
      any |= at != kNowhere;
    }
    if (!any) empty.push_back(entry.key);
  }
  for (const BlockKey key : empty) remove(slot_of(key));
  ++epoch_;
}

void StoreIndex::set_alive(TargetId target, bool alive) {
  if (alive_[target] != 0 && !alive) ++epoch_;
  alive_[target] = alive ? 1 : 0;
}

bool StoreIndex::withdraw(BlockKey key) {
  Entry& entry = entries_[slot_of(key)];
  if (!entry.used || !counts(entry)) return false;
  entry.withdrawn = true;
  ++epoch_;
  return true;
}

ShardSet StoreIndex::usable(const Places& places) const {
  ShardSet set = 0;
  for (std::uint32_t s = 0; s < kShards; ++s)
    if (places[s] != kNowhere && alive(places[s])) set |= static_cast<ShardSet>(1U << s);
  return set;
}

StoreIndex::Tally StoreIndex::tally(const PlaceMap& map) const {
  Tally tally;
  tally.shards.resize(alive_.size());
  for (const Entry& entry : entries_) {
    if (!entry.used) continue;
    for (const TargetId at : entry.at)
      if (at != kNowhere && alive(at)) ++tally.shards[at];
    if (entry.stranger) continue;
    ++tally.blocks;
    const bool all = std::popcount(usable(entry.at)) == static_cast<int>(kShards);
    if (!counts(entry))
      ++tally.unreadable;
    else
      ++(all && entry.at == map.of(entry.key) ? tally.whole : tally.degraded);
  }
  return tally;
}

void StoreIndex::count_shards(std::span<std::uint64_t> counts) const {
  for (const Entry& entry : entries_) {
    if (!entry.used) continue;
    for (const TargetId at : entry.at)
      if (at != kNowhere) ++counts[at];
  }
}

bool StoreIndex::counts(const Entry& entry) const {
  return !entry.withdrawn && !entry.stranger &&
         std::popcount(usable(entry.at)) >= static_cast<int>(kv_code::kData);
}

std::optional<Places> StoreIndex::find(BlockKey key) const {
  const Entry& entry = entries_[slot_of(key)];
  if (!entry.used) return std::nullopt;
  return entry.at;
}

bool StoreIndex::present(BlockKey key) const {
  const Entry& entry = entries_[slot_of(key)];
  return entry.used && counts(entry);
}

StoreIndex::Answer StoreIndex::exists(std::span<const BlockKey> keys) const {
  constexpr std::size_t kAhead = 12;
  Answer answer;
  answer.bits.resize((keys.size() + 63) / 64);
  answer.epoch = epoch_;
  const auto fetch = [&](std::size_t i) {
    const Entry* entry = &entries_[home_slot(keys[i])];
    __builtin_prefetch(entry);
    __builtin_prefetch(reinterpret_cast<const char*>(entry + 1) - 1);
  };
  for (std::size_t i = 0; i < std::min(kAhead, keys.size()); ++i) fetch(i);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (i + kAhead < keys.size()) fetch(i + kAhead);
    if (!present(keys[i])) continue;
    answer.bits[i / 64] |= std::uint64_t{1} << (i % 64);
    ++answer.count;
  }
  return answer;
}

std::uint32_t StoreIndex::leading(std::span<const BlockKey> keys) const {
  std::uint32_t count = 0;
  while (count < keys.size() && present(keys[count])) ++count;
  return count;
}

std::vector<BlockKey> StoreIndex::keys(bool strangers) const {
  std::vector<BlockKey> keys;
  keys.reserve(strangers ? strangers_ : used_ - strangers_);
  for (const Entry& entry : entries_)
    if (entry.used && entry.stranger == strangers) keys.push_back(entry.key);
  std::ranges::sort(keys);
  return keys;
}

}  // namespace trimtab::kv_store
