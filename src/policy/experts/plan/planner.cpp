#include "policy/experts/plan/planner.h"

#include <fmt/format.h>

#include <cmath>

#include "policy/experts/plan/fresh.h"
#include "policy/experts/plan/hierarchical.h"
#include "policy/experts/plan/incremental.h"
#include "policy/experts/plan/relabel.h"
#include "policy/experts/plan/single_step.h"

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
  if (!(options.recency_steps >= 0)) {
    return bad(fmt::format("recency_steps {}: give a number of steps, or 0 to weigh all steps alike",
                           options.recency_steps));
  }
  if (std::isnan(options.move_price)) {
    return bad("move_price nan: give a part of the mean rank's load such as 0.0005, or -1 for the default");
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

/// Who looks back far plans to serve long.
std::int32_t period_of(const LoadWindow& window, const PlanOptions& options) {
  return options.period_steps > 0 ? options.period_steps : window.steps() < 64 ? 5 : window.steps();
}

double default_price(const Shape& shape, bool serves_long) {
  if (shape.ranks < kManyRanks) return serves_long ? 2e-4 : 5e-4;
  return serves_long ? 2.7e-3 : 1.2e-3;
}

}  // namespace

base::Result<Plan> plan_layer(const Shape& shape, const LoadWindow& window,
                              std::span<const std::int32_t> current, const PlanOptions& options) {
  TRIMTAB_TRY(check_inputs(shape, window, current, options));
  if (options.scope == Scope::kHierarchical) return plan_hierarchical(shape, window, current, options);
  Plan plan;
  if (options.start == Start::kIncremental) {
    const std::int32_t period = period_of(window, options);
    const double price =
        options.move_price < 0 ? default_price(shape, period > kShortPeriodSteps) : options.move_price;
    PeakResult result;
    plan.map = improve(shape, window, current, period, {price, options.moves_max}, result);
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
