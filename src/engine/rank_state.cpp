#include "engine/rank_state.h"

#include <fmt/format.h>

#include <utility>

#include "kv_state/state_host.h"

namespace trimtab::engine {

RankState::RankState(StateArena slots, const kv::RingShape& ring_shape, StateMoverOptions options,
                     std::function<void(StateDone)> on_done)
    : arena(std::move(slots)),
      ring(ring_shape),
      layout(window_layout(ring_shape)),
      layout_key(kv::layout_key(ring_shape, kv_state::kReferenceElement)),
      mover(arena, std::move(options), std::move(on_done)) {}

void RankState::keep(model::RequestId id, std::span<const model::BlockKey> keys, std::int64_t position,
                     std::vector<std::byte> content) {
  StateJob job;
  job.kind = StateJob::Kind::kKeep;
  job.id = id;
  job.name = kv::snapshot_name(keys, position / model::kBlockTokens, layout_key);
  job.content = std::move(content);
  mover.submit(std::move(job));
}

model::KvLayout window_layout(const kv::RingShape& ring) {
  model::KvLayout layout;
  layout.window_tokens = ring.window_tokens;
  layout.window_layers = ring.layers;
  layout.ring_slots = ring.ring_slots;
  layout.state_bytes = kv::ring_bytes(ring);
  return layout;
}

base::Status check_window(const LlamaShape& shape, const model::Profile& profile) {
  const model::KvLayout is = window_layout(shape.ring()), said = profile.kv;
  if (is.window_tokens == said.window_tokens && is.window_layers == said.window_layers &&
      is.ring_slots == said.ring_slots && is.state_bytes == said.state_bytes)
    return {};
  return base::fail(
      base::Code::kInvalidArgument,
      fmt::format(
          "the model has window_tokens = {}, window_layers = {}, ring_slots = {}, state_bytes = {}; the "
          "[kv] of profile '{}' says {}, {}, {} and {}: choose the profile of this model",
          is.window_tokens, is.window_layers, is.ring_slots, is.state_bytes.value, profile.name,
          said.window_tokens, said.window_layers, said.ring_slots, said.state_bytes.value),
      "engine");
}

kv::MemoryPlan rank_memory(std::uint32_t blocks, const RankState* state) {
  kv::MemoryPlan plan;
  plan.blocks = blocks;
  plan.slots = state == nullptr ? 0 : state->arena.slots();
  return plan;
}

}  // namespace trimtab::engine
