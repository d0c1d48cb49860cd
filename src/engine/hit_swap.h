#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/forward.h"
#include "model/profile.h"
#include "policy/swap_in/planner.h"
#include "swap_in/layer_gate.h"
#include "swap_in/layer_swapper.h"

namespace trimtab::engine {

/// How the pool cuts a block into layers, and which of them each layer of the model reads. Layers with a
/// window have nothing in blocks and are not counted.
struct HitLayout {
  std::vector<swap_in::LayerSpan> spans;  // of the pool, in order; together the whole block
  std::vector<std::uint32_t> needed;      // by layer of the model: the last span it reads

  /// Nothing when a hit cannot come layer by layer: the pool keeps blocks in one piece, or blocks of another
  /// size.
  static std::optional<HitLayout> make(const model::KvLayout& kv, const LlamaShape& shape,
                                       std::size_t block_bytes);
};

/// A hit that comes while it is computed from: what the rank's thread knows of it. One thread.
class HitSwap final : public LayerWait {
 public:
  HitSwap(std::shared_ptr<swap_in::LayerGate> gate, const HitLayout& layout, std::uint32_t blocks,
          policy::SwapBackendCost cost, std::uint32_t batch, base::Nanos asked)
      : gate_(std::move(gate)),
        layout_(layout),
        blocks_(blocks),
        cost_(std::move(cost)),
        batch_(batch),
        asked_(asked) {}

  /// The first layer is there and nothing has failed.
  bool begun() const;
  bool failed() const { return gate_->failed(); }
  /// What a step that starts now and computes for `compute` would wait, if the layers go on coming as fast as
  /// they have come so far.
  policy::SwapOutcome predict(base::Nanos now, base::Nanos compute) const;

  /// How long the steps from now on may wait, together with others that are given the same account: a group
  /// whose loader hangs is held up for so long and no longer.
  void allow(base::Nanos* left) { left_ = left; }
  /// Nothing is read before this was true for its layer. The last layer's gate opens only when all blocks
  /// have been compared with their checksums: a step that ended has computed from nothing else.
  bool await(std::size_t layer) override;
  base::Nanos stalled() const { return gate_->stalled(); }

 private:
  std::shared_ptr<swap_in::LayerGate> gate_;
  const HitLayout& layout_;
  std::uint32_t blocks_;
  policy::SwapBackendCost cost_;
  std::uint32_t batch_;
  base::Nanos asked_;
  base::Nanos* left_ = nullptr;
};

}  // namespace trimtab::engine
