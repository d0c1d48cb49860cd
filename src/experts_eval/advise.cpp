#include "experts_eval/advise.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "experts_eval/rolling.h"
#include "policy/experts/plan/planner.h"

namespace trimtab::experts_eval {
namespace {

using experts::Shape;

tl::unexpected<base::Error> bad(std::string message) {
  return base::fail(base::Code::kInvalidArgument, std::move(message), "experts_eval");
}

base::Status check(const Loads& loads, const AdviseOptions& options) {
  if (options.ep_sizes.empty() || options.redundant_per_rank.empty()) {
    return bad("nothing to compare: give at least one EP size and one number of redundant slots a rank");
  }
  for (const std::int32_t ranks : options.ep_sizes) {
    if (ranks < 1) return bad(fmt::format("EP size {}: must be at least 1", ranks));
  }
  for (const std::int32_t extra : options.redundant_per_rank) {
    if (extra < 0) return bad(fmt::format("{} redundant slots a rank: must be at least 0", extra));
  }
  if (!(options.moe_step_share > 0 && options.moe_step_share <= 1)) {
    return bad(
        fmt::format("MoE share of a step = {}: must lie above 0 and at most at 1", options.moe_step_share));
  }
  if (options.expert_bytes < 1 || options.step_ns < 1 || !(options.link_bytes_per_second > 0)) {
    return bad(fmt::format("expert bytes {}, step {} ns, link {} bytes a second: all must be positive",
                           options.expert_bytes, options.step_ns, options.link_bytes_per_second));
  }
  if (!(options.moves_stall_share >= 0 && options.moves_stall_share <= 1)) {
    return bad(fmt::format("stalling share of moves = {}: must lie in 0 to 1", options.moves_stall_share));
  }
  if (options.window_steps < 1 || options.period_steps.empty()) {
    return bad(fmt::format("window {} steps, {} periods: there must be at least one of each",
                           options.window_steps, options.period_steps.size()));
  }
  for (const std::int32_t period : options.period_steps) {
    if (period < 1) return bad(fmt::format("a period of {} steps: must be at least 1", period));
  }
  if (loads.steps <= options.window_steps) {
    return bad(fmt::format(
        "{} recorded steps leave none to score after a window of {}: record more steps, or take a "
        "smaller window",
        loads.steps, options.window_steps));
  }
  return {};
}

/// Layers spread evenly over those recorded.
Loads sample(const Loads& loads, std::int32_t layers_max) {
  if (layers_max < 1 || layers_max >= loads.layers) return loads;
  Loads out{loads.steps, layers_max, loads.experts, {}};
  out.counts.reserve(static_cast<std::size_t>(loads.steps) * static_cast<std::size_t>(layers_max) *
                     static_cast<std::size_t>(loads.experts));
  for (std::int32_t step = 0; step < loads.steps; ++step) {
    for (std::int32_t i = 0; i < layers_max; ++i) {
      const std::int32_t* row = loads.at(step, i * loads.layers / layers_max);
      out.counts.insert(out.counts.end(), row, row + loads.experts);
    }
  }
  return out;
}

Shape shape_of(const Loads& loads, std::int32_t ranks, std::int32_t extra) {
  const std::int64_t least = experts::physical_slots(loads.experts, 0, ranks);
  return {loads.experts, static_cast<std::int32_t>(least + static_cast<std::int64_t>(extra) * ranks), ranks,
          1, 1};
}

/// Received copies per layer of the first plan, from the map by number.
base::Result<double> first_moves(const Loads& loads, const Shape& shape, const Rule& rule,
                                 std::int32_t window_steps) {
  std::int64_t moves = 0;
  const experts::SlotMap start = experts::initial_map(shape);
  for (std::int32_t layer = 0; layer < loads.layers; ++layer) {
    const auto window = loads.window(layer, 0, window_steps);
    if (!window) return tl::unexpected(window.error());
    const auto map = rule.first(shape, *window, start);
    if (!map) return tl::unexpected(map.error());
    moves += experts::received_copies(shape, start, *map);
  }
  return static_cast<double>(moves) / loads.layers;
}

std::int64_t moves_ns(double moves_per_layer, std::int32_t layers, std::int32_t ranks,
                      const AdviseOptions& options) {
  const double bytes = moves_per_layer * layers * static_cast<double>(options.expert_bytes) / ranks;
  return std::llround(bytes / options.link_bytes_per_second * 1e9);
}

/// What serving this way saves and costs, from a score of it.
void weigh(const Score& score, std::int32_t model_layers, const AdviseOptions& options, Advice& out) {
  out.balance = score.of_sums;
  out.moves_per_layer_step = score.moves, out.moves_per_plan = score.moves_per_plan;
  out.plan_moves_ns = moves_ns(score.moves_per_plan, model_layers, out.ep_size, options);
  out.step_saved_ratio = options.moe_step_share * (1 - out.balance / out.balance_none);
  const auto step_ns = static_cast<double>(options.step_ns);
  const double moving_ns = score.moves * model_layers * static_cast<double>(options.expert_bytes) /
                           out.ep_size / options.link_bytes_per_second * 1e9;
  out.step_saved_net_ratio = out.step_saved_ratio - options.moves_stall_share * moving_ns / step_ns;
  const auto pays_after = [&](std::int64_t cost_ns) {
    const double stall_ns = options.moves_stall_share * static_cast<double>(cost_ns);
    if (stall_ns == 0) return 0.0;
    const double saved_ns = out.step_saved_ratio * step_ns;
    return saved_ns > 0 ? stall_ns / saved_ns : std::numeric_limits<double>::infinity();
  };
  out.break_even_steps = pays_after(out.first_moves_ns);
  out.period_min_steps = pays_after(out.plan_moves_ns);
}

base::Result<Advice> advise_one(const Loads& loads, std::int32_t model_layers, const Shape& shape,
                                double balance_none, const AdviseOptions& options) {
  experts::PlanOptions plan;
  plan.start = experts::Start::kIncremental;
  plan.recency_steps = options.recency_steps;
  plan.move_price = options.move_price;
  const Rule rule = own_rule("own", plan);
  RollingOptions rolling;
  rolling.window_steps = rolling.first_plan_step = options.window_steps;
  const auto still = roll(loads, shape, no_balancing(), rolling);
  if (!still) return tl::unexpected(still.error());
  const auto first = first_moves(loads, shape, rule, options.window_steps);
  if (!first) return tl::unexpected(first.error());
  Advice out;
  out.ep_size = shape.ranks, out.slots = shape.slots, out.slots_per_rank = shape.slots_per_rank();
  out.redundant = shape.redundant();
  out.balance_none = balance_none, out.balance_static = still->of_sums;
  out.memory_bytes = static_cast<std::int64_t>(shape.redundant()) * model_layers * options.expert_bytes;
  out.memory_bytes_per_rank = out.memory_bytes / shape.ranks;
  out.first_moves_ns = moves_ns(*first, model_layers, shape.ranks, options);
  for (const std::int32_t period : options.period_steps) {
    rolling.period_steps = period;
    const auto score = roll(loads, shape, rule, rolling);
    if (!score) return tl::unexpected(score.error());
    Advice tried = out;
    tried.period_steps = period;
    weigh(*score, model_layers, options, tried);
    if (out.period_steps == 0 || tried.step_saved_net_ratio > out.step_saved_net_ratio) out = tried;
  }
  return out;
}

/// Marks, on a curve that falls less and less, the point furthest below the chord from its first to its last
/// point.
void mark_knee(std::span<Advice> curve) {
  if (curve.size() < 3) return;
  std::vector<std::size_t> order(curve.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return curve[i].slots; });
  const Advice &first = curve[order.front()], &last = curve[order.back()];
  const double width = last.slots - first.slots, height = first.balance - last.balance;
  if (width <= 0 || height <= 0) return;
  std::size_t best = order.front();
  double furthest = 0;
  for (const std::size_t i : order) {
    const double distance =
        (first.balance - curve[i].balance) / height - (curve[i].slots - first.slots) / width;
    if (distance > furthest) furthest = distance, best = i;
  }
  if (furthest > 0) curve[best].knee = true;
}

}  // namespace

