#include "sim/prefix_cache.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <utility>

namespace trimtab::sim {

PrefixCache::PrefixCache(std::int64_t capacity_blocks, std::unique_ptr<eviction::Policy> policy)
    : capacity_(capacity_blocks), policy_(std::move(policy)) {
  if (capacity_ > 0) {
    table_.resize(1024);
  } else {
    groups_.resize(1024);
  }
  if (capacity_ > 0 && !policy_) policy_ = std::move(*make_eviction("lru", capacity_));
}

/// Runs are of consecutive ids: four of them share a cache line.
std::size_t PrefixCache::home(std::uint64_t id) const {
  std::uint64_t mixed = (id >> 2U) * 0x9e3779b97f4a7c15ULL;
  mixed ^= mixed >> 29U;
  return static_cast<std::size_t>(mixed << 2U | (id & 3U)) & (table_.size() - 1);
}

std::uint32_t PrefixCache::find(std::uint64_t id) const {
  for (std::size_t at = home(id); table_[at].slot != kNone; at = (at + 1) & (table_.size() - 1)) {
    if (table_[at].id == id) return static_cast<std::uint32_t>(at);
  }
  return kNone;
}

bool PrefixCache::use(std::uint64_t id, Nanos now) {
  if (capacity_ <= 0) return contains(id);
  const std::uint32_t at = find(id);
  if (at == kNone) return false;
  policy_->used(table_[at].slot, {now, 0, 0});
  return true;
}

void PrefixCache::put(std::uint64_t id, Nanos now) {
  if (capacity_ <= 0) return store_in_group(id / kGroup, std::uint64_t{1} << (id % kGroup));
  if (contains(id)) return;
  eviction::Block block;
  block.key = id;
  insert(id, block, {now, 0, 0});
  fit(now);
}

/// Blocks that are here or were, from the prompt's begin.
std::int64_t PrefixCache::leading(std::span<const model::BlockRun> runs) const {
  std::int64_t blocks = 0;
  for (const model::BlockRun& run : runs) {
    for (std::uint32_t i = 0; i < run.count; ++i, ++blocks) {
      if (!contains(run.first + i) && !policy_->remembers(run.first + i)) return blocks;
    }
  }
  return blocks;
}

std::int64_t PrefixCache::match(std::span<const model::BlockRun> runs, Nanos now) {
  eviction::Access access{now, 0, 0};
  if (capacity_ > 0) {
    for (const model::BlockRun& run : runs) access.prompt_blocks += run.count;
    access.known_blocks = static_cast<std::uint32_t>(leading(runs));
  }
  std::int64_t blocks = 0;
  for (const model::BlockRun& run : runs) {
    if (capacity_ <= 0) {
      const std::uint64_t there = match_run(run.first, run.count);
      blocks += static_cast<std::int64_t>(there);
      if (there < run.count) return blocks;
      continue;
    }
    for (std::uint32_t i = 0; i < run.count; ++i) {
      const std::uint32_t at = find(run.first + i);
      if (at == kNone) return blocks;
      policy_->used(table_[at].slot, access);
      ++blocks;
    }
  }
  return blocks;
}

void PrefixCache::store(std::span<const model::BlockRun> runs, std::int64_t blocks, Nanos now) {
  eviction::Access access{now, static_cast<std::uint32_t>(std::max<std::int64_t>(blocks, 0)), 0};
  if (capacity_ > 0) access.known_blocks = static_cast<std::uint32_t>(leading(runs));
  eviction::Block block;
  for (const model::BlockRun& run : runs) {
    if (capacity_ <= 0) {
      const std::int64_t count = std::min<std::int64_t>(run.count, blocks);
      if (count <= 0) return;
      store_run(run.first, static_cast<std::uint64_t>(count));
      blocks -= count;
      continue;
    }
    for (std::uint32_t i = 0; i < run.count; ++i, ++block.position) {
      if (blocks-- <= 0) return fit(now);
      block.key = run.first + i;
      const std::uint32_t at = find(block.key);
      block.parent = at == kNone ? insert(block.key, block, access) : table_[at].slot;
    }
  }
  fit(now);
}

void PrefixCache::answered(std::uint64_t id, Nanos told, std::int64_t tokens, Nanos now) {
  if (capacity_ <= 0) return;
  const std::uint32_t at = find(id);
  if (at == kNone) return;
  const auto length = static_cast<std::uint32_t>(std::clamp<std::int64_t>(tokens, 0, UINT32_MAX));
  policy_->answered(table_[at].slot, told, length, now);
}

void PrefixCache::answered(std::span<const model::BlockRun> runs, std::int64_t blocks, Nanos told,
                           std::int64_t tokens, Nanos now) {
  if (capacity_ <= 0) return;
  std::optional<std::uint64_t> last;
  for (const model::BlockRun& run : runs) {
    // A chain loses its end first, so the first that is missing ends the search.
    for (std::uint32_t i = 0; i < run.count; ++i) {
      if (blocks-- <= 0 || !contains(run.first + i)) {
        if (last) answered(*last, told, tokens, now);
        return;
      }
      last = run.first + i;
    }
  }
  if (last) answered(*last, told, tokens, now);
}

std::uint32_t PrefixCache::insert(std::uint64_t id, const eviction::Block& block,
                                  const eviction::Access& access) {
  const eviction::Slot slot = slots_.take(id);
  policy_->stored(slot, block, access);
  if (static_cast<std::size_t>(count_ + 1) * 2 > table_.size()) grow();
  std::size_t at = home(id);
  while (table_[at].slot != kNone) at = (at + 1) & (table_.size() - 1);
  table_[at] = {id, slot};
  ++count_;
  return slot;
}

void PrefixCache::fit(Nanos now) {
  if (capacity_ <= 0 || count_ <= capacity_) return;
  for (const std::uint32_t slot : policy_->victims(base::Bytes{count_ - capacity_}, now)) {
    erase(find(slots_.key_of(slot)));
    slots_.give_back(slot);
    ++evicted_;
  }
}

void PrefixCache::clear() {
  if (capacity_ > 0) {
    for (const Entry& entry : table_) {
      if (entry.slot != kNone) policy_->erased(entry.slot);
    }
  }
  table_.assign(capacity_ > 0 ? 1024 : 0, {});
  groups_.assign(capacity_ > 0 ? 0 : 1024, {});
  groups_used_ = 0;
  slots_.clear();
  count_ = 0;
}

std::uint64_t PrefixCache::bits_from(std::uint64_t id, std::uint64_t count) {
  const std::uint64_t bits = count >= kGroup ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1;
  return bits << (id % kGroup);
}

std::size_t PrefixCache::home_of_group(std::uint64_t number) const {
  std::uint64_t mixed = number * 0x9e3779b97f4a7c15ULL;
  mixed ^= mixed >> 29U;
  return static_cast<std::size_t>(mixed) & (groups_.size() - 1);
}

std::uint64_t PrefixCache::stored_of(std::uint64_t number) const {
  std::size_t at = home_of_group(number);
  while (groups_[at].stored != 0 && groups_[at].number != number) at = (at + 1) & (groups_.size() - 1);
  return groups_[at].stored;
}

void PrefixCache::store_in_group(std::uint64_t number, std::uint64_t bits) {
  std::size_t at = home_of_group(number);
  while (groups_[at].stored != 0 && groups_[at].number != number) at = (at + 1) & (groups_.size() - 1);
  Group& group = groups_[at];
  count_ += std::popcount(bits & ~group.stored);
  if (group.stored == 0) ++groups_used_;
  group = {number, group.stored | bits};
  if (groups_used_ * 2 <= groups_.size()) return;
  std::vector<Group> old(groups_.size() * 2);
  std::swap(old, groups_);
  for (const Group& one : old) {
    if (one.stored == 0) continue;
    std::size_t to = home_of_group(one.number);
    while (groups_[to].stored != 0) to = (to + 1) & (groups_.size() - 1);
    groups_[to] = one;
  }
}

/// How many of the run's blocks are there before the first that is not.
std::uint64_t PrefixCache::match_run(std::uint64_t id, std::uint64_t count) const {
  std::uint64_t found = 0;
  while (found < count) {
    const std::uint64_t at = id + found, wanted = std::min(count - found, kGroup - at % kGroup);
    const auto there = static_cast<std::uint64_t>(std::countr_one(stored_of(at / kGroup) >> (at % kGroup)));
    found += std::min(there, wanted);
    if (there < wanted) break;
  }
  return found;
}

void PrefixCache::store_run(std::uint64_t id, std::uint64_t count) {
  for (std::uint64_t stored = 0; stored < count;) {
    const std::uint64_t at = id + stored, part = std::min(count - stored, kGroup - at % kGroup);
    store_in_group(at / kGroup, bits_from(at, part));
    stored += part;
  }
}

/// Open addressing without tombstones: entries behind the gap move back where their search would break.
void PrefixCache::erase(std::uint32_t gone) {
  --count_;
  const std::size_t mask = table_.size() - 1;
  std::size_t gap = gone;
  for (std::size_t at = (gap + 1) & mask; table_[at].slot != kNone; at = (at + 1) & mask) {
    if (((at - home(table_[at].id)) & mask) < ((at - gap) & mask)) continue;
    table_[gap] = table_[at];
    gap = at;
  }
  table_[gap] = {};
}

void PrefixCache::grow() {
  std::vector<Entry> old(table_.size() * 2);
  std::swap(old, table_);
  for (const Entry& entry : old) {
    if (entry.slot == kNone) continue;
    std::size_t at = home(entry.id);
    while (table_[at].slot != kNone) at = (at + 1) & (table_.size() - 1);
    table_[at] = entry;
  }
}

}  // namespace trimtab::sim
