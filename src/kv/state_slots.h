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
/// max_num_seqs) + 1 of them, set aside once at start and never traded for blocks (system facts, section 10;
/// the open engine's count, whose one more is the slot that a placeholder row writes to). The lowest free
/// number goes first.
class StateSlots {
 public:
  static constexpr std::uint32_t count_for(std::uint32_t max_num_seqs) {
    return static_cast<std::uint32_t>(std::uint64_t{max_num_seqs} * 12 / 10 + 1);
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

/// What becomes of a request that asks for blocks and a slot.
enum class Verdict : std::uint8_t {
  kOk,     // both can be had now
  kLater,  // once others have given theirs back
  kNever,  // the arena as a whole is too small for it
};

/// What a fork has to copy before the child runs: the whole state slot, because a ring is written in place
/// and cannot be shared. Blocks are shared and copied when one of the two writes (`BlockTables`).
struct Fork {
  struct SlotCopy {
    std::uint32_t from = 0, to = 0;
  };
  std::optional<SlotCopy> slot;  // nothing for models without a window
};

/// Blocks and slot of a request, taken together or not at all.
class Admission {
 public:
  explicit Admission(const MemoryPlan& plan) : tables_(plan.blocks), slots_(plan.slots) {}

  /// What `admit` would answer. `shared_blocks` of the request's blocks are held by others already; they
  /// count for kNever, since they too must lie in this arena.
  Verdict verdict(std::int64_t tokens, std::size_t shared_blocks = 0) const;

  /// The slot of the new request (nothing for models without a window). kTooLarge when it can never be
  /// admitted, kResourceExhausted when it must wait; each names what is short, and nothing is taken.
  base::Result<std::optional<std::uint32_t>> admit(RequestId id, std::int64_t tokens,
                                                   std::span<const std::uint32_t> shared = {});
  /// `child` goes on from the first `tokens` of `parent`, which keeps all it has. kResourceExhausted, and
  /// nothing taken, when no slot is free.
  base::Result<Fork> fork(RequestId parent, RequestId child, std::int64_t tokens);
  base::Status grow(RequestId id, std::int64_t tokens) { return tables_.grow(id, tokens); }
  void release(RequestId id);

  /// Nothing for models without a window.
  std::optional<std::uint32_t> slot_of(RequestId id) const;
  BlockTables& tables() { return tables_; }
  const BlockTables& tables() const { return tables_; }
  const StateSlots& slots() const { return slots_; }

 private:
  base::Result<std::optional<std::uint32_t>> take_slot();

  BlockTables tables_;
  StateSlots slots_;
  std::map<RequestId, std::uint32_t> slot_of_;
};

}  // namespace trimtab::kv
