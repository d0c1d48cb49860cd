#include "kv/state_slots.h"

#include <algorithm>
#include <string>

#include "base/check.h"

namespace trimtab::kv {

std::optional<std::uint32_t> StateSlots::take() {
  const auto found = std::find(taken_.begin(), taken_.end(), false);
  if (found == taken_.end()) return {};
  *found = true;
  --free_;
  return static_cast<std::uint32_t>(found - taken_.begin());
}

void StateSlots::release(std::uint32_t slot) {
  TRIMTAB_CHECK(slot < total() && taken_[slot], "a state slot is freed twice");
  taken_[slot] = false;
  ++free_;
}

base::Result<MemoryPlan> plan_memory(base::Bytes available, std::uint32_t max_num_seqs,
                                     const model::KvLayout& layout) {
  TRIMTAB_CHECK(layout.block_bytes.value > 0, "a block has no bytes");
  MemoryPlan plan;
  plan.block_bytes = layout.block_bytes;
  const bool windowed = layout.window_tokens > 0;
  if (windowed) {
    plan.slots = StateSlots::count_for(max_num_seqs);
    plan.slot_bytes = layout.state_bytes;
  }
  const base::Bytes left = available - plan.slot_bytes * plan.slots;
  if (left < layout.block_bytes) {
    return base::fail(base::Code::kInvalidArgument,
                      "KV memory of " + std::to_string(available.value) + " bytes holds " +
                          std::to_string(plan.slots) + " state slots of " +
                          std::to_string(plan.slot_bytes.value) +
                          " bytes and then not one block: raise it or lower max_num_seqs",
                      "kv");
  }
  const std::int64_t blocks = std::min<std::int64_t>(left / layout.block_bytes, INT32_MAX);
  plan.blocks = static_cast<std::uint32_t>(blocks);
  plan.unused_bytes = left - layout.block_bytes * blocks;
  return plan;
}

Verdict Admission::verdict(std::int64_t tokens, std::size_t shared_blocks) const {
  const std::uint32_t needed = blocks_for(tokens);
  if (needed > tables_.allocator().total()) return Verdict::kNever;
  const bool slot = slots_.total() == 0 || slots_.free() > 0;
  const bool blocks = needed <= shared_blocks + tables_.allocator().free();
  return slot && blocks ? Verdict::kOk : Verdict::kLater;
}

base::Result<std::optional<std::uint32_t>> Admission::take_slot() {
  if (slots_.total() == 0) return std::optional<std::uint32_t>{};
  const auto slot = slots_.take();
  if (slot) return slot;
  return base::fail(base::Code::kResourceExhausted,
                    "all " + std::to_string(slots_.total()) + " state slots are taken", "kv");
}

base::Result<std::optional<std::uint32_t>> Admission::admit(RequestId id, std::int64_t tokens,
                                                            std::span<const std::uint32_t> shared) {
  if (verdict(tokens, shared.size()) == Verdict::kNever) {
    return base::fail(base::Code::kTooLarge,
                      std::to_string(tokens) + " tokens need " + std::to_string(blocks_for(tokens)) +
                          " KV blocks, this rank has " + std::to_string(tables_.allocator().total()) +
                          " in all: shorten the request or raise the rank's KV memory",
                      "kv");
  }
  // The slot is looked for first: it is one number, and refusing here has touched nothing.
  auto slot = take_slot();
  if (!slot) return slot;
  if (auto created = tables_.create(id, tokens, shared); !created) {
    if (*slot) slots_.release(**slot);
    return tl::unexpected(created.error());
  }
  if (*slot) slot_of_[id] = **slot;
  return slot;
}

base::Result<Fork> Admission::fork(RequestId parent, RequestId child, std::int64_t tokens) {
  auto slot = take_slot();
  if (!slot) return tl::unexpected(slot.error());
  tables_.fork(parent, child, tokens);
  Fork fork;
  if (*slot) {
    slot_of_[child] = **slot;
    fork.slot = Fork::SlotCopy{slot_of_.at(parent), **slot};
  }
  return fork;
}

std::optional<std::uint32_t> Admission::slot_of(RequestId id) const {
  const auto found = slot_of_.find(id);
  if (found == slot_of_.end()) return {};
  return found->second;
}

void Admission::release(RequestId id) {
  tables_.free(id);
  const auto found = slot_of_.find(id);
  if (found == slot_of_.end()) return;
  slots_.release(found->second);
  slot_of_.erase(found);
}

}  // namespace trimtab::kv
