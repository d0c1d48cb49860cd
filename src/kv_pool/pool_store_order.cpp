// The part of PoolStore that says who leaves, and tells eviction policies of requests and blocks.
#include "base/check.h"
#include "kv_pool/pool_store.h"

namespace trimtab::kv_pool {

/// Above a store the arena goes by age alone: what leaves it is read again, not computed, and a chain may
/// have gaps there. Where memory is all there is, its policy decides.
bool PoolStore::evict_one() {
  const auto evict = [this](std::uint32_t slot) {
    index_.erase(slots_[slot].key);
    free_slot(slot);
    ++counters_.memory_evictions;
  };
  if (order_) {
    const auto gone = order_->victims(base::Bytes{static_cast<std::int64_t>(block_bytes_)}, now_);
    for (const eviction::Slot slot : gone) evict(slot);
    return !gone.empty();
  }
  const auto oldest = index_.oldest([this](const kv::PrefixIndex::Entry& entry) {
    const Slot& slot = slots_[entry.value];
    return slot.pins == 0 && !slot.storing && slot.commit == 0;
  });
  if (!oldest) return false;
  evict(oldest->value);
  return true;
}

std::uint32_t PoolStore::known(std::span<const BlockKey> keys) const {
  if (tier_ != nullptr) return tier_->known(keys);
  std::uint32_t blocks = 0;
  while (blocks < keys.size() && (index_.find(keys[blocks]) || order_->remembers(keys[blocks].low))) ++blocks;
  return blocks;
}

void PoolStore::tell_used(std::span<const BlockKey> keys, const eviction::Access& access) {
  if (tier_ != nullptr) return tier_->touch(keys, access);
  for (const BlockKey key : keys) order_->used(index_.find(key)->value, access);
}

StoreTier::Origin PoolStore::origin_of(const Slot& slot) {
  const auto place = asked_.place(slot.key, slot.parent);
  const AskedPrompts::Prompt* prompt = place ? asked_.find(place->prompt) : nullptr;
  if (prompt == nullptr) return {slot.parent, {}, 0};
  return {slot.parent, eviction::Access{prompt->at, prompt->blocks, prompt->known}, place->position};
}

void PoolStore::tell_stored(std::uint32_t number) {
  if (!order_) return;
  const Slot& slot = slots_[number];
  const StoreTier::Origin origin = origin_of(slot);
  eviction::Block block = origin.block(slot.key, block_bytes_, ttl_, now_);
  if (origin.parent)
    if (const auto before = index_.find(*origin.parent)) block.parent = before->value;
  order_->stored(number, block, origin.access.value_or(eviction::Access{now_}));
}

void PoolStore::tell_pins(std::uint32_t number) {
  Slot& slot = slots_[number];
  const bool hold = slot.state == State::kReady && slot.pins > 0;
  if (!order_ || hold == slot.held) return;
  slot.held = hold;
  hold ? order_->pin(number) : order_->unpin(number);
}

void PoolStore::tell_gone(std::uint32_t number) {
  if (!order_) return;
  if (slots_[number].held) order_->unpin(number);
  slots_[number].held = false;
  order_->erased(number);
}

void PoolStore::answered(std::uint64_t request, std::uint32_t tokens) {
  AskedPrompts::Prompt* prompt = asked_.find(request);
  if (prompt == nullptr || prompt->answered) {
    ++counters_.answers_unknown;
    return;
  }
  prompt->answered = true;
  ++counters_.answers_told;
  if (tier_ != nullptr) return tier_->answered(prompt->keys, prompt->at, tokens, now_);
  // A chain loses its end first: the last one that is there stands for the request.
  for (std::size_t i = prompt->keys.size(); i-- > 0;)
    if (const auto found = index_.find(prompt->keys[i]))
      return order_->answered(found->value, prompt->at, tokens, now_);
}

}  // namespace trimtab::kv_pool
