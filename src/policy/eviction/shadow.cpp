#include "policy/eviction/shadow.h"

namespace trimtab::eviction {

void Shadow::told(Block block, const Access& access, double worth) {
  const auto before = block.parent_key == 0 ? slot_of_.end() : slot_of_.find(block.parent_key);
  const bool missed =
      block.parent_key != 0 && (before == slot_of_.end() || missed_[before->second] == access.now);
  if (const auto found = slot_of_.find(block.key); found != slot_of_.end()) {
    policy_->used(found->second, access);
    if (missed) missed_[found->second] = access.now;
    if (!missed) hits_ += worth;
    return;
  }
  const Slot slot = slots_.take(block.key);
  if (before != slot_of_.end()) block.parent = before->second;
  policy_->stored(slot, block, access);
  slot_of_.emplace(block.key, slot);
  if (slot >= missed_.size()) missed_.resize(std::size_t{slot} + 1);
  missed_[slot] = access.now;
}

void Shadow::make_room(Nanos now) {
  if (policy_->count() <= capacity_blocks_) return;
  for (const Slot gone :
       policy_->victims(Bytes{static_cast<std::int64_t>(policy_->count() - capacity_blocks_)}, now)) {
    slot_of_.erase(slots_.key_of(gone));
    slots_.give_back(gone);
  }
}

bool Shadow::answered(std::uint64_t key, Nanos asked, std::uint32_t tokens, Nanos now) {
  const auto found = slot_of_.find(key);
  if (found == slot_of_.end()) return false;
  policy_->answered(found->second, asked, tokens, now);
  return true;
}

}  // namespace trimtab::eviction
