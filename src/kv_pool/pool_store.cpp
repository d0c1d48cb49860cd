#include "kv_pool/pool_store.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace trimtab::kv_pool {

namespace {

// A user asks for one block at a time; one that piles up pins forgets to give them back.
constexpr std::size_t kPinsPerClientMax = 64;
// Keys of prompts that are remembered while they are computed and answered: as many as four arenas have, but
// at most 60 MB of them.
constexpr std::size_t kAskedKeysLeast = 1U << 16U, kAskedKeysMost = 1U << 20U;

}  // namespace

PoolStore::PoolStore(std::span<std::byte> memory, std::uint64_t slot_stride, std::uint64_t block_bytes,
                     std::uint64_t first_epoch, StoreTier* tier, std::uint64_t tier_blocks,
                     std::unique_ptr<eviction::Policy> order)
    : memory_(memory),
      slot_stride_(slot_stride),
      block_bytes_(block_bytes),
      tier_(tier),
      slots_(memory.size() / slot_stride),
      index_(static_cast<std::uint32_t>(slots_.size()), first_epoch),
      asked_(first_epoch, std::clamp(4 * slots_.size(), kAskedKeysLeast, kAskedKeysMost)),
      order_(std::move(order)),
      file_slots_(tier_blocks) {
  if (tier == nullptr && !order_) order_ = eviction::make_lru({});
  for (std::size_t i = slots_.size(); i > 0; --i) free_.push_back(static_cast<std::uint32_t>(i - 1));
  if (tier != nullptr) counters_.recovered_entries = tier->blocks();
}

std::span<std::byte> PoolStore::bytes(std::uint32_t slot) const {
  return memory_.subspan(slot * slot_stride_, block_bytes_);
}

protocol::Matched PoolStore::match(std::span<const BlockKey> keys, bool counted,
                                   std::uint32_t prompt_blocks) {
  std::uint32_t present = 0;
  const auto has = [this](BlockKey key) {
    return index_.find(key) || (tier_ != nullptr && tier_->present(key));
  };
  while (present < keys.size() && has(keys[present])) ++present;
  index_.touch(keys.first(present));
  std::uint64_t request = 0;
  // Once a request, or a policy that counts uses would count its questions.
  if (counted) {
    AskedPrompts::Prompt prompt;
    prompt.at = asked_.time(now_);
    prompt.blocks = std::max(prompt_blocks, static_cast<std::uint32_t>(keys.size()));
    prompt.keys.assign(keys.begin(), keys.end());
    prompt.known = present + known(keys.subspan(present));
    tell_used(keys.first(present), {prompt.at, prompt.blocks, prompt.known});
    if (!keys.empty()) request = asked_.open(std::move(prompt), present);
    ++counters_.match_requests;
    counters_.blocks_queried += keys.size();
    counters_.blocks_hit += present;
    counters_.blocks_missed += keys.size() - present;
  }
  return {present, index_.epoch() + (tier_ == nullptr ? 0 : tier_->epoch()), request};
}

std::optional<std::uint32_t> PoolStore::take_memory_slot() {
  if (free_.empty() && !evict_one()) return {};
  const std::uint32_t slot = free_.back();
  free_.pop_back();
  return slot;
}

void PoolStore::free_slot(std::uint32_t slot) {
  slots_[slot] = Slot{};
  free_.push_back(slot);
}

void PoolStore::pin(ClientId client, std::uint32_t slot) {
  ++slots_[slot].pins;
  tell_pins(slot);
  pins_[client].insert(slot);
}

void PoolStore::drop_pin(std::uint32_t slot) {
  TRIMTAB_CHECK(slots_[slot].pins > 0);
  --slots_[slot].pins;
  tell_pins(slot);
  if (slots_[slot].state == State::kWithdrawn && slots_[slot].pins == 0 && !slots_[slot].storing)
    free_slot(slot);
}

std::optional<protocol::Got> PoolStore::get(ClientId client, BlockKey key) {
  using protocol::GetOutcome;
  if (const auto held = pins_.find(client); held != pins_.end() && held->second.size() >= kPinsPerClientMax) {
    ++counters_.gets_refused;
    return protocol::Got{GetOutcome::kRefused, 0, 0};
  }
  if (const auto found = index_.find(key)) {
    pin(client, found->value);
    ++counters_.gets_memory;
    return protocol::Got{GetOutcome::kPinned, found->value, slots_[found->value].checksum};
  }
  const auto started = in_progress_.find(key);
  // Being written anew (after a withdrawal) while an older copy reached the store: not there until committed.
  const bool being_written =
      started != in_progress_.end() && slots_[started->second].state == State::kWriting;
  if (tier_ == nullptr || being_written || (started == in_progress_.end() && !tier_->present(key))) {
    ++counters_.gets_stale;
    return protocol::Got{GetOutcome::kMissing, 0, 0};
  }
  if (started != in_progress_.end()) {
    loads_[started->second].gets.push_back(client);
    return {};
  }
  const auto slot = take_memory_slot();
  if (!slot) {
    ++counters_.gets_refused;
    return protocol::Got{GetOutcome::kRefused, 0, 0};
  }
  start_load(*slot, key, 0);
  loads_[*slot].gets.push_back(client);
  return {};
}

