#include "policy/experts/plan/planner.h"

#include <fmt/format.h>

#include "policy/experts/plan/construct.h"
#include "policy/experts/plan/copies.h"
#include "policy/experts/plan/hierarchical.h"
#include "policy/experts/plan/incremental.h"
#include "policy/experts/plan/peak_walk.h"
#include "policy/experts/plan/relabel.h"
#include "policy/experts/plan/single_step.h"
#include "policy/experts/plan/swaps.h"

namespace trimtab::experts {
namespace {

tl::unexpected<base::Error> bad(std::string message) {
  return base::fail(base::Code::kInvalidArgument, std::move(message), "policy/experts");
}

base::Status check_inputs(const Shape& shape, const LoadWindow& window, std::span<const std::int32_t> current,
                          const PlanOptions& options) {
  TRIMTAB_TRY(check(shape));
  if (window.experts() != shape.experts) {
    return bad(fmt::format("the window has {} experts, the shape {}: give the loads of the same layer",
                           window.experts(), shape.experts));
  }
  if (options.start == Start::kIncremental) {
    if (current.empty())
      return bad(
          "an incremental plan starts from the current map, and none was given: give it, or plan fresh");
    TRIMTAB_TRY(check(shape, current, false));
  } else if (!current.empty()) {
    Shape old_shape = shape;  // a fresh plan may have another number of slots than the map in force
    old_shape.slots = static_cast<std::int32_t>(current.size());
    TRIMTAB_TRY(check(old_shape, current, false));
  }
  return {};
}

/// Names the ranks of a fresh plan after the map in force, and states what the plan promises and costs.
void explain(const Shape& shape, const LoadWindow& window, std::span<const std::int32_t> current,
             const PlanOptions& options, Plan& plan) {
  if (options.start == Start::kFresh) plan.map = relabel(shape, current, plan.map, false);
  plan.reason.balance = balance_of(shape, plan.map, window).of_sums;
  if (current.empty()) return;
  plan.reason.received = received_copies(shape, current, plan.map);
  Shape old_shape = shape;
  old_shape.slots = static_cast<std::int32_t>(current.size());
  plan.reason.balance_before = balance_of(old_shape, current, window).of_sums;
}

/// From this many ranks on a rank holds few copies, and the hottest ones decide rather than their sums.
constexpr std::int32_t kManyRanks = 32;

/// Long windows are planned on about 125 sums of steps: eight times less work, and count noise averages out.
std::int32_t bin_of(const LoadWindow& window) { return window.steps() <= 256 ? 1 : window.steps() / 125; }

CopyWeights copy_weights(const Shape& shape, std::int32_t bin) {
  // With one slot a rank the largest copy is the busiest rank: nothing is left to packing.
  if (shape.slots_per_rank() == 1) return {1.0, 1e-6};
  if (shape.ranks < kManyRanks) return {0.3, 0.1};
  return bin == 1 ? CopyWeights{0.6, 0.02} : CopyWeights{0.8, 0.001};
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

double default_price(const Shape& shape) { return shape.ranks >= kManyRanks ? 1.5e-3 : 5e-4; }

SlotMap plan_fresh(const Shape& shape, const LoadWindow& window, const PlanOptions& options,
                   PlanReason& reason) {
  LayerLoads loads;
  std::vector<double> weights;
  if (options.recency_steps > 0) weights = recency_weights(window.steps(), options.recency_steps);
  const std::int32_t bin = bin_of(window);
  loads.assign(window, weights, bin);
  const std::vector<std::int32_t> copies = choose_copies(shape, loads, copy_weights(shape, bin));
  Placement placement;
  SwapSearch search;
  placement.reset(shape, loads, copies);
  construct(shape, placement);
  search.reset(shape, placement);
  reason.swaps = search.descend(1e-7, 20LL * shape.slots);
  SlotMap map(placement.map().begin(), placement.map().end());
  PeakWalk walk;
  reason.walk_steps = walk.run(shape, loads, walk_proposals(shape, options.effort), options.seed, map);
  if (bin > 1 && options.effort == Effort::kQuality) {
    loads.assign_by_expert(window, weights, 1);
    reason.walk_steps += walk.run(shape, loads, kWholeWindowProposals, options.seed, map);
  }
  return map;
}

}  // namespace

base::Result<Plan> plan_layer(const Shape& shape, const LoadWindow& window,
                              std::span<const std::int32_t> current, const PlanOptions& options) {
  TRIMTAB_TRY(check_inputs(shape, window, current, options));
  if (options.scope == Scope::kHierarchical) return plan_hierarchical(shape, window, current, options);
  Plan plan;
  if (options.start == Start::kIncremental) {
    const double price = options.move_price < 0 ? default_price(shape) : options.move_price;
    PeakResult result;
    plan.map = improve(shape, window, current, {price, options.moves_max}, result);
    plan.reason.swaps = result.swaps;
    plan.reason.replacements = result.replacements;
  } else if (window.steps() == 1) {
    plan.map = plan_single_step(shape, window.totals(), options.effort, options.seed);
  } else {
    plan.map = plan_fresh(shape, window, options, plan.reason);
  }
  explain(shape, window, current, options, plan);
  return plan;
}

std::string describe(const PlanReason& reason) {
  if (reason.balance_before == 0) return fmt::format("{:.4f}", reason.balance);
  return fmt::format("{:.4f} -> {:.4f}, {} copies received", reason.balance_before, reason.balance,
                     reason.received);
}

}  // namespace trimtab::experts
