#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/experts_commands.h"
#include "apps/experts_html.h"
#include "apps/experts_inputs.h"
#include "apps/experts_rolling.h"
#include "apps/simulate_output.h"
#include "experts_eval/advise.h"
#include "report/bars.h"
#include "report/table.h"

namespace trimtab::apps {

namespace {

using experts_eval::Advice;

struct AdviseCommand {
  LoadArguments loads;
  experts_eval::AdviseOptions options;
  std::string expert_bytes = "44MB", link = "50GB", step = "60ms", report;
  bool json = false;
};

std::string span_text(double nanos) {
  if (nanos < 1e6) return fmt::format("{:.0f} us", nanos / 1e3);
  if (nanos < 1e9) return fmt::format("{:.1f} ms", nanos / 1e6);
  return nanos < 120e9 ? fmt::format("{:.1f} s", nanos / 1e9) : fmt::format("{:.1f} min", nanos / 60e9);
}

std::string steps_text(double steps) {
  return std::isfinite(steps) ? fmt::format("{:.0f}", std::ceil(steps)) : "never";
}

void print_advice(const AdviseCommand& command, const experts_eval::AdviseResult& result,
                  std::int32_t layers) {
  const report::Style style = report::terminal_style(STDOUT_FILENO);
  report::Table table({{"EP"},
                       {"slots"},
                       {"extra"},
                       {"none"},
                       {"balanced"},
                       {"memory"},
                       {"a rank"},
                       {"saved"},
                       {"net"},
                       {"every"},
                       {"even after"},
                       {"", report::Align::kLeft}});
  for (std::size_t i = 0; i < result.rows.size(); ++i) {
    const Advice& row = result.rows[i];
    if (i > 0 && row.ep_size != result.rows[i - 1].ep_size) table.add_rule();
    std::string mark = row.knee ? "knee" : "";
    if (static_cast<std::int32_t>(i) == result.best_row) mark += mark.empty() ? "best" : ", best";
    table.add_row({fmt::format("{}", row.ep_size), fmt::format("{}", row.slots),
                   fmt::format("{}", row.redundant), fmt::format("{:.3f}", row.balance_none),
                   fmt::format("{:.3f}", row.balance), bytes_text(static_cast<double>(row.memory_bytes)),
                   bytes_text(static_cast<double>(row.memory_bytes_per_rank)),
                   fmt::format("{:.2f} %", 100 * row.step_saved_ratio),
                   fmt::format("{:.2f} %", 100 * row.step_saved_net_ratio),
                   fmt::format("{}", row.period_steps), steps_text(row.break_even_steps), mark});
  }
  std::cout << fmt::format(
      "{} MoE layers, {} scored over {} steps; {} a copy, steps of {}, {}/s between ranks\n\n", layers,
      result.layers_scored, result.steps_scored,
      bytes_text(static_cast<double>(command.options.expert_bytes)),
      span_text(static_cast<double>(command.options.step_ns)),
      bytes_text(command.options.link_bytes_per_second));
  std::cout << table.text(style);
  const Advice& best = result.rows[static_cast<std::size_t>(result.best_row)];
  std::vector<report::Bar> bars;
  for (const Advice& row : result.rows) {
    if (row.ep_size == best.ep_size) {
      bars.push_back({fmt::format("{} slots", row.slots), row.balance - 1, row.balance_static - 1});
    }
  }
  std::cout << fmt::format(
                   "\nEP{}: busiest / mean rank - 1, planned every {} steps (dotted: slots by number)\n",
                   best.ep_size, best.period_steps)
            << report::bar_chart(bars, {.reference = {}, .decimals = 3}, style);
  std::cout << fmt::format(
      "\nextra: redundant slots; none: balance of experts by number without them; balanced: planned from the "
      "last {} steps,\n"
      "scored on steps that the plan had not seen; saved: part of a step, which waits {:.0f} % of its time "
      "for the busiest\n"
      "rank (--moe-step-share; measure yours); net: after what moves cost; every: the steps between "
      "re-placements that\n"
      "save most; even after: steps until the first re-placement has paid for its moves.\n",
      command.options.window_steps, 100 * command.options.moe_step_share);
  if (best.step_saved_net_ratio <= 0) {
    std::cout << "\nNot worth it on these loads: moves cost what balance saves.\n";
    return;
  }
  std::cout << fmt::format(
      "\nBest: {}.\n  trimtab experts plan ... --ep-size {} --num-redundant-experts {}\n",
      experts_eval::describe(best), best.ep_size, best.redundant);
}

nlohmann::json json_of(const experts_eval::AdviseResult& result) {
  nlohmann::json rows = nlohmann::json::array();
  for (const Advice& row : result.rows) {
    rows.push_back(
        {{"ep_size", row.ep_size},
         {"num_physical_experts", row.slots},
         {"num_redundant_experts", row.redundant},
         {"period_steps", row.period_steps},
         {"balance_none", row.balance_none},
         {"balance_by_number", row.balance_static},
         {"balance", row.balance},
         {"memory_bytes", row.memory_bytes},
         {"memory_bytes_per_rank", row.memory_bytes_per_rank},
         {"step_saved_ratio", row.step_saved_ratio},
         {"step_saved_net_ratio", row.step_saved_net_ratio},
         {"moves_per_layer_step", row.moves_per_layer_step},
         {"moves_per_plan", row.moves_per_plan},
         {"first_moves_ns", row.first_moves_ns},
         {"plan_moves_ns", row.plan_moves_ns},
         {"break_even_steps",
          std::isfinite(row.break_even_steps) ? nlohmann::json(row.break_even_steps) : nlohmann::json()},
         {"period_min_steps",
          std::isfinite(row.period_min_steps) ? nlohmann::json(row.period_min_steps) : nlohmann::json()},
         {"knee", row.knee}});
  }
  return {{"rows", rows},
          {"best_row", result.best_row},
          {"layers_scored", result.layers_scored},
          {"steps_scored", result.steps_scored}};
}

base::Status run(AdviseCommand command) {
  experts_eval::AdviseOptions& options = command.options;
  const auto expert_bytes = bytes_of(command.expert_bytes, "--expert-bytes");
  const auto link = bytes_of(command.link, "--link-bandwidth");
  const auto step = nanos_of(command.step, "--step-time");
  for (const auto* value : {&expert_bytes, &link, &step}) {
    if (!*value) return tl::unexpected(value->error());
  }
  options.expert_bytes = *expert_bytes;
  options.link_bytes_per_second = static_cast<double>(*link);
  options.step_ns = *step;
  TRIMTAB_TRY(check_writable("--report", command.report));
  const std::int32_t window = command.loads.options.window;
  command.loads.options.window = 0;  // here it is what plans see, not what is read
  if (window != 0) options.window_steps = window;
  const auto loads = read_loads(command.loads, std::cerr);
  if (!loads) return tl::unexpected(loads.error());
  const auto tokens = all_tokens(*loads);
  if (!tokens) return tl::unexpected(tokens.error());
  const auto result = experts_eval::advise(*tokens, options);
  if (!result) return tl::unexpected(result.error());
  if (!command.report.empty()) {
    TRIMTAB_TRY(write_text(
        command.report,
        advice_html(*result,
                    fmt::format("{} layers scored over {} steps; {} a copy, steps of {}, {}/s between ranks",
                                result->layers_scored, result->steps_scored,
                                bytes_text(static_cast<double>(options.expert_bytes)),
                                span_text(static_cast<double>(options.step_ns)),
                                bytes_text(options.link_bytes_per_second)))));
  }
  if (command.json) {
    std::cout << json_of(*result).dump(1) << "\n";
  } else {
    print_advice(command, *result, options.model_layers > 0 ? options.model_layers : loads->layers);
  }
  return {};
}

}  // namespace

void add_experts_advise(CLI::App& experts) {
  auto options = std::make_shared<AdviseCommand>();
  CLI::App* command = experts.add_subcommand(
      "advise",
      "is it worth it? Balance against redundant slots, their memory, the gain, when moves have paid");
  add_load_options(*command, options->loads);
  auto& advise = options->options;
  command->add_option("--ep-size,--ep", advise.ep_sizes, "one or more, as 8,32")
      ->delimiter(',')
      ->capture_default_str();
  command
      ->add_option("--redundant-per-rank", advise.redundant_per_rank,
                   "extra slots of a rank to try, beyond the fewest that hold every expert")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--every", advise.period_steps, "steps between re-placements to try")
      ->delimiter(',')
      ->capture_default_str();
  command
      ->add_option("--model-layers", advise.model_layers,
                   "MoE layers of the model, for memory; 0: those of the loads")
      ->capture_default_str();
  command->add_option("--expert-bytes", options->expert_bytes, "weights of one expert in one layer")
      ->capture_default_str();
  command->add_option("--step-time", options->step, "of a serving step")->capture_default_str();
  command
      ->add_option("--moe-step-share", advise.moe_step_share,
                   "part of a step that waits for the busiest rank, without balancing; measure it")
      ->capture_default_str();
  command->add_option("--link-bandwidth", options->link, "bytes per second between ranks, each way")
      ->capture_default_str();
  command
      ->add_option("--moves-stall-share", advise.moves_stall_share,
                   "1: steps wait for moves; near 0: layers move beside serving")
      ->capture_default_str();
  command->add_option("--layers-max", advise.layers_max, "layers planned and scored; 0: all")
      ->capture_default_str();
  command->add_flag("--json", options->json, "for programs");
  command->add_option("--report", options->report, "write an HTML page");
  command->footer(
      "Examples:\n"
      "  trimtab experts advise loads.npz --ep-size 8\n"
      "  trimtab experts advise loads.npz --ep-size 32 --redundant-per-rank 0,1,2 --model-layers 58 "
      "--expert-bytes 44MB");
  command->callback([options] { finish(run(*options)); });
}

}  // namespace trimtab::apps
