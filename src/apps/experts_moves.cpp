#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/experts_commands.h"
#include "apps/experts_inputs.h"
#include "experts_host/plan_layers.h"
#include "policy/experts/moves/batches.h"
#include "policy/experts/moves/move_plan.h"
#include "report/bars.h"
#include "report/table.h"

namespace trimtab::apps {

namespace {

struct MovesCommand {
  std::string before, after;
  ShapeArguments shape;
  std::string expert_bytes = "44MB", link = "50GB", node_link, local, stall = "0ms";
  std::int32_t staging_slots = 1, threads = 0;
  bool keep_old_map = false, json = false;
};

base::Result<experts::MoveOptions> options_of(const MovesCommand& command) {
  experts::MoveOptions options;
  options.staging_slots = command.staging_slots;
  options.keep_old_map = command.keep_old_map;
  const auto set = [](std::int64_t& field, const base::Result<std::int64_t>& value) -> base::Status {
    if (!value) return tl::unexpected(value.error());
    field = *value;
    return {};
  };
  experts::MoveBudget& budget = options.budget;
  TRIMTAB_TRY(set(budget.bytes_per_copy, bytes_of(command.expert_bytes, "--expert-bytes")));
  TRIMTAB_TRY(set(budget.link_bytes_per_s, bytes_of(command.link, "--link-bandwidth")));
  if (!command.node_link.empty()) {
    TRIMTAB_TRY(set(budget.node_link_bytes_per_s, bytes_of(command.node_link, "--node-bandwidth")));
  }
  if (!command.local.empty()) {
    TRIMTAB_TRY(set(budget.local_bytes_per_s, bytes_of(command.local, "--local-bandwidth")));
  }
  TRIMTAB_TRY(set(budget.stall_ns, nanos_of(command.stall, "--stall-budget")));
  return options;
}

struct Totals {
  std::vector<std::int64_t> sends, receives;  // copies, [ranks]
  std::int64_t locals = 0, batches = 0, stall_ns = 0, host_ns = 0;
  std::int32_t slices = 1, staging_used = 0, layers_moving = 0;
};

Totals totals_of(std::span<const experts::MovePlan> plans, const experts::MoveCosts& costs,
                 std::int32_t ranks) {
  Totals out;
  out.sends.assign(static_cast<std::size_t>(ranks), 0);
  out.receives = out.sends;
  for (const experts::MovePlan& plan : plans) {
    for (std::size_t host = 0; host < out.sends.size(); ++host) {
      out.sends[host] += plan.by_host[host].sends;
      out.receives[host] += plan.by_host[host].receives;
      out.locals += plan.by_host[host].locals;
    }
    for (const experts::MoveBatch& batch : plan.batches) {
      std::int64_t longest = 0;
      for (const experts::HostTime& time : experts::host_times(plan, batch, costs)) {
        longest = std::max(longest, time.ns());
      }
      out.host_ns += longest;
    }
    out.batches += static_cast<std::int64_t>(plan.batches.size());
    out.slices = std::max(out.slices, plan.slices);
    out.staging_used = std::max(out.staging_used, plan.staging_used);
    out.stall_ns = std::max(out.stall_ns, plan.stall_ns);
    out.layers_moving += plan.batches.empty() ? 0 : 1;
  }
  return out;
}

std::string ms_text(std::int64_t nanos) {
  const double ms = static_cast<double>(nanos) / 1e6;
  return ms < 1000 ? fmt::format("{:.2f} ms", ms) : fmt::format("{:.2f} s", ms / 1e3);
}

void print_moves(const MovesCommand& command, const experts::Shape& shape, std::size_t layers,
                 const Totals& totals, const experts::MoveSchedule& schedule,
                 const experts::MoveBudget& budget) {
  const report::Style style = report::terminal_style(STDOUT_FILENO);
  const auto per_copy = static_cast<double>(budget.bytes_per_copy);
  std::int64_t received = 0;
  for (const std::int64_t copies : totals.receives) received += copies;
  const auto top = [](const std::vector<std::int64_t>& copies) {
    return *std::max_element(copies.begin(), copies.end());
  };
  report::Table table(
      {{"what", report::Align::kLeft}, {"", report::Align::kRight}, {"", report::Align::kLeft}});
  table.add_row(
      {"layers that change", fmt::format("{}", totals.layers_moving), fmt::format("of {}", layers)});
  table.add_row({"copies over links", fmt::format("{}", received),
                 bytes_text(per_copy * static_cast<double>(received))});
  table.add_row({"busiest sender", fmt::format("{}", top(totals.sends)),
                 bytes_text(per_copy * static_cast<double>(top(totals.sends)))});
  table.add_row({"busiest receiver", fmt::format("{}", top(totals.receives)),
                 bytes_text(per_copy * static_cast<double>(top(totals.receives)))});
  table.add_row({"copies inside a rank", fmt::format("{}", totals.locals), ""});
  table.add_row({"batches, all layers", fmt::format("{}", totals.batches),
                 totals.slices > 1 ? fmt::format("in {} slices each", totals.slices) : ""});
  table.add_row({"staging slots used per rank", fmt::format("{}", totals.staging_used), ""});
  table.add_row(
      {"time, one batch after another", ms_text(totals.host_ns),
       fmt::format("at {}/s between ranks", bytes_text(static_cast<double>(budget.link_bytes_per_s)))});
  table.add_row({"serving steps that carry a part", fmt::format("{}", schedule.steps()), ""});
  table.add_row(
      {"longest stall of a step", ms_text(schedule.stall_ns),
       budget.stall_ns > 0 ? fmt::format("budget {}", ms_text(budget.stall_ns)) : "no --stall-budget"});
  std::cout << fmt::format("{} to {}: {} slots on {} ranks\n\n", command.before, command.after, shape.slots,
                           shape.ranks)
            << table.text(style);
  if (received == 0) return;
  std::vector<report::Bar> bars;
  for (std::size_t rank = 0; rank < totals.receives.size(); ++rank) {
    bars.push_back(
        {fmt::format("rank {}", rank), per_copy * static_cast<double>(totals.receives[rank]) / 1e9, {}});
  }
  std::cout << "\nGB that each rank receives\n" << report::bar_chart(bars, {}, style);
}

nlohmann::json json_of(std::size_t layers, const Totals& totals, const experts::MoveSchedule& schedule,
                       std::int64_t bytes) {
  std::vector<std::int64_t> sent, received;
  for (const std::int64_t copies : totals.sends) sent.push_back(copies * bytes);
  for (const std::int64_t copies : totals.receives) received.push_back(copies * bytes);
  return {{"layers", layers},           {"layers_moving", totals.layers_moving}, {"bytes_sent", sent},
          {"bytes_received", received}, {"copies_local", totals.locals},         {"batches", totals.batches},
          {"slices", totals.slices},    {"staging_used", totals.staging_used},   {"time_ns", totals.host_ns},
          {"steps", schedule.steps()},  {"stall_ns", schedule.stall_ns}};
}

base::Status run(const MovesCommand& command) {
  const auto options = options_of(command);
  if (!options) return tl::unexpected(options.error());
  const auto before = io::read_expert_maps(command.before);
  if (!before) return tl::unexpected(before.error());
  const auto after = read_map(command.after, before->layers, before->experts);
  if (!after) return tl::unexpected(after.error());
  if (after->slots != before->slots) {
    return wrong(fmt::format("{} has {} slots and {} has {}; moves are between maps of one shape",
                             command.before, before->slots, command.after, after->slots));
  }
  ShapeArguments arguments = command.shape;
  const io::ExpertMaps& ranked = after->ranks > 0 ? *after : *before;
  const auto shape = shape_of(arguments, before->experts, &ranked, std::cerr);
  if (!shape) return tl::unexpected(shape.error());
  if (shape->slots != before->slots) {
    return wrong(fmt::format("the flags mean {} slots and {} has {}; leave --num-redundant-experts out",
                             shape->slots, command.before, before->slots));
  }
  std::vector<std::optional<base::Result<experts::MovePlan>>> found(static_cast<std::size_t>(before->layers));
  experts_host::each_layer(before->layers, command.threads, [&](std::int32_t layer) {
    experts::MoveRequest request;
    request.before = request.after = *shape;
    request.map_before = layer_of(*before, layer);
    request.map_after = layer_of(*after, layer);
    request.options = *options;
    found[static_cast<std::size_t>(layer)] = experts::plan_moves(request);
  });
  std::vector<experts::MovePlan> plans;
  for (std::size_t layer = 0; layer < found.size(); ++layer) {
    auto& plan = *found[layer];
    if (!plan) {
      plan.error().message = fmt::format("layer {}: {}", layer, plan.error().message);
      return tl::unexpected(plan.error());
    }
    plans.push_back(std::move(*plan));
  }
  const auto schedule = experts::schedule_layers(plans, options->budget);
  if (!schedule) return tl::unexpected(schedule.error());
  const auto costs = experts::costs_of(options->budget);
  if (!costs) return tl::unexpected(costs.error());
  const Totals totals = totals_of(plans, *costs, shape->ranks);
  if (command.json) {
    std::cout << json_of(plans.size(), totals, *schedule, options->budget.bytes_per_copy).dump(1) << "\n";
  } else {
    print_moves(command, *shape, plans.size(), totals, *schedule, options->budget);
  }
  return {};
}

}  // namespace

void add_experts_moves(CLI::App& experts) {
  auto options = std::make_shared<MovesCommand>();
  CLI::App* command = experts.add_subcommand(
      "moves", "what it takes to get from one map to another: bytes per rank, batches, time");
  command->add_option("--before,--current", options->before, "the map in force")->required();
  command->add_option("--after", options->after, "the map to come")->required();
  add_shape_options(*command, options->shape);
  command->add_option("--expert-bytes", options->expert_bytes, "weights of one expert in one layer")
      ->capture_default_str();
  command->add_option("--link-bandwidth", options->link, "bytes per second between ranks, each way")
      ->capture_default_str();
  command->add_option("--node-bandwidth", options->node_link,
                      "between ranks of one node; else --link-bandwidth");
  command->add_option("--local-bandwidth", options->local, "inside a rank; else --node-bandwidth");
  command
      ->add_option("--stall-budget", options->stall, "a serving step may be held up so long; 0ms: no limit")
      ->capture_default_str();
  command->add_option("--staging-slots", options->staging_slots, "spare slots per rank that moving may use")
      ->capture_default_str();
  command->add_flag("--keep-old-map", options->keep_old_map,
                    "overwrite no slot of the old map before all copies have arrived");
  command->add_option("--threads", options->threads, "0: all cores")->capture_default_str();
  command->add_flag("--json", options->json, "for programs");
  command->footer(
      "Example:\n"
      "  trimtab experts moves --before plan.npz --after next.npz --expert-bytes 44MB \\\n"
      "    --link-bandwidth 50GB --node-bandwidth 450GB --stall-budget 2ms");
  command->callback([options] { finish(run(*options)); });
}

}  // namespace trimtab::apps
