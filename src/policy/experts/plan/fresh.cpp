#include "policy/experts/plan/fresh.h"

#include <array>
#include <span>
#include <vector>

#include "policy/experts/plan/construct.h"
#include "policy/experts/plan/copies.h"
#include "policy/experts/plan/peak_walk.h"
#include "policy/experts/plan/placement.h"
#include "policy/experts/plan/swaps.h"

namespace trimtab::experts {
namespace {

/// Long windows are planned on about 125 sums of steps: eight times less work, and count noise averages out.
/// Not with one slot a rank, where the peaks of single copies are all there is.
std::int32_t bin_of(const Shape& shape, const LoadWindow& window) {
  return window.steps() <= 256 || shape.slots_per_rank() == 1 ? 1 : window.steps() / 125;
}

/// Exchanges tried on the sum of peaks, see PeakWalk; on few ranks the squares leave little to gain.
std::int64_t walk_proposals(const Shape& shape, Effort effort) {
  switch (effort) {
    case Effort::kFast:
      return 0;
    case Effort::kDefault:
      return shape.ranks >= kManyRanks ? 10'000 : 0;
    case Effort::kQuality:
      return 40'000;
  }
  return 0;
}
constexpr std::int64_t kWholeWindowProposals = 25'000;

/// Best for few ranks, for many, for many on long windows, and for one slot a rank.
constexpr std::array<CopyWeights, 4> kCopyWeights{{{0.3, 0.1}, {0.6, 0.02}, {0.8, 0.001}, {1.0, 1e-6}}};

/// Which of kCopyWeights to try.
std::span<const CopyWeights> copy_weights(const Shape& shape, std::int32_t bin, Effort effort) {
  const std::span<const CopyWeights> all(kCopyWeights);
  // With one slot a rank the largest copy is the busiest rank: nothing is left to packing.
  if (shape.slots_per_rank() == 1) return all.subspan(3, 1);
  constexpr std::int32_t kFewSlots = 128;  // where a plan takes a fraction of a millisecond
  if (effort != Effort::kFast && shape.slots <= kFewSlots) return all;
  if (effort == Effort::kQuality && bin == 1) return all;
  if (shape.ranks < kManyRanks) return all.subspan(0, 1);
  return bin == 1 ? all.subspan(1, 1) : all.subspan(2, 1);
}

/// The plan without the walk.
SlotMap plan_squares(const Shape& shape, const LayerLoads& loads, const CopyWeights& weights,
                     std::int64_t& swaps) {
  Placement placement;
  placement.reset(shape, loads, choose_copies(shape, loads, weights));
  construct(shape, placement);
  // One slot a rank: every placement is as good as any other.
  if (shape.slots_per_rank() > 1) {
    SwapSearch search;
    search.reset(shape, placement);
    swaps += search.descend(1e-7, 20LL * shape.slots);
  }
  return {placement.map().begin(), placement.map().end()};
}

}  // namespace

SlotMap plan_fresh(const Shape& shape, const LoadWindow& window, const PlanOptions& options,
                   PlanReason& reason) {
  LayerLoads loads;
  std::vector<double> weights;
  if (options.recency_steps > 0) weights = recency_weights(window.steps(), options.recency_steps);
  const std::int32_t bin = bin_of(shape, window);
  loads.assign(window, weights, bin);
  PeakWalk walk;
  SlotMap map;
  float least = 0;
  const std::span<const CopyWeights> ways = copy_weights(shape, bin, options.effort);
  for (const CopyWeights& way : ways) {
    SlotMap made = plan_squares(shape, loads, way, reason.swaps);
    const float peaks = ways.size() > 1 ? walk.sum_of_peaks(shape, loads, made) : 0;
    if (!map.empty() && peaks >= least) continue;
    map.swap(made);
    least = peaks;
  }
  if (shape.slots_per_rank() == 1) return map;
  reason.walk_steps = walk.run(shape, loads, walk_proposals(shape, options.effort), options.seed, map);
  if (bin > 1 && options.effort == Effort::kQuality) {
    loads.assign_by_expert(window, weights, 1);
    reason.walk_steps += walk.run(shape, loads, kWholeWindowProposals, options.seed, map);
  }
  return map;
}

}  // namespace trimtab::experts
