#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"
#include "policy/experts/dispatch/estimator.h"
#include "policy/experts/plan/planner.h"
#include "policy/experts/plan/repair.h"
#include "policy/experts/types.h"

namespace trimtab::experts_eval {

/// One layer's tokens per step and expert, and how many of them each rank routes: what dispatch without talk
/// is judged by.
class RankedLoads {
 public:
  RankedLoads(std::int32_t steps, std::int32_t experts, std::int32_t ranks);
  /// Spreads counts [steps, experts] (first[s * step_stride + e]) over the ranks: each token is routed by a
  /// rank drawn evenly from the seed.
  static RankedLoads spread(const std::int32_t* first, std::int32_t steps, std::int32_t experts,
                            std::ptrdiff_t step_stride, std::int32_t ranks, std::uint64_t seed);

  std::int32_t steps() const { return steps_; }
  std::int32_t experts() const { return experts_; }
  std::int32_t ranks() const { return ranks_; }
  void add(std::int32_t step, std::int32_t expert, std::int32_t rank, std::int32_t tokens);
  /// [experts] of one step.
  std::span<const std::int32_t> counts(std::int32_t step) const;
  /// [ranks] of one step and expert.
  std::span<const std::int32_t> by_rank(std::int32_t step, std::int32_t expert) const;
  /// All counts, [steps, experts].
  const std::int32_t* data() const { return counts_.data(); }

 private:
  std::int32_t steps_, experts_, ranks_;
  std::vector<std::int32_t> counts_, by_rank_;
};

/// Recorded routing of one kind of text: ids[((window * tokens + token) * layers + layer) * top_k + k].
struct RoutedText {
  const std::uint8_t* ids = nullptr;
  std::int32_t windows = 0, tokens = 0, layers = 0, top_k = 0;
};
struct ServedMix {
  std::int32_t requests = 256;     // decoded together, spread evenly over the ranks
  std::int32_t steps = 600;        // of one token a request
  std::int32_t shift_steps = 150;  // the text of new windows changes after so many
  std::uint64_t seed = 1;
};
/// Decode steps of one layer: every request takes the next token of its window; when the window ends, it
/// takes another of the text of the moment. Errors: texts of different shape, an id >= experts, a layer out
/// of range.
base::Result<RankedLoads> serve_mix(std::span<const RoutedText> texts, std::int32_t layer,
                                    std::int32_t experts, std::int32_t ranks, const ServedMix& mix);

enum class RollingPlanner : std::uint8_t {
  kKeep,         // the first plan for ever
  kPublished,    // DeepInfer's rule on the window
  kIncremental,  // plan_layer from the map in force
  kRepair,       // Repairer on the estimate
};

struct WeightedOptions {
  RollingPlanner planner = RollingPlanner::kIncremental;
  std::int32_t every_steps = 5;
  std::int32_t window_steps = 40;
  double recency_steps = 15;
  double move_price = -1;
  experts::RepairOptions repair = {};
  experts::EstimatorOptions estimator = {};  // of dispatch, and of repair
  /// A plan takes effect so many steps after the counts it was made from.
  std::int32_t delay_steps = 0;
  std::int32_t first_step = 100;          // judged from here on
  std::int32_t first_window_steps = 100;  // of the first plan, up to first_step
  std::int32_t sweeps_before = 1, sweeps_after = 1;
  bool optimal = true;
  std::int32_t parts = 64;
};

/// Sums over the judged steps; a ratio is a sum of peaks over `mean`.
struct WeightedOutcome {
  double mean = 0;
  double even = 0;      // copies share evenly
  double weighted = 0;  // shares of the estimate, fractions of tokens
  double integer = 0;   // the same in parts, whole tokens per source rank
  double bound = 0;     // least possible peak of the maps in force, counts known
  std::int64_t received = 0;
  std::int32_t steps = 0;
  double ratio(double peaks) const { return mean > 0 ? peaks / mean : 1; }
  double moves_per_step() const { return steps > 0 ? static_cast<double>(received) / steps : 0; }
  WeightedOutcome& operator+=(const WeightedOutcome& other);
};

/// Runs one layer. Each step is judged by the map and the shares fixed before it, then observed.
base::Result<WeightedOutcome> weighted_rolling(const experts::Shape& shape, const RankedLoads& loads,
                                               const WeightedOptions& options);

}  // namespace trimtab::experts_eval
