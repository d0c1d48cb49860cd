#pragma once

#include <span>
#include <vector>

#include "engine/feed_forward.h"
#include "engine/group.h"

namespace trimtab::engine {

/// Experts spread over the ranks of a group: all ranks' rows are dispatched to all, each computes its experts
/// for all rows, and the owner of a row adds the experts' outputs in id order, so the bits are those of one
/// process. Two barriers a wave: after the dispatch and before the combine.
class GroupExchange final : public FfnExchange {
 public:
  GroupExchange(Group& group, ExpertRunner& runner) : group_(group), runner_(runner) {}

  /// Once a step, before its first `run`: the rows of every rank and the waves they agreed on.
  void begin_step(std::span<const std::size_t> rows_of_ranks, std::size_t waves);
  base::Status run(const LayerWeights& layer, const float* x, std::size_t rows, float* residual) override;

 private:
  Group& group_;
  ExpertRunner& runner_;
  std::vector<std::size_t> rows_of_ranks_;
  std::size_t waves_ = 1;
  std::size_t calls_ = 0;  // one per layer and wave
};

}  // namespace trimtab::engine