bool PoolStore::unpin(ClientId client, std::uint32_t slot, bool corrupt) {
  const auto held = pins_.find(client);
  if (held == pins_.end()) return false;
  const auto one = held->second.find(slot);
  if (one == held->second.end()) return false;
  held->second.erase(one);
  if (held->second.empty()) pins_.erase(held);
  if (corrupt) withdraw_corrupt(slot);
  drop_pin(slot);
  return true;
}

void PoolStore::withdraw_corrupt(std::uint32_t slot) {
  if (slots_[slot].state != State::kReady) return;
  ++counters_.corrupt;
  withdraw_memory(slot);
}

void PoolStore::withdraw_memory(std::uint32_t slot) {
  Slot& entry = slots_[slot];
  index_.erase(entry.key);
  tell_gone(slot);
  settle(entry);
  entry.state = State::kWithdrawn;
  if (entry.pins == 0 && !entry.storing) free_slot(slot);
}

void PoolStore::settle(Slot& slot) {
  if (slot.commit == 0) return;
  undurable_.erase(slot.commit);
  slot.commit = 0;
}

protocol::PutSlot PoolStore::put(ClientId client, BlockKey key, std::optional<BlockKey> parent) {
  using protocol::PutOutcome;
  if (index_.find(key) || in_progress_.contains(key) || (tier_ != nullptr && tier_->present(key))) {
    ++counters_.puts_present;
    return {PutOutcome::kPresent, 0};
  }
  const auto slot = grants_.contains(client) ? std::nullopt : take_memory_slot();
  if (!slot) {
    ++counters_.puts_refused;
    return {PutOutcome::kRefused, 0};
  }
  losses_told_.try_emplace(client, losses_);
  slots_[*slot].state = State::kWriting;
  slots_[*slot].key = key;
  slots_[*slot].parent = parent;
  slots_[*slot].owner = client;
  in_progress_[key] = *slot;
  grants_[client] = *slot;
  return {PutOutcome::kGranted, *slot};
}

bool PoolStore::commit(ClientId client, std::uint32_t slot, std::uint64_t checksum) {
  const auto grant = grants_.find(client);
  if (grant == grants_.end() || grant->second != slot) return false;
  grants_.erase(grant);
  Slot& entry = slots_[slot];
  in_progress_.erase(entry.key);
  entry.state = State::kReady;
  entry.checksum = checksum;
  TRIMTAB_CHECK(index_.insert(entry.key, slot, entry.parent));
  tell_stored(slot);
  ++counters_.puts_stored;
  if (saving()) {
    entry.commit = ++last_commit_;
    undurable_.insert(entry.commit);
    dirty_.push_back(slot);
    start_saves();
  } else if (tier_ != nullptr) {
    ++losses_;
    leave_unsaved(entry);
  }
  return true;
}

void PoolStore::leave(ClientId client) {
  if (const auto held = pins_.find(client); held != pins_.end()) {
    for (const std::uint32_t slot : held->second) drop_pin(slot);
    pins_.erase(held);
  }
  if (const auto grant = grants_.find(client); grant != grants_.end()) {
    in_progress_.erase(slots_[grant->second].key);
    free_slot(grant->second);
    grants_.erase(grant);
    ++counters_.puts_abandoned;
  }
  for (auto& [slot, load] : loads_) std::erase(load.gets, client);
  losses_told_.erase(client);
  std::erase_if(flushes_, [client](const auto& flush) { return flush.first == client; });
}

PoolStore::Answers PoolStore::take_answers() { return std::exchange(answers_, {}); }

PoolStats PoolStore::stats() const {
  PoolStats stats = counters_;
  stats.memory_entries = index_.size();
  stats.memory_slots = slots_.size();
  if (tier_ != nullptr) {
    stats.file_entries = tier_->blocks();
    stats.file_slots = file_slots_;
    stats.file_evictions = tier_->evictions();
    const kv_store::StripedStore& store = tier_->store();
    const kv_store::StoreCounters& counters = store.counters();
    stats.store_reads = counters.reads;
    stats.degraded_reads = counters.reads_degraded;
    stats.shards_repaired = counters.shards_repaired;
    stats.shards_bad =
        counters.shards_short + counters.shards_foreign + counters.shards_corrupt + counters.shards_damaged;
    for (kv_store::TargetId id = 0; id < store.channels().count(); ++id) {
      if (store.has_left(id)) continue;
      ++stats.targets;
      stats.targets_dead += store.channels().usable(id) ? 0 : 1;
    }
  }
  stats.block_bytes = block_bytes_;
  stats.dirty_entries = undurable_.size();
  for (const auto& [client, slots] : pins_) stats.pins += slots.size();
  stats.pins += leases_;
  stats.memory_only = tier_ != nullptr && !failing_ ? 0 : 1;
  return stats;
}

}  // namespace trimtab::kv_pool
