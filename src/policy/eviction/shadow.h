#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>

#include "policy/eviction/policy.h"
#include "policy/eviction/slots.h"

namespace trimtab::eviction {

/// A store of keys only that is told a part of the stream, under an order of its own: what that order would
/// hit with the same part of the room. Both of a pair are told the same, so the difference of their hits is
/// that of their orders.
class Shadow {
 public:
  Shadow(std::unique_ptr<Policy> policy, std::uint64_t capacity_blocks)
      : policy_(std::move(policy)), capacity_blocks_(capacity_blocks) {}

  /// The block `parent` (none: null) is the one before it, when it is told too. A hit counts `worth`.
  void told(std::uint64_t key, const std::uint64_t* parent, Block block, const Access& access, double worth);
  /// False: it does not hold the block.
  bool answered(std::uint64_t key, Nanos asked, std::uint32_t tokens, Nanos now);
  /// The request is over: who has no room leaves, and older hits count less.
  void end_request(Nanos now, double fade);
  double hits() const { return hits_; }
  std::size_t memory_bytes() const {
    return policy_->memory_bytes() + slot_of_.size() * 40 + slots_.memory_bytes();
  }

 private:
  std::unique_ptr<Policy> policy_;
  std::uint64_t capacity_blocks_;
  std::unordered_map<std::uint64_t, Slot> slot_of_;  // looked up, never iterated
  Slots<std::uint64_t> slots_;
  double hits_ = 0;
};

}  // namespace trimtab::eviction
