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

base::Result<std::optional<std::uint32_t>> Admission::admit(RequestId id, std::int64_t tokens,
                                                            std::span<const std::uint32_t> shared) {
  std::optional<std::uint32_t> slot;
  if (slots_.total() > 0) {
    // The slot is looked for first: it is one number, and refusing here has touched nothing.
    slot = slots_.take();
    if (!slot) {
      return base::fail(base::Code::kResourceExhausted,
                        "all " + std::to_string(slots_.total()) + " state slots are taken", "kv");
    }
  }
  if (auto created = tables_.create(id, tokens, shared); !created) {
    if (slot) slots_.release(*slot);
    return tl::unexpected(created.error());
  }
  if (slot) slot_of_[id] = *slot;
  return slot;
}

void Admission::release(RequestId id) {
  tables_.free(id);
  const auto found = slot_of_.find(id);
  if (found == slot_of_.end()) return;
  slots_.release(found->second);
  slot_of_.erase(found);
}

}  // namespace trimtab::kv