base::Result<AdviseResult> advise(const Loads& loads, const AdviseOptions& options) {
  TRIMTAB_TRY(check(loads, options));
  const Loads scored = sample(loads, options.layers_max);
  const std::int32_t model_layers = options.model_layers > 0 ? options.model_layers : loads.layers;
  AdviseResult result;
  result.layers_scored = scored.layers;
  result.steps_scored = scored.steps - options.window_steps;
  for (const std::int32_t ranks : options.ep_sizes) {
    const std::size_t begin = result.rows.size();
    const Shape bare = shape_of(loads, ranks, 0);
    RollingOptions none;
    none.window_steps = none.first_plan_step = options.window_steps;
    const auto unbalanced = roll(scored, bare, no_balancing(), none);
    if (!unbalanced) return tl::unexpected(unbalanced.error());
    for (const std::int32_t extra : options.redundant_per_rank) {
      const Shape shape = shape_of(loads, ranks, extra);
      auto row = advise_one(scored, model_layers, shape, unbalanced->of_sums, options);
      if (!row) return tl::unexpected(row.error());
      result.rows.push_back(*row);
    }
    mark_knee(std::span(result.rows).subspan(begin));
  }
  double best = -std::numeric_limits<double>::infinity();
  for (const Advice& row : result.rows) best = std::max(best, row.step_saved_net_ratio);
  std::int32_t fewest = std::numeric_limits<std::int32_t>::max();
  for (std::size_t i = 0; i < result.rows.size(); ++i) {
    const Advice& row = result.rows[i];
    if (row.step_saved_net_ratio < best - 1e-3 || row.slots >= fewest) continue;
    fewest = row.slots, result.best_row = static_cast<std::int32_t>(i);
  }
  return result;
}

std::string describe(const Advice& advice) {
  const std::string gain =
      std::isfinite(advice.break_even_steps)
          ? fmt::format("pays for the first move after {:.0f} steps", std::ceil(advice.break_even_steps))
          : std::string("never pays for its moves");
  return fmt::format(
      "EP{}, {} slots ({} a rank, {} redundant), every {} steps: busiest over mean {:.3f} -> {:.3f}, {:.2f} "
      "% of a step "
      "saved ({:.2f} % after moves), {:.2f} GB a rank ({:.1f} GB in all), {}{}",
      advice.ep_size, advice.slots, advice.slots_per_rank, advice.redundant, advice.period_steps,
      advice.balance_none, advice.balance, 100 * advice.step_saved_ratio, 100 * advice.step_saved_net_ratio,
      static_cast<double>(advice.memory_bytes_per_rank) / 1e9, static_cast<double>(advice.memory_bytes) / 1e9,
      gain, advice.knee ? "; the knee of the curve" : "");
}

}  // namespace trimtab::experts_eval
