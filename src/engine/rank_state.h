#pragma once

#include "engine/state_arena.h"
#include "engine/state_mover.h"
#include "kv/snapshot_name.h"
#include "kv/state_slots.h"
#include "model/cluster_config.h"
#include "model/profile.h"

namespace trimtab::engine {

/// What a rank of a model with sliding-window layers has besides its blocks. Null at ranks of other models.
struct RankState {
  RankState(StateArena slots, const kv::RingShape& ring_shape, StateMoverOptions options,
            std::function<void(StateDone)> on_done);

  StateArena arena;
  kv::RingShape ring;
  model::KvLayout layout;      // of the window, for the hit rule
  model::BlockKey layout_key;  // of every snapshot's name
  StateMover mover;

  /// The snapshot after `position` tokens goes to the machine's store.
  void keep(model::RequestId id, std::span<const model::BlockKey> keys, std::int64_t position,
            std::vector<std::byte> content);
  bool keeps(std::int64_t position, std::int64_t from) const {
    return position - kv::snapshot_tokens(ring, position) >= from;
  }
};

/// The window of a model, as a profile says it.
model::KvLayout window_layout(const kv::RingShape& ring);

/// kInvalidArgument when the profile describes another window than the model has: the entrypoint decides hits
/// by the profile.
base::Status check_window(const LlamaShape& shape, const model::Profile& profile);

/// Blocks and slots of a rank. Every rank has floor(1.2 x [decode] max_running) + 1 slots when its model has
/// a window (system facts, section 10).
kv::MemoryPlan rank_memory(std::uint32_t blocks, const RankState* state);

}  // namespace trimtab::engine
