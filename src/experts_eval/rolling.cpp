#include "experts_eval/rolling.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>

#include "experts_eval/published.h"

namespace trimtab::experts_eval {
namespace {

using experts::LoadWindow;
using experts::Shape;
using experts::SlotMap;

tl::unexpected<base::Error> bad(std::string message) {
  return base::fail(base::Code::kInvalidArgument, std::move(message), "experts_eval");
}

std::size_t at(std::int32_t index) { return static_cast<std::size_t>(index); }

/// Adds up steps of all layers.
class Tally {
 public:
  void add(const Shape& shape, const std::int32_t* counts, const SlotMap& map,
           const std::vector<std::int32_t>& copies) {
    double peak = 0, sum = 0;
    for (std::int32_t rank = 0, slot = 0; rank < shape.ranks; ++rank) {
      double load = 0;
      for (std::int32_t i = 0; i < shape.slots_per_rank(); ++i, ++slot) {
        const std::size_t expert = at(map[at(slot)]);
        load += static_cast<double>(counts[expert]) / copies[expert];
      }
      peak = std::max(peak, load);
      sum += load;
    }
    const double mean = sum / shape.ranks;
    peaks_ += peak, means_ += mean, ++steps_;
    ratios_ += mean > 0 ? peak / mean : 1.0;
  }
  void planned(const Shape& shape, const SlotMap& before, const SlotMap& after, bool counts) {
    duplicates_ += experts::duplicate_copies(shape, after);
    if (!counts) return;
    ++plans_;
    moves_ += experts::received_copies(shape, before, after);
  }
  Score score(const Shape& shape, std::int32_t layers) const {
    Score out;
    if (means_ > 0) out.of_sums = peaks_ / means_;
    if (steps_ > 0) out.mean_ratio = ratios_ / static_cast<double>(steps_);
    if (steps_ > 0) out.moves = static_cast<double>(moves_) / static_cast<double>(steps_);
    if (plans_ > 0) out.moves_per_plan = static_cast<double>(moves_) / static_cast<double>(plans_);
    out.slots_moved_ratio = out.moves_per_plan / shape.slots;
    out.plans = plans_ / layers;
    out.duplicates = duplicates_;
    return out;
  }

