#include <fmt/format.h>
#include <unistd.h>

#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/commands.h"
#include "apps/experts_commands.h"
#include "apps/experts_html.h"
#include "apps/experts_inputs.h"
#include "apps/experts_rolling.h"
#include "apps/experts_view.h"
#include "apps/simulate_output.h"
#include "report/table.h"

namespace trimtab::apps {

namespace {

struct EvaluateCommand {
  LoadArguments loads;
  ShapeArguments shape;
  std::string map, against, scope = "global", effort = "default", report;
  RollingArguments rolling;
  std::int32_t layer = -1;
  bool roll = false, heldout = false, json = false, all_layers = false;
};

/// Scores one layer under a map and, if there is one, under another.
base::Result<LayerScore> score_layer(const experts::Shape& shape, const experts::LoadWindow& window,
                                     std::span<const std::int32_t> map, std::span<const std::int32_t> against,
                                     std::int32_t layer) {
  for (const auto& each : {map, against}) {
    if (each.empty()) continue;
    if (auto status = experts::check(shape, each, /*distinct=*/false); !status) {
      status.error().message = fmt::format("layer {}: {}", layer, status.error().message);
      return tl::unexpected(status.error());
    }
  }
  LayerScore score{layer, experts::balance_of(shape, map, window).of_sums, 0, 0, 0};
  for (const double total : window.totals()) score.tokens += total;
  if (!against.empty()) {
    score.after = experts::balance_of(shape, against, window).of_sums;
    score.received = experts::received_copies(shape, map, against);
  }
  return score;
}

std::string rules_table(const std::vector<RuleScore>& rules, const report::Style& style) {
  report::Table table({{"rule", report::Align::kLeft},
                       {"balance"},
                       {"mean ratio"},
                       {"moves/layer/step"},
                       {"moved/plan"},
                       {"duplicates"}});
  for (const RuleScore& rule : rules) {
    table.add_row({rule.name, fmt::format("{:.4f}", rule.score.of_sums),
                   fmt::format("{:.4f}", rule.score.mean_ratio), fmt::format("{:.2f}", rule.score.moves),
                   fmt::format("{:.1f} %", 100 * rule.score.slots_moved_ratio),
                   fmt::format("{}", rule.score.duplicates)});
  }
  return table.text(style);
}

nlohmann::json rules_json(const std::vector<RuleScore>& rules) {
  nlohmann::json out = nlohmann::json::array();
  for (const RuleScore& rule : rules) {
    out.push_back({{"rule", rule.name},
                   {"balance", rule.score.of_sums},
                   {"mean_ratio", rule.score.mean_ratio},
                   {"moves_per_layer_step", rule.score.moves},
                   {"slots_moved_ratio", rule.score.slots_moved_ratio},
                   {"duplicates", rule.score.duplicates}});
  }
  return out;
}

base::Status run_rules(EvaluateCommand command, const io::ExpertLoads& loads, const experts::Shape& shape) {
  TRIMTAB_TRY(check_move_limits(command.rolling.options.moves_max, command.rolling.options.move_price));
  command.rolling.options.scope = scope_of(command.scope);
  command.rolling.options.effort = effort_of(command.effort);
  if (command.rolling.options.recency_steps == 0 && command.roll) command.rolling.options.recency_steps = 15;
  const auto rules = command.roll ? roll_rules(loads, shape, command.rolling)
                                  : hold_out_rules(loads, shape, command.rolling);
  if (!rules) return tl::unexpected(rules.error());
  if (!command.report.empty()) {
    const std::string how =
        command.roll ? fmt::format("rolling: plans from the last {} steps", command.rolling.window)
                     : fmt::format("held out: planned on two windows of {} steps, scored on the next",
                                   command.rolling.window);
    TRIMTAB_TRY(write_text(
        command.report,
        rules_html(*rules, "Rules of planning experts",
                   fmt::format("{} layers of {} experts, {} steps; {} slots on {} ranks; {}", loads.layers,
                               loads.experts, loads.steps, shape.slots, shape.ranks, how))));
  }
  if (command.json) {
    std::cout << rules_json(*rules).dump(1) << "\n";
    return {};
  }
  std::cout << fmt::format("{} layers of {} experts, {} steps; {} slots on {} ranks\n", loads.layers,
                           loads.experts, loads.steps, shape.slots, shape.ranks);
  std::cout
      << (command.roll
              ? fmt::format(
                    "rolling: plans from the last {} steps, scored on every step after the first plan\n\n",
                    command.rolling.window)
              : fmt::format("held out: planned on two windows of {} steps, scored on the next\n\n",
                            command.rolling.window));
  std::cout << rules_table(*rules, report::terminal_style(STDOUT_FILENO));
  return {};
}

std::string maps_page(const EvaluateCommand& command, const io::ExpertLoads& loads,
                      const experts::Shape& shape, const io::ExpertMaps* map, const io::ExpertMaps* against,
                      const std::vector<LayerScore>& scores) {
  MapsPage page;
  page.title = against == nullptr ? "Expert map" : "Expert maps";
  page.subtitle = fmt::format("{} layers of {} experts, {} steps; {} slots on {} ranks", loads.layers,
                              loads.experts, loads.steps, shape.slots, shape.ranks);
  page.before_name = map == nullptr ? "experts by number, as engines start" : command.map;
  page.scores = scores;
  page.shape = page.shape_before = shape;
  for (std::int32_t layer = 0; layer < loads.layers; ++layer) {
    const auto copy = [layer](const io::ExpertMaps& of) {
      const auto slots = layer_of(of, layer);
      return experts::SlotMap(slots.begin(), slots.end());
    };
    page.before.push_back(map == nullptr ? experts::initial_map(shape) : copy(*map));
    if (against != nullptr) page.after.push_back(copy(*against));
  }
  if (against != nullptr) page.after_name = command.against;
  page.layer = command.layer >= 0 ? command.layer : worst_layer(scores);
  return maps_html(page, loads);
}

base::Status run_maps(const EvaluateCommand& command, const io::ExpertLoads& loads,
                      const experts::Shape& shape, const io::ExpertMaps* map, const io::ExpertMaps* against) {
  const experts::SlotMap initial = map == nullptr ? experts::initial_map(shape) : experts::SlotMap{};
  std::vector<LayerScore> scores;
  for (std::int32_t layer = 0; layer < loads.layers; ++layer) {
    const auto window = window_of(loads, layer);
    if (!window) return tl::unexpected(window.error());
    const auto first = map == nullptr ? std::span<const std::int32_t>(initial) : layer_of(*map, layer);
    const auto second = against == nullptr ? std::span<const std::int32_t>{} : layer_of(*against, layer);
    const auto score = score_layer(shape, *window, first, second, layer);
    if (!score) return tl::unexpected(score.error());
    scores.push_back(*score);
  }
  if (!command.report.empty())
    TRIMTAB_TRY(write_text(command.report, maps_page(command, loads, shape, map, against, scores)));
  if (command.json) {
    nlohmann::json out = {{"balance", total_before(scores)}, {"layers", nlohmann::json::array()}};
    if (against != nullptr)
      out["against"] = {{"balance", total_after(scores)}, {"copies_received", total_received(scores)}};
    for (const LayerScore& score : scores) {
      nlohmann::json row = {{"layer", score.layer}, {"balance", score.before}};
      if (against != nullptr) row["against_balance"] = score.after, row["copies_received"] = score.received;
      out["layers"].push_back(std::move(row));
    }
    std::cout << out.dump(1) << "\n";
    return {};
  }
  const report::Style style = report::terminal_style(STDOUT_FILENO);
  const std::string name = map == nullptr ? "experts by number, as engines start" : command.map;
  std::cout << fmt::format("{} layers of {} experts, {} steps; {} slots on {} ranks; {}{}\n\n", loads.layers,
                           loads.experts, loads.steps, shape.slots, shape.ranks, name,
                           against == nullptr ? "" : " (before) against " + command.against + " (after)");
  std::cout << layers_table(scores, shape, command.all_layers ? scores.size() : 8,
                            against != nullptr ? LayerColumns::kMoves : LayerColumns::kOne, style);
  const std::int32_t shown = command.layer >= 0 ? command.layer : worst_layer(scores);
  const auto window = window_of(loads, shown);
  if (!window) return tl::unexpected(window.error());
  const auto first = map == nullptr ? std::span<const std::int32_t>(initial) : layer_of(*map, shown);
  const auto bars = rank_loads(shape, first, *window);
  std::cout << fmt::format("\nlayer {}{}: tokens of each rank / the mean rank\n", shown,
                           command.layer >= 0 ? "" : ", the worst");
  std::cout << (against == nullptr
                    ? rank_chart({}, bars, style)
                    : rank_chart(bars, rank_loads(shape, layer_of(*against, shown), *window), style));
  return {};
}

base::Status run(EvaluateCommand command) {
  if (command.roll && command.heldout)
    return wrong("--rolling and --heldout are two questions; ask one at a time");
  TRIMTAB_TRY(check_writable("--report", command.report));
  const bool rules = command.roll || command.heldout;
  const std::int32_t window = command.loads.options.window;
  if (rules) command.loads.options.window = 0;  // there it is what plans see, not what is read
  const auto loads = read_loads(command.loads, std::cerr);
  if (!loads) return tl::unexpected(loads.error());
  if (rules) command.rolling.window = window > 0 ? window : command.roll ? 40 : loads->steps / 3;
  std::optional<io::ExpertMaps> map, against;
  for (auto [path, into] : {std::pair(&command.map, &map), std::pair(&command.against, &against)}) {
    if (path->empty()) continue;
    auto maps = read_map(*path, loads->layers, loads->experts);
    if (!maps) return tl::unexpected(maps.error());
    *into = std::move(*maps);
  }
  if (rules && (map || against)) {
    return wrong("--rolling and --heldout compare rules of planning; leave --map and --against out");
  }
  const io::ExpertMaps* shaped = map ? &*map : against ? &*against : nullptr;
  const auto shape = shape_of(command.shape, loads->experts, shaped, std::cerr);
  if (!shape) return tl::unexpected(shape.error());
  if (command.layer < -1 || command.layer >= loads->layers) {
    return wrong(fmt::format("--layer {}: the loads have layers 0 to {}", command.layer, loads->layers - 1));
  }
  if (rules) return run_rules(command, *loads, *shape);
  return run_maps(command, *loads, *shape, map ? &*map : nullptr, against ? &*against : nullptr);
}

}  // namespace

void add_experts_evaluate(CLI::App& experts) {
  auto options = std::make_shared<EvaluateCommand>();
  CLI::App* command =
      experts.add_subcommand("evaluate", "score a map on recorded loads, or planning rules as time goes by");
  add_load_options(*command, options->loads);
  add_shape_options(*command, options->shape);
  command->add_option("--map", options->map, "the map to score; else experts by number, as engines start");
  command->add_option("--against", options->against, "a second map, beside the first");
  command->add_flag(
      "--rolling", options->roll,
      "replay: plan again and again from the last --window steps (40), score every step; beside "
      "DeepInfer's rule and no balancing");
  command->add_flag("--heldout", options->heldout, "plan on two windows, score on the next");
  command->add_option("--every", options->rolling.every, "--rolling: steps between our plans")
      ->capture_default_str();
  command
      ->add_option("--peer-every", options->rolling.peer_every,
                   "--rolling: steps between plans of DeepInfer's rule")
      ->capture_default_str();
  command->add_option("--delay", options->rolling.delay, "--rolling: a plan takes effect so many steps later")
      ->capture_default_str();
  command->add_option("--first-step", options->rolling.first_step, "--rolling: the step of the first plan");
  command->add_option("--move-price", options->rolling.options.move_price, "as for plan");
  command->add_option("--moves-max", options->rolling.options.moves_max, "as for plan");
  command->add_option("--recency-steps", options->rolling.options.recency_steps,
                      "as for plan; --rolling: 15");
  command->add_option("--scope", options->scope, "as for plan")
      ->check(CLI::IsMember({"global", "hierarchical"}))
      ->capture_default_str();
  command->add_option("--effort", options->effort, "as for plan")
      ->check(CLI::IsMember({"fast", "default", "quality"}))
      ->capture_default_str();
  command->add_option("--threads", options->rolling.threads, "0: all cores")->capture_default_str();
  command->add_option("--layer", options->layer, "the layer whose ranks are drawn; else the worst");
  command->add_flag("--all-layers", options->all_layers, "a row for every layer");
  command->add_flag("--json", options->json, "for programs");
  command->add_option("--report", options->report, "write an HTML page");
  command->footer(
      "Examples:\n"
      "  trimtab experts evaluate tomorrow.npz --map plan.npz           # does the plan hold on other "
      "loads?\n"
      "  trimtab experts evaluate loads.npz --map old.npz --against new.npz\n"
      "  trimtab experts evaluate loads.npz --ep-size 8 --num-redundant-experts 32 --rolling");
  command->callback([options] { finish(run(*options)); });
}

}  // namespace trimtab::apps
