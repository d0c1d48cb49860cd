#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/prng.h"
#include "policy/experts/plan/layer_loads.h"
#include "policy/experts/types.h"

namespace trimtab::experts {

/// Lowers the sum over steps of the busiest rank itself, exchange by exchange, from a plan that is already
/// good: draws a step, takes a copy off its busiest rank for a lighter one of another rank, and keeps what
/// lowers the sum. Copies per expert stay. Proposals, not time, bound it, so that every machine gets the same
/// plan. Cost: about 0.1 us a proposal at 100 steps. Weakness: at window 100 most of what it gains is count
/// noise of the window.
class PeakWalk {
 public:
  /// Improves a legal map in place; returns the exchanges kept.
  std::int64_t run(const Shape& shape, const LayerLoads& loads, std::int64_t proposals, std::uint64_t seed,
                   SlotMap& map);

  /// The sum that it lowers, for a legal map.
  float sum_of_peaks(const Shape& shape, const LayerLoads& loads, const SlotMap& map);

 private:
  void start(const Shape& shape, const LayerLoads& loads, const SlotMap& map);
  void measure();
  bool propose(base::Prng& prng);
  const float* load_of(std::int32_t expert) const { return loads_.data() + line(expert); }
  float* rank_load(std::int32_t rank) { return ranks_.data() + line(rank); }
  std::size_t line(std::int32_t index) const {
    return static_cast<std::size_t>(index) * static_cast<std::size_t>(padded_);
  }
  bool holds(std::int32_t rank, std::int32_t expert) const {
    return held_[static_cast<std::size_t>(rank) * static_cast<std::size_t>(shape_.experts) +
                 static_cast<std::size_t>(expert)] != 0;
  }
  void hold(std::int32_t rank, std::int32_t expert, bool held) {
    held_[static_cast<std::size_t>(rank) * static_cast<std::size_t>(shape_.experts) +
          static_cast<std::size_t>(expert)] = held ? 1 : 0;
  }

  Shape shape_;
  std::int32_t steps_ = 0, padded_ = 0;
  SlotMap map_;
  std::vector<float> loads_;        // [experts, padded]: of one copy
  std::vector<float> ranks_;        // [ranks, padded]
  std::vector<float> best_;         // [3, padded]: the busiest ranks' loads
  std::vector<std::int32_t> who_;   // [3, padded]: which they are
  std::vector<float> rest_;         // [blocks + 1]: the third busiest, summed from each block of 16 on
  std::vector<std::uint8_t> held_;  // [ranks, experts]
  float sum_ = 0;                   // of the busiest
};

}  // namespace trimtab::experts