 private:
  double peaks_ = 0, means_ = 0, ratios_ = 0;
  std::int64_t steps_ = 0, moves_ = 0, plans_ = 0, duplicates_ = 0;
};

/// A map that the rule gave, checked: a rule that breaks the shape is no baseline.
base::Result<SlotMap> planned(const PlanFunction& plan, const Shape& shape, const LoadWindow& window,
                              const SlotMap& current) {
  auto map = plan(shape, window, current);
  if (map) TRIMTAB_TRY(experts::check(shape, *map, false));
  return map;
}

struct Pending {
  std::int32_t from_step = 0;
  SlotMap map;
};

base::Status roll_layer(const Loads& loads, std::int32_t layer, const Shape& shape, const Rule& rule,
                        const RollingOptions& options, Tally& tally) {
  const std::int32_t end = options.end_step > 0 ? options.end_step : loads.steps;
  const std::int32_t first_window =
      options.first_window_steps > 0 ? options.first_window_steps : options.window_steps;
  const auto first = loads.window(layer, options.first_plan_step - first_window, first_window);
  if (!first) return tl::unexpected(first.error());
  SlotMap planned_last = experts::initial_map(shape);
  auto map = planned(rule.first, shape, *first, planned_last);
  if (!map) return tl::unexpected(map.error());
  tally.planned(shape, planned_last, *map, false);
  planned_last = *map;
  SlotMap in_force = *map;
  std::vector<std::int32_t> copies = experts::copies_of(shape, in_force);
  std::deque<Pending> pending;
  for (std::int32_t step = options.first_plan_step; step < end; ++step) {
    if (step > options.first_plan_step && (step - options.first_plan_step) % options.period_steps == 0) {
      const auto window = loads.window(layer, step - options.window_steps, options.window_steps);
      if (!window) return tl::unexpected(window.error());
      auto next = planned(rule.next, shape, *window, planned_last);
      if (!next) return tl::unexpected(next.error());
      tally.planned(shape, planned_last, *next, true);
      planned_last = *next;
      pending.push_back({step + options.delay_steps, std::move(*next)});
    }
    while (!pending.empty() && pending.front().from_step <= step) {
      in_force = std::move(pending.front().map);
      copies = experts::copies_of(shape, in_force);
      pending.pop_front();
    }
    tally.add(shape, loads.at(step, layer), in_force, copies);
  }
  return {};
}

void score_steps(const Loads& loads, std::int32_t layer, std::int32_t first, std::int32_t count,
                 const Shape& shape, const SlotMap& map, Tally& tally) {
  const std::vector<std::int32_t> copies = experts::copies_of(shape, map);
  for (std::int32_t step = first; step < first + count; ++step)
    tally.add(shape, loads.at(step, layer), map, copies);
}

base::Status check_fit(const Loads& loads, const Shape& shape) {
  TRIMTAB_TRY(experts::check(shape));
  if (loads.experts != shape.experts) {
    return bad(fmt::format("loads of {} experts for a shape of {}", loads.experts, shape.experts));
  }
  return {};
}

Rule fixed_rule(std::string name, PlanFunction plan) { return {std::move(name), plan, plan}; }

}  // namespace

Rule no_balancing() {
  return fixed_rule("none", [](const Shape& shape, const LoadWindow&, std::span<const std::int32_t>) {
    return base::Result<SlotMap>(experts::initial_map(shape));
  });
}

Rule deepinfer_rule() {
  return fixed_rule("deepinfer", [](const Shape& shape, const LoadWindow& window,
                                    std::span<const std::int32_t>) { return deepinfer_plan(shape, window); });
}

Rule deepseek_rule() {
  return fixed_rule("deepseek",
                    [](const Shape& shape, const LoadWindow& window, std::span<const std::int32_t>) {
                      return deepseek_plan(shape, window.totals());
                    });
}

base::Result<Score> roll(const Loads& loads, const Shape& shape, const Rule& rule,
                         const RollingOptions& options) {
  TRIMTAB_TRY(check_fit(loads, shape));
  const std::int32_t end = options.end_step > 0 ? options.end_step : loads.steps;
  if (options.period_steps < 1 || options.window_steps < 1 || options.delay_steps < 0) {
    return bad(
        fmt::format("period {}, window {} and delay {} steps: the first two are at least 1, the last 0",
                    options.period_steps, options.window_steps, options.delay_steps));
  }
  if (end > loads.steps || options.first_plan_step >= end) {
    return bad(fmt::format("scoring steps {} to {} of {}: there is nothing to score", options.first_plan_step,
                           end, loads.steps));
  }
  Tally tally;
  for (std::int32_t layer = 0; layer < loads.layers; ++layer) {
    TRIMTAB_TRY(roll_layer(loads, layer, shape, rule, options, tally));
  }
  return tally.score(shape, loads.layers);
}

base::Result<Score> hold_out(const Loads& loads, const Shape& shape, const Rule& rule,
                             std::int32_t window_steps, bool stale) {
  TRIMTAB_TRY(check_fit(loads, shape));
  if (window_steps < 1 || loads.steps / 3 < window_steps) {
    return bad(fmt::format("loads of {} steps do not hold three windows of {}", loads.steps, window_steps));
  }
  Tally tally;
  for (std::int32_t layer = 0; layer < loads.layers; ++layer) {
    const auto first = loads.window(layer, 0, window_steps),
               second = loads.window(layer, window_steps, window_steps);
    if (!first) return tl::unexpected(first.error());
    if (!second) return tl::unexpected(second.error());
    const SlotMap start = experts::initial_map(shape);
    auto map = planned(rule.first, shape, *first, start);
    if (!map) return tl::unexpected(map.error());
    tally.planned(shape, start, *map, false);
    if (!stale) {
      auto next = planned(rule.next, shape, *second, *map);
      if (!next) return tl::unexpected(next.error());
      tally.planned(shape, *map, *next, true);
      map = std::move(next);
    }
    score_steps(loads, layer, 2 * window_steps, window_steps, shape, *map, tally);
  }
  return tally.score(shape, loads.layers);
}

base::Result<Score> in_window(const Loads& loads, const Loads& scored, const Shape& shape, const Rule& rule,
                              std::int32_t window_steps) {
  TRIMTAB_TRY(check_fit(loads, shape));
  TRIMTAB_TRY(check_fit(scored, shape));
  if (scored.layers != loads.layers || scored.steps < window_steps) {
    return bad(fmt::format("scoring on {} steps of {} layers, planning on {} steps of {}", scored.steps,
                           scored.layers, window_steps, loads.layers));
  }
  Tally tally;
  for (std::int32_t layer = 0; layer < loads.layers; ++layer) {
    const auto window = loads.window(layer, 0, window_steps);
    if (!window) return tl::unexpected(window.error());
    const SlotMap start = experts::initial_map(shape);
    const auto map = planned(rule.first, shape, *window, start);
    if (!map) return tl::unexpected(map.error());
    tally.planned(shape, start, *map, false);
    score_steps(scored, layer, 0, window_steps, shape, *map, tally);
  }
  return tally.score(shape, loads.layers);
}

Mean mean_of(std::span<const double> values) {
  Mean out;
  if (values.empty()) return out;
  const auto count = static_cast<double>(values.size());
  for (const double value : values) out.mean += value / count;
  double squares = 0;
  for (const double value : values) squares += (value - out.mean) * (value - out.mean);
  if (values.size() > 1) out.standard_error = std::sqrt(squares / (count - 1) / count);
  return out;
}

Paired paired(std::span<const double> a, std::span<const double> b) {
  std::vector<double> differences(std::min(a.size(), b.size()));
  for (std::size_t i = 0; i < differences.size(); ++i) differences[i] = a[i] - b[i];
  const Mean mean = mean_of(differences);
  // Student's t at 97.5 % for 1 to 30 degrees of freedom; beyond, its expansion about the normal's.
  constexpr std::array<double, 30> kStudent{12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306,
                                            2.262,  2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
                                            2.110,  2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064,
                                            2.060,  2.056, 2.052, 2.048, 2.045, 2.042};
  const std::size_t freedom = differences.empty() ? 0 : differences.size() - 1;
  double t = 0;
  if (freedom > 0)
    t = freedom <= kStudent.size() ? kStudent[freedom - 1] : 1.96 + 2.37 / static_cast<double>(freedom);
  return {mean.mean, mean.standard_error, mean.mean + t * mean.standard_error,
          static_cast<std::int32_t>(differences.size())};
}

}  // namespace trimtab::experts_eval
