#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "base/error.h"
#include "kv/block_table.h"
#include "model/profile.h"

namespace trimtab::kv {

/// Fixed slots for what a request keeps besides block KV (the sliding window's ring): floor(1.2 x
/// max_num_seqs) of them, set aside once at start and never traded for blocks (system facts, section 10). The
/// lowest free number goes first.
class StateSlots {
 public:
  static constexpr std::uint32_t count_for(std::uint32_t max_num_seqs) {
    return static_cast<std::uint32_t>(std::uint64_t{max_num_seqs} * 12 / 10);
  }
  explicit StateSlots(std::uint32_t slots) : taken_(slots, false), free_(slots) {}

  std::optional<std::uint32_t> take();
  void release(std::uint32_t slot);
  std::uint32_t total() const { return static_cast<std::uint32_t>(taken_.size()); }
  std::uint32_t free() const { return free_; }

 private:
  std::vector<bool> taken_;
  std::uint32_t free_;
};

/// The row of a slot's ring that holds token `position`.
constexpr std::int64_t ring_row(std::int64_t position, std::int64_t ring_slots) {
  return position % ring_slots;
}
/// How many of the newest tokens may be taken back (rejected drafts) with the whole window still in the ring.
constexpr std::int64_t rollback_tokens_max(const model::KvLayout& layout) {
  return layout.ring_slots - layout.window_tokens;
}

/// How a rank's KV memory is divided at start: slots first, what is left becomes blocks.
struct MemoryPlan {
  std::uint32_t slots = 0;
  std::uint32_t blocks = 0;
  base::Bytes slot_bytes, block_bytes, unused_bytes;
};
/// kInvalidArgument when not even one block is left; models without a window get no slots.
base::Result<MemoryPlan> plan_memory(base::Bytes available, std::uint32_t max_num_seqs,
                                     const model::KvLayout& layout);

/// Blocks and slot of a request, taken together or not at all.
class Admission {
 public:
  explicit Admission(const MemoryPlan& plan) : tables_(plan.blocks), slots_(plan.slots) {}

  /// The slot of the new request (nothing for models without a window). kResourceExhausted, naming which of
  /// the two is short, and nothing taken.
  base::Result<std::optional<std::uint32_t>> admit(RequestId id, std::int64_t tokens,
                                                   std::span<const std::uint32_t> shared = {});
  base::Status grow(RequestId id, std::int64_t tokens) { return tables_.grow(id, tokens); }
  void release(RequestId id);

  BlockTables& tables() { return tables_; }
  const BlockTables& tables() const { return tables_; }
  const StateSlots& slots() const { return slots_; }

 private:
  BlockTables tables_;
  StateSlots slots_;
  std::map<RequestId, std::uint32_t> slot_of_;
};

}  // namespace trimtab::kv
