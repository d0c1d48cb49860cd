#include "policy/eviction/shadow.h"

namespace trimtab::eviction {

void Shadow::told(std::uint64_t key, const std::uint64_t* parent, Block block, const Access& access,
                  double worth) {
  if (const auto found = slots_.find(key); found != slots_.end()) {
    policy_->used(found->second, access);
    hits_ += worth;
    return;
  }
  Slot slot = static_cast<Slot>(key_of_.size());
  if (free_.empty()) {
    key_of_.push_back(key);
  } else {
    slot = free_.back();
    free_.pop_back();
    key_of_[slot] = key;
  }
  block.key = key;
  if (parent != nullptr) {
    const auto before = slots_.find(*parent);
    if (before != slots_.end()) block.parent = before->second;
  }
  policy_->stored(slot, block, access);
  slots_.emplace(key, slot);
}

void Shadow::end_request(Nanos now, double fade) {
  hits_ *= fade;
  if (policy_->count() <= capacity_blocks_) return;
  for (const Slot gone :
       policy_->victims(Bytes{static_cast<std::int64_t>(policy_->count() - capacity_blocks_)}, now)) {
    slots_.erase(key_of_[gone]);
    free_.push_back(gone);
  }
}

bool Shadow::answered(std::uint64_t key, Nanos asked, std::uint32_t tokens, Nanos now) {
  const auto found = slots_.find(key);
  if (found == slots_.end()) return false;
  policy_->answered(found->second, asked, tokens, now);
  return true;
}

}  // namespace trimtab::eviction
