#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/commands.h"
#include "apps/experts_commands.h"
#include "apps/experts_html.h"
#include "apps/experts_inputs.h"
#include "apps/experts_view.h"
#include "apps/simulate_output.h"
#include "experts_host/plan_layers.h"

namespace trimtab::apps {

namespace {

struct PlanCommand {
  LoadArguments loads;
  ShapeArguments shape;
  std::string current, mode, scope = "global", effort = "default", expert_bytes = "44MB", output, format,
                             report;
  double move_price = -1, recency_steps = 0;
  std::int32_t moves_max = -1, threads = 0, layer = -1;
  std::uint64_t seed = 1;
  bool json = false, all_layers = false;
};

struct LayerPlan {
  experts::Plan plan;
  LayerScore score;
  std::vector<double> ranks_before, ranks_after;
};

/// What a flag would silently do nothing for is an error: a cap on moves that does not cap is costly.
base::Status check_flags(const PlanCommand& command, bool incremental) {
  TRIMTAB_TRY(check_move_limits(command.moves_max, command.move_price));
  if (command.layer < -1) return wrong(fmt::format("--layer {}: give 0 or more", command.layer));
  if (!incremental && (command.moves_max >= 0 || command.move_price >= 0)) {
    return wrong(fmt::format(
        "{} holds for incremental plans: {}", command.moves_max >= 0 ? "--moves-max" : "--move-price",
        command.current.empty() ? "give the map in force with --current FILE" : "leave --mode fresh out"));
  }
  if (incremental && command.recency_steps > 0) {
    return wrong(
        "--recency-steps weighs the window of fresh plans, and an incremental plan forecasts from "
        "the latest steps anyway: leave it out");
  }
  return {};
}

base::Result<experts::PlanOptions> options_of(const PlanCommand& command) {
  experts::PlanOptions options;
  const bool incremental = command.mode.empty() ? !command.current.empty() : command.mode == "incremental";
  if (incremental && command.current.empty()) {
    return wrong("--mode incremental starts from the map in force: give it with --current FILE");
  }
  if (const auto status = check_flags(command, incremental); !status) return tl::unexpected(status.error());
  if (command.threads < 0)
    return wrong(fmt::format("--threads {}: give 1 or more, or 0 for all cores", command.threads));
  if (!(command.recency_steps >= 0)) {
    return wrong(fmt::format("--recency-steps {}: give a number of steps, or 0 to weigh all steps alike",
                             command.recency_steps));
  }
  options.start = incremental ? experts::Start::kIncremental : experts::Start::kFresh;
  options.scope = scope_of(command.scope);
  options.effort = effort_of(command.effort);
  options.move_price = command.move_price;
  options.moves_max = command.moves_max;
  options.recency_steps = command.recency_steps;
  options.seed = command.seed;
  return options;
}

/// Without a map in force, "before" is how engines start: experts by number.
base::Result<LayerPlan> plan_one(const experts::Shape& shape, const io::ExpertLoads& loads,
                                 const io::ExpertMaps* current, const experts::PlanOptions& options,
                                 std::int32_t layer) {
  const auto window = window_of(loads, layer);
  if (!window) return tl::unexpected(window.error());
  const auto in_force = current != nullptr ? layer_of(*current, layer) : std::span<const std::int32_t>{};
  auto plan = experts::plan_layer(shape, *window, in_force, options);
  if (!plan) return tl::unexpected(plan.error());
  experts::Shape old = shape;
  experts::SlotMap before(in_force.begin(), in_force.end());
  if (before.empty()) before = experts::initial_map(shape);
  old.slots = static_cast<std::int32_t>(before.size());
  LayerPlan out;
  // Without a map in force the engine loads this one at its start, and nothing moves.
  out.score = {layer, experts::balance_of(old, before, *window).of_sums,
               experts::balance_of(shape, plan->map, *window).of_sums, 0,
               in_force.empty() ? 0 : experts::received_copies(shape, before, plan->map)};
  for (const double total : window->totals()) out.score.tokens += total;
  out.ranks_before = rank_loads(old, before, *window);
  out.ranks_after = rank_loads(shape, plan->map, *window);
  out.plan = std::move(*plan);
  return out;
}

base::Result<std::vector<LayerPlan>> plan_all(const experts::Shape& shape, const io::ExpertLoads& loads,
                                              const io::ExpertMaps* current,
                                              const experts::PlanOptions& options, std::int32_t threads) {
  std::vector<std::optional<base::Result<LayerPlan>>> plans(static_cast<std::size_t>(loads.layers));
  Progress progress("planning", loads.layers);
  experts_host::each_layer(loads.layers, threads, [&](std::int32_t layer) {
    plans[static_cast<std::size_t>(layer)] = plan_one(shape, loads, current, options, layer);
    progress.tick();
  });
  std::vector<LayerPlan> out;
  for (std::size_t layer = 0; layer < plans.size(); ++layer) {
    auto& plan = *plans[layer];
    if (!plan) {
      // The shape and the flags are one for all layers; only loads and maps differ between them.
      plan.error().message = fmt::format("layer {}: {}", layer, plan.error().message);
      return tl::unexpected(plan.error());
    }
    out.push_back(std::move(*plan));
  }
  return out;
}

std::vector<LayerScore> scores_of(const std::vector<LayerPlan>& plans) {
  std::vector<LayerScore> scores;
  for (const LayerPlan& plan : plans) scores.push_back(plan.score);
  return scores;
}

nlohmann::json json_of(const experts::Shape& shape, const io::ExpertLoads& loads,
                       const std::vector<LayerPlan>& plans, std::int64_t expert_bytes) {
  const auto scores = scores_of(plans);
  nlohmann::json out = {
      {"num_experts", shape.experts},
      {"num_physical_experts", shape.slots},
      {"ep_size", shape.ranks},
      {"num_nodes", shape.nodes},
      {"num_groups", shape.groups},
      {"steps", loads.steps},
      {"balance_before", total_before(scores)},
      {"balance", total_after(scores)},
      {"copies_received", total_received(scores)},
      {"bytes_received", total_received(scores) * expert_bytes},
      {"redundant_bytes", static_cast<std::int64_t>(shape.redundant()) * loads.layers * expert_bytes}};
  for (const LayerPlan& plan : plans) {
    out["layers"].push_back({{"layer", plan.score.layer},
                             {"balance_before", plan.score.before},
                             {"balance", plan.score.after},
                             {"copies_received", plan.score.received},
                             {"duplicate_copies", experts::duplicate_copies(shape, plan.plan.map)},
                             {"rank_loads", plan.ranks_after}});
    out["physical_to_logical_map"].push_back(plan.plan.map);
  }
  return out;
}

void print_plan(const PlanCommand& command, const experts::Shape& shape, const io::ExpertLoads& loads,
                const std::vector<LayerPlan>& plans, const experts::PlanOptions& options,
                std::int64_t expert_bytes) {
  const report::Style style = report::terminal_style(STDOUT_FILENO);
  const auto scores = scores_of(plans);
  std::cout << fmt::format(
      "{} layers of {} experts, {} steps; {} slots on {} ranks ({} each, {} redundant), {} {} plan\n\n",
      loads.layers, loads.experts, loads.steps, shape.slots, shape.ranks, shape.slots_per_rank(),
      shape.redundant(), options.start == experts::Start::kFresh ? "a fresh" : "an incremental",
      command.scope);
  std::cout << layers_table(scores, shape, command.all_layers ? plans.size() : 8,
                            command.current.empty() ? LayerColumns::kTwo : LayerColumns::kMoves, style);
  std::cout << fmt::format("\nbalance: sum over steps of the busiest rank / the mean rank; before: {}\n",
                           command.current.empty() ? "experts by number, as engines start" : command.current);
  std::cout
      << (options.start == experts::Start::kFresh
              ? "after: on the steps that it was planned from; later ones will be less even: evaluate "
                "--heldout\n"
              : "after: on all the steps above, though the plan is for the next ones, forecast from the "
                "latest;\n"
                "where load drifts it may be above before: evaluate --rolling scores it on what comes\n");
  const double redundant = static_cast<double>(expert_bytes) * shape.redundant() * loads.layers;
  std::cout << fmt::format("memory of the redundant copies: {} in all, {} a rank, at {} a copy\n",
                           bytes_text(redundant), bytes_text(redundant / shape.ranks),
                           bytes_text(static_cast<double>(expert_bytes)));
  if (!command.current.empty()) {
    const double moved = static_cast<double>(expert_bytes) * static_cast<double>(total_received(scores));
    std::cout << fmt::format("copies to move: {}; trimtab experts moves tells bytes per rank and time\n",
                             bytes_text(moved));
  }
  const std::int32_t shown = command.layer >= 0 ? command.layer : worst_layer(scores);
  const LayerPlan& plan = plans[static_cast<std::size_t>(shown)];
  std::cout << fmt::format("\nlayer {}{}: tokens of each rank / the mean rank\n", shown,
                           command.layer >= 0 ? "" : ", the worst before");
  std::cout << rank_chart(plan.ranks_before, plan.ranks_after, style);
}

std::string plan_html(const PlanCommand& command, const experts::Shape& shape, const io::ExpertLoads& loads,
                      const io::ExpertMaps* current, const std::vector<LayerPlan>& plans) {
  MapsPage page;
  page.title = "Expert plan";
  page.subtitle = fmt::format(
      "{} layers of {} experts, {} steps; {} slots on {} ranks ({} each, {} redundant)", loads.layers,
      loads.experts, loads.steps, shape.slots, shape.ranks, shape.slots_per_rank(), shape.redundant());
  page.before_name = current == nullptr ? "experts by number, as engines start" : command.current;
  page.after_name = "planned";
  page.scores = scores_of(plans);
  page.shape = page.shape_before = shape;
  for (std::size_t layer = 0; layer < plans.size(); ++layer) {
    const auto in_force = current == nullptr ? std::span<const std::int32_t>{}
                                             : layer_of(*current, static_cast<std::int32_t>(layer));
    page.before.push_back(in_force.empty() ? experts::initial_map(shape)
                                           : experts::SlotMap(in_force.begin(), in_force.end()));
    page.after.push_back(plans[layer].plan.map);
  }
  page.shape_before.slots = static_cast<std::int32_t>(page.before[0].size());
  page.layer = command.layer >= 0 ? command.layer : worst_layer(page.scores);
  return maps_html(page, loads);
}

/// Before the work rather than after it.
base::Status check_output(const std::string& path) {
  const std::size_t end = path.find_last_of('/');
  const std::string directory = end == std::string::npos ? "." : end == 0 ? "/" : path.substr(0, end);
  if (::access(directory.c_str(), W_OK) == 0) return {};
  return base::fail(base::Code::kIo, fmt::format("--output {}: cannot write into {}: {}", path, directory,
                                                 std::strerror(errno)));
}

base::Status run(const PlanCommand& command) {
  const auto options = options_of(command);
  if (!options) return tl::unexpected(options.error());
  const auto expert_bytes = bytes_of(command.expert_bytes, "--expert-bytes");
  if (!expert_bytes) return tl::unexpected(expert_bytes.error());
  std::optional<io::MapFormat> format;
  if (!command.output.empty() || !command.format.empty()) {
    if (command.output.empty()) return wrong(fmt::format("--format {} needs --output FILE", command.format));
    const auto chosen = format_of(command.output, command.format);
    if (!chosen) return tl::unexpected(chosen.error());
    format = *chosen;
    TRIMTAB_TRY(check_output(command.output));
  }
  TRIMTAB_TRY(check_writable("--report", command.report));
  const auto loads = read_loads(command.loads, std::cerr);
  if (!loads) return tl::unexpected(loads.error());
  std::optional<io::ExpertMaps> current;
  if (!command.current.empty()) {
    auto maps = read_map(command.current, loads->layers, loads->experts);
    if (!maps) return tl::unexpected(maps.error());
    current = std::move(*maps);
  }
  const io::ExpertMaps* in_force = current ? &*current : nullptr;
  const auto shape = shape_of(command.shape, loads->experts, in_force, std::cerr);
  if (!shape) return tl::unexpected(shape.error());
  if (command.layer >= loads->layers) {
    return wrong(fmt::format("--layer {}: the loads have layers 0 to {}", command.layer, loads->layers - 1));
  }
  const auto plans = plan_all(*shape, *loads, in_force, *options, command.threads);
  if (!plans) return tl::unexpected(plans.error());
  if (command.json) {
    std::cout << json_of(*shape, *loads, *plans, *expert_bytes).dump(1) << "\n";
  } else {
    print_plan(command, *shape, *loads, *plans, *options, *expert_bytes);
  }
  if (!command.report.empty())
    TRIMTAB_TRY(write_text(command.report, plan_html(command, *shape, *loads, in_force, *plans)));
  if (!format) return {};
  io::ExpertMaps maps{loads->layers, shape->slots, loads->experts, shape->ranks, {}};
  for (const LayerPlan& plan : *plans)
    maps.logical.insert(maps.logical.end(), plan.plan.map.begin(), plan.plan.map.end());
  TRIMTAB_TRY(io::write_expert_maps(command.output, maps, *format));
  (command.json ? std::cerr : std::cout) << "\n" << usage_of(*format, command.output, *shape);
  return {};
}

}  // namespace

experts::Effort effort_of(const std::string& name) {
  return name == "fast"      ? experts::Effort::kFast
         : name == "quality" ? experts::Effort::kQuality
                             : experts::Effort::kDefault;
}

experts::Scope scope_of(const std::string& name) {
  return name == "hierarchical" ? experts::Scope::kHierarchical : experts::Scope::kGlobal;
}

void add_experts_plan(CLI::App& experts) {
  auto options = std::make_shared<PlanCommand>();
  CLI::App* command =
      experts.add_subcommand("plan", "plan the copies and places of all layers from recorded loads");
  add_load_options(*command, options->loads);
  add_shape_options(*command, options->shape);
  command
      ->add_option(
          "--mode", options->mode,
          "fresh, or incremental: from the map in force with a price on every copy moved; incremental "
          "when --current is given")
      ->check(CLI::IsMember({"fresh", "incremental"}));
  command->add_option("--current", options->current,
                      "the map in force: a plan of ours or any map file we read");
  command->add_option("--scope", options->scope, "hierarchical keeps every group of experts on one node")
      ->check(CLI::IsMember({"global", "hierarchical"}))
      ->capture_default_str();
  command->add_option("--effort", options->effort, "fast, default or quality")
      ->check(CLI::IsMember({"fast", "default", "quality"}))
      ->capture_default_str();
  command->add_option("--moves-max", options->moves_max,
                      "incremental: at most so many copies received per layer");
  command->add_option(
      "--move-price", options->move_price,
      "incremental: the part of a layer's peaks that a moved copy must save (0.0005; 0.002 from 32 ranks)");
  command
      ->add_option("--recency-steps", options->recency_steps,
                   "fresh: old steps count less: exp(-age / this); 0: all alike")
      ->capture_default_str();
  command->add_option("--seed", options->seed, "of the search")->capture_default_str();
  command->add_option("--threads", options->threads, "0: all cores; the plan is the same")
      ->capture_default_str();
  command->add_option("--expert-bytes", options->expert_bytes, "weights of one expert in one layer")
      ->capture_default_str();
  command->add_option("--layer", options->layer, "the layer whose ranks are drawn; else the worst");
  command->add_flag("--all-layers", options->all_layers, "a row for every layer");
  command->add_flag("--json", options->json, "for programs, the map included");
  command->add_option("--report", options->report, "write an HTML page: experts and ranks before and after");
  command->add_option("--output,-o", options->output, "write the map");
  command->add_option("--format", options->format, "npz, sglang or vllm-ascend; else by the file's name")
      ->check(CLI::IsMember({"npz", "sglang", "vllm-ascend"}));
  command->footer(
      "Examples:\n"
      "  trimtab experts plan loads.npz --ep-size 8 --num-redundant-experts 32\n"
      "  trimtab experts plan dump/*.pt --ep-size 32 --num-redundant-experts 32 --output map.json   # "
      "SGLang\n"
      "  trimtab experts plan loads.npz --current plan.npz --ep-size 8 --moves-max 8 -o next.npz    # few "
      "moves\n"
      "  trimtab experts plan loads.npz --ep-size 32 --num-nodes 4 --num-groups 8 --scope hierarchical");
  command->callback([options] { finish(run(*options)); });
}

}  // namespace trimtab::apps
