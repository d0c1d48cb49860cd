#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

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

  /// The block before it is named by its key (0: none), and told before it when it is told at all. It is hit
  /// when it is there, and those of its prompt before it were; a hit counts `worth`.
  void told(Block block, const Access& access, double worth);
  /// False: it does not hold the block.
  bool answered(std::uint64_t key, Nanos asked, std::uint32_t tokens, Nanos now);
  /// Who has no room leaves.
  void make_room(Nanos now);
  /// Older hits count less from now on.
  void fade(double share) { hits_ *= share; }
  double hits() const { return hits_; }
  std::size_t memory_bytes() const {
    return policy_->memory_bytes() + slot_of_.size() * 40 + slots_.memory_bytes() +
           missed_.capacity() * sizeof(Nanos);
  }

 private:
  std::unique_ptr<Policy> policy_;
  std::uint64_t capacity_blocks_;
  std::unordered_map<std::uint64_t, Slot> slot_of_;  // looked up, never iterated
  Slots<std::uint64_t> slots_;
  std::vector<Nanos> missed_;  // of each slot: when a request last found it, or one before it, missing
  double hits_ = 0;
};

}  // namespace trimtab::eviction
