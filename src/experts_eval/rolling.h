#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "experts_eval/synthetic_loads.h"
#include "policy/experts/load_window.h"
#include "policy/experts/plan/planner.h"
#include "policy/experts/types.h"

namespace trimtab::experts_eval {

/// A planner under test: from one layer's window and the map in force, the next map.
using PlanFunction = std::function<base::Result<experts::SlotMap>(
    const experts::Shape&, const experts::LoadWindow&, std::span<const std::int32_t> current)>;

struct Rule {
  std::string name;
  PlanFunction first;  // when there is no plan yet (`current` is the map by number)
  PlanFunction next;   // from then on
};

/// The map by number for ever.
Rule no_balancing();
Rule deepinfer_rule();
/// The totals of the window only; nodes and groups of the shape are respected as DeepSeek's entry point does.
Rule deepseek_rule();
/// Ours: the first plan fresh, then as `options` say (fresh plans are relabelled against the map in force).
/// The first plan's effort and recency are those of `options`.
Rule own_rule(std::string name, const experts::PlanOptions& options);

/// Busiest rank against mean rank, copies sharing evenly.
struct Score {
  double of_sums = 1;            // sum of peaks / sum of means, over steps and layers
  double mean_ratio = 1;         // mean over steps and layers of peak / mean
  double moves = 0;              // received copies per layer and step scored; the first plan is not counted
  double moves_per_plan = 0;     // received copies per layer and plan after the first
  std::int64_t plans = 0;        // per layer, the first not counted
  std::int64_t duplicates = 0;   // second copies on a rank, of all plans
  double slots_moved_ratio = 0;  // moves_per_plan / slots
};

struct RollingOptions {
  std::int32_t window_steps = 40;
  std::int32_t first_window_steps = 0;  // of the first plan; 0: as window_steps
  std::int32_t period_steps = 5;
  std::int32_t delay_steps = 0;        // a plan made before step t serves from step t + delay
  std::int32_t first_plan_step = 100;  // serves at once; scoring starts here
  std::int32_t end_step = 0;           // 0: all steps
};

/// Replans each layer as time goes by and scores every step with the map in force. Errors: of the rule, a
/// window that does not fit before the first plan, period below 1, nothing to score.
base::Result<Score> roll(const Loads& loads, const experts::Shape& shape, const Rule& rule,
                         const RollingOptions& options);

/// Plans with `first` on steps [0, window), with `next` from there on [window, 2 window), and scores on
/// [2 window, 3 window): the held-out figure. `stale`: keeps the first plan.
base::Result<Score> hold_out(const Loads& loads, const experts::Shape& shape, const Rule& rule,
                             std::int32_t window_steps, bool stale = false);

/// Plans with `first` on steps [0, window) of `loads` and scores on the same steps of `scored` (the same
/// loads for the in-window figure, another draw of the same rates for what of it is more than noise).
base::Result<Score> in_window(const Loads& loads, const Loads& scored, const experts::Shape& shape,
                              const Rule& rule, std::int32_t window_steps);

/// Mean of a - b over seeds, its standard error, and the upper end of the two-sided 95 % interval (Student).
struct Paired {
  double mean = 0, standard_error = 0, upper95 = 0;
  std::int32_t seeds = 0;
};
Paired paired(std::span<const double> a, std::span<const double> b);
struct Mean {
  double mean = 0, standard_error = 0;
};
Mean mean_of(std::span<const double> values);

}  // namespace trimtab::experts_eval
