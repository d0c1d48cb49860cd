#include "policy/eviction/shadow.h"

namespace trimtab::eviction {

void Shadow::told(std::uint64_t key, const std::uint64_t* parent, Block block, const Access& access,
                  double worth) {
  if (const auto found = slot_of_.find(key); found != slot_of_.end()) {
    policy_->used(found->second, access);
    hits_ += worth;
    return;
  }
  const Slot slot = slots_.take(key);
  block.key = key;
  if (parent != nullptr) {
    const auto before = slot_of_.find(*parent);
    if (before != slot_of_.end()) block.parent = before->second;
  }
  policy_->stored(slot, block, access);
  slot_of_.emplace(key, slot);
}

void Shadow::end_request(Nanos now, double fade) {
  hits_ *= fade;
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
