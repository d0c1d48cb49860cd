#include "apps/experts_rolling.h"

#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <limits>
#include <optional>

#include "apps/experts_inputs.h"
#include "apps/experts_view.h"
#include "experts_host/plan_layers.h"

namespace trimtab::apps {

namespace {

using experts_eval::Loads;
using experts_eval::Score;

/// A count as a whole number of tokens.
base::Result<std::int32_t> tokens_of(double count, std::size_t step, std::size_t layer, std::size_t expert) {
  if (count == std::floor(count) && count <= std::numeric_limits<std::int32_t>::max()) {
    return static_cast<std::int32_t>(count);
  }
  return wrong(fmt::format(
      "step {}, layer {}, expert {}: {} is no whole number of tokens up to 2^31 - 1; replaying needs "
      "tokens, not averages",
      step, layer, expert, count));
}

using Evaluate = std::function<base::Result<Score>(const Loads&, const experts_eval::Rule&)>;

/// Scores of layers into one: balances by the layers' tokens, moves as means.
Score joined(const std::vector<Score>& scores, const std::vector<double>& tokens) {
  Score out;
  double peaks = 0, means = 0, ratios = 0;
  const auto layers = static_cast<double>(scores.size());
  for (std::size_t i = 0; i < scores.size(); ++i) {
    peaks += scores[i].of_sums * tokens[i];
    means += tokens[i];
    ratios += scores[i].mean_ratio / layers;
    out.moves += scores[i].moves / layers;
    out.moves_per_plan += scores[i].moves_per_plan / layers;
    out.slots_moved_ratio += scores[i].slots_moved_ratio / layers;
    out.duplicates += scores[i].duplicates;
    out.plans = scores[i].plans;
  }
  out.of_sums = means > 0 ? peaks / means : 1;
  out.mean_ratio = ratios;
  return out;
}

base::Result<Score> over_layers(const io::ExpertLoads& loads, std::int32_t scored_from, std::int32_t threads,
                                Progress& progress, const experts_eval::Rule& rule,
                                const Evaluate& evaluate) {
  const auto layers = static_cast<std::size_t>(loads.layers);
  std::vector<std::optional<base::Result<Score>>> found(layers);
  std::vector<double> tokens(layers, 0);
  experts_host::each_layer(loads.layers, threads, [&](std::int32_t layer) {
    const auto at = static_cast<std::size_t>(layer);
    const auto one = layer_tokens(loads, layer);
    if (!one) {
      found[at] = base::Result<Score>(tl::unexpected(one.error()));
    } else {
      for (std::size_t i = static_cast<std::size_t>(scored_from) * static_cast<std::size_t>(loads.experts);
           i < one->counts.size(); ++i) {
        tokens[at] += one->counts[i];
      }
      found[at] = evaluate(*one, rule);
    }
    progress.tick();
  });
  std::vector<Score> scores;
  for (auto& score : found) {
    if (!*score) return tl::unexpected(score->error());
    scores.push_back(**score);
  }
  return joined(scores, tokens);
}

base::Result<std::vector<RuleScore>> run_rules(
    const io::ExpertLoads& loads, std::int32_t scored_from, std::int32_t threads,
    const std::vector<std::pair<experts_eval::Rule, Evaluate>>& rules) {
  Progress progress("evaluating", loads.layers * static_cast<std::int32_t>(rules.size()));
  std::vector<RuleScore> out;
  for (const auto& [rule, evaluate] : rules) {
    const auto score = over_layers(loads, scored_from, threads, progress, rule, evaluate);
    if (!score) return tl::unexpected(score.error());
    out.push_back({rule.name, *score});
  }
  return out;
}

experts_eval::Rule incremental_rule(const RollingArguments& arguments, const std::string& name) {
  experts::PlanOptions options = arguments.options;
  options.start = experts::Start::kIncremental;
  return experts_eval::own_rule(name, options);
}

}  // namespace

base::Result<Loads> layer_tokens(const io::ExpertLoads& loads, std::int32_t layer) {
  Loads out{loads.steps, 1, loads.experts, {}};
  const auto experts = static_cast<std::size_t>(loads.experts),
             layers = static_cast<std::size_t>(loads.layers);
  out.counts.reserve(static_cast<std::size_t>(loads.steps) * experts);
  for (std::size_t step = 0; step < static_cast<std::size_t>(loads.steps); ++step) {
    const double* row = loads.counts.data() + (step * layers + static_cast<std::size_t>(layer)) * experts;
    for (std::size_t expert = 0; expert < experts; ++expert) {
      const auto tokens = tokens_of(row[expert], step, static_cast<std::size_t>(layer), expert);
      if (!tokens) return tl::unexpected(tokens.error());
      out.counts.push_back(*tokens);
    }
  }
  return out;
}

base::Result<Loads> all_tokens(const io::ExpertLoads& loads) {
  Loads out{loads.steps, loads.layers, loads.experts, {}};
  out.counts.reserve(loads.counts.size());
  const auto experts = static_cast<std::size_t>(loads.experts),
             layers = static_cast<std::size_t>(loads.layers);
  for (std::size_t i = 0; i < loads.counts.size(); ++i) {
    const auto tokens = tokens_of(loads.counts[i], i / (layers * experts), i / experts % layers, i % experts);
    if (!tokens) return tl::unexpected(tokens.error());
    out.counts.push_back(*tokens);
  }
  return out;
}

base::Result<std::vector<RuleScore>> roll_rules(const io::ExpertLoads& loads, const experts::Shape& shape,
                                                const RollingArguments& arguments) {
  if (arguments.peer_every < 1) {
    return wrong(fmt::format("--peer-every {}: give 1 step or more", arguments.peer_every));
  }
  const std::int32_t first = arguments.first_step != 0 ? arguments.first_step : arguments.window;
  if (arguments.window < 1 || arguments.every < 1 || arguments.delay < 0 || first < arguments.window) {
    return wrong(fmt::format(
        "--window {}, --every {}, --delay {}, --first-step {}: give positive numbers, and a first "
        "plan no earlier than the first window's end",
        arguments.window, arguments.every, arguments.delay, first));
  }
  if (loads.steps <= first) {
    return wrong(
        fmt::format("--rolling needs more than {} steps (the first window) and the dump has {}; record more, "
                    "or set --window smaller",
                    first, loads.steps));
  }
  const auto rolled = [&](std::int32_t period) -> Evaluate {
    experts_eval::RollingOptions options;
    options.window_steps = arguments.window;
    options.period_steps = period;
    options.delay_steps = arguments.delay;
    options.first_plan_step = first;
    return [&shape, options](const Loads& one, const experts_eval::Rule& rule) {
      return experts_eval::roll(one, shape, rule, options);
    };
  };
  auto by_number = experts_eval::no_balancing();
  by_number.name = "by number, never re-placed";
  auto peer = experts_eval::deepinfer_rule();
  peer.name = fmt::format("DeepInfer's rule every {} steps", arguments.peer_every);
  auto own = incremental_rule(arguments, fmt::format("trimtab incremental every {} steps", arguments.every));
  return run_rules(loads, first, arguments.threads,
                   {{by_number, rolled(arguments.peer_every)},
                    {peer, rolled(arguments.peer_every)},
                    {own, rolled(arguments.every)}});
}

base::Result<std::vector<RuleScore>> hold_out_rules(const io::ExpertLoads& loads, const experts::Shape& shape,
                                                    const RollingArguments& arguments) {
  if (arguments.window < 1 || 3 * static_cast<std::int64_t>(arguments.window) > loads.steps) {
    return wrong(
        fmt::format("--heldout needs three windows of {} steps and the dump has {} steps; set --window to at "
                    "most {}",
                    arguments.window, loads.steps, loads.steps / 3));
  }
  const auto held = [&](bool stale) -> Evaluate {
    return [&, stale](const Loads& one, const experts_eval::Rule& rule) {
      return experts_eval::hold_out(one, shape, rule, arguments.window, stale);
    };
  };
  auto by_number = experts_eval::no_balancing();
  by_number.name = "by number, never re-placed";
  auto peer = experts_eval::deepinfer_rule();
  peer.name = "DeepInfer's rule";
  auto stale = incremental_rule(arguments, "the first plan kept");
  auto own = incremental_rule(arguments, "trimtab incremental");
  return run_rules(loads, 2 * arguments.window, arguments.threads,
                   {{by_number, held(false)}, {peer, held(false)}, {stale, held(true)}, {own, held(false)}});
}

}  // namespace trimtab::apps
