#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <ctime>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "config/scenario.h"
#include "io/trace_reader.h"
#include "report/table.h"
#include "sim/simulation.h"

namespace trimtab::apps {
namespace {

using nlohmann::json;

struct SimulateOptions {
  std::string scenario_path, profiles_dir, trace_path, format = "auto";
  io::CsvColumns columns;
  std::vector<double> rates{1.0};
  std::vector<std::string> decode_policies, orders;
  std::int64_t repeats = 1, requests_max = INT64_MAX;
  double start_span_s = 8 * 3600;
  bool exact = false, as_json = false, quiet = false;
};

struct Run {
  std::string decode_policy, order;
  double rate = 1;
  double cpu_s = 0;
  sim::Result result;
};

double cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

base::Result<Run> run_one(const model::Scenario& scenario, const model::Trace& trace,
                          const SimulateOptions& options, double rate) {
  sim::WorkloadOptions workload_options;
  workload_options.rate = rate;
  workload_options.repeats = options.repeats;
  workload_options.requests_max = options.requests_max;
  workload_options.start_span = base::Nanos{static_cast<std::int64_t>(options.start_span_s * 1e9)};
  auto workload = sim::Workload::make(trace, workload_options);
  if (!workload) return tl::unexpected<base::Error>(workload.error());
  const auto total = static_cast<double>(workload->requests_total());
  auto simulation = sim::Simulation::make(scenario, std::move(*workload));
  if (!simulation) return tl::unexpected<base::Error>(simulation.error());
  Run run{scenario.cluster.decode.policy, scenario.cluster.prefill.order, rate, 0, {}};
  const bool shows = isatty(STDERR_FILENO) != 0 && !options.quiet && !options.as_json;
  const double started = cpu_seconds();
  run.result = (*simulation)->run([&](const sim::Progress& progress) {
    if (!shows) return;
    const double spent = std::max(cpu_seconds() - started, 1e-9);
    fmt::print(stderr, "\r{} rate {:g}: {:3.0f} % of requests, {:.0f} s simulated, {:.0f} requests/CPU-s ",
               run.decode_policy, rate, 100.0 * static_cast<double>(progress.ended) / total,
               base::to_seconds(progress.now), static_cast<double>(progress.ended) / spent);
  });
  run.cpu_s = cpu_seconds() - started;
  if (shows) fmt::print(stderr, "\r{:80}\r", "");
  return run;
}

json latencies_json(const sim::Latencies& of) {
  const auto times = [](const sim::Distribution& one) {
    return json{{"mean_s", one.mean_s()},
                {"p50_s", one.quantile_s(0.5)},
                {"p90_s", one.quantile_s(0.9)},
                {"p99_s", one.quantile_s(0.99)},
                {"largest_s", one.largest_s()}};
  };
  return {{"requests", of.ttft.count()},
          {"ttft", times(of.ttft)},
          {"tpot", times(of.tpot)},
          {"end_to_end", times(of.end_to_end)}};
}

json times_json(const sim::StepTimes& times) {
  const double whole = std::max(times.sum(), 1e-9);
  return {{"share_of_ideal", times.share()},
          {"attention_wait", times.attention_wait / whole},
          {"batch_wait", times.batch_wait / whole},
          {"padding", times.padding / whole},
          {"expert_imbalance", times.expert_imbalance / whole}};
}

json run_json(const Run& run) {
  const sim::Result& r = run.result;
  json tiers = json::array();
  for (const sim::Latencies& tier : r.tiers) tiers.push_back(latencies_json(tier));
  const double cpu = std::max(run.cpu_s, 1e-9);
  return {{"decode_policy", run.decode_policy},
          {"prefill_order", run.order},
          {"rate", run.rate},
          {"submitted", r.submitted},
          {"finished", r.finished},
          {"failed", r.failed},
          {"unfinished", r.unfinished},
          {"failures", r.failures},
          {"all", latencies_json(r.all)},
          {"tiers", tiers},
          {"simulated_s", base::to_seconds(r.span)},
          {"prompt_tokens", r.prompt_tokens},
          {"hit_tokens", r.hit_tokens},
          {"output_tokens", r.output_tokens},
          {"prefill_busy", r.prefill_busy},
          {"decode_busy", r.decode_busy},
          {"prefill_steps", times_json(r.prefill_times)},
          {"decode_steps", times_json(r.decode_times)},
          {"preemptions", r.preemptions},
          {"evicted_blocks", r.evicted_blocks},
          {"events", r.events},
          {"event_hash", fmt::format("{:016x}", r.event_hash)},
          {"cpu_s", run.cpu_s},
          {"requests_per_cpu_s", static_cast<double>(r.finished) / cpu}};
}

std::string seconds(double value) {
  return value < 10 ? fmt::format("{:.3f}", value) : fmt::format("{:.1f}", value);
}

void print_comparison(const std::vector<Run>& runs, const report::Style& style) {
  report::Table table({{"decode", report::Align::kLeft},
                       {"order", report::Align::kLeft},
                       {"rate"},
                       {"req/s"},
                       {"TTFT p50 s"},
                       {"p99 s"},
                       {"TPOT p50 ms"},
                       {"p99 ms"},
                       {"hit %"},
                       {"prefill busy %"},
                       {"decode busy %"},
                       {"failed"}});
  for (const Run& run : runs) {
    const sim::Result& r = run.result;
    const double span = std::max(base::to_seconds(r.span), 1e-9);
    const double prompts = std::max(static_cast<double>(r.prompt_tokens), 1.0);
    table.add_row({run.decode_policy, run.order, fmt::format("{:g}", run.rate),
                   fmt::format("{:.2f}", static_cast<double>(r.finished) / span),
                   seconds(r.all.ttft.quantile_s(0.5)), seconds(r.all.ttft.quantile_s(0.99)),
                   fmt::format("{:.2f}", r.all.tpot.quantile_s(0.5) * 1e3),
                   fmt::format("{:.2f}", r.all.tpot.quantile_s(0.99) * 1e3),
                   fmt::format("{:.1f}", 100 * static_cast<double>(r.hit_tokens) / prompts),
                   fmt::format("{:.1f}", 100 * r.prefill_busy), fmt::format("{:.1f}", 100 * r.decode_busy),
                   fmt::format("{}", r.failed + r.unfinished)});
  }
  std::cout << table.text(style);
}

void print_tiers(const Run& run, const std::vector<std::int64_t>& bounds, const report::Style& style) {
  report::Table table({{"context", report::Align::kLeft},
                       {"requests"},
                       {"TTFT p50 s"},
                       {"p90 s"},
                       {"p99 s"},
                       {"TPOT p50 ms"},
                       {"p99 ms"},
                       {"whole p50 s"},
                       {"p99 s"}});
  for (std::size_t t = 0; t < run.result.tiers.size(); ++t) {
    const sim::Latencies& of = run.result.tiers[t];
    if (of.ttft.count() == 0) continue;
    const std::string name =
        t < bounds.size() ? fmt::format("< {}", bounds[t]) : fmt::format(">= {}", bounds.back());
    table.add_row({name, fmt::format("{}", of.ttft.count()), seconds(of.ttft.quantile_s(0.5)),
                   seconds(of.ttft.quantile_s(0.9)), seconds(of.ttft.quantile_s(0.99)),
                   fmt::format("{:.2f}", of.tpot.quantile_s(0.5) * 1e3),
                   fmt::format("{:.2f}", of.tpot.quantile_s(0.99) * 1e3),
                   seconds(of.end_to_end.quantile_s(0.5)), seconds(of.end_to_end.quantile_s(0.99))});
  }
  std::cout << table.text(style);
}

/// Where the busy time of the steps went: what even ranks would take, and what is lost to each cause.
void print_losses(const std::vector<Run>& runs, const report::Style& style) {
  report::Table table({{"% of the steps' time", report::Align::kLeft},
                       {"rate"},
                       {"ideal"},
                       {"attention wait"},
                       {"batch wait"},
                       {"padding"},
                       {"experts"}});
  for (const Run& run : runs) {
    for (const auto& [name, times] : {std::pair{"prefill, ", &run.result.prefill_times},
                                      std::pair{"decode, ", &run.result.decode_times}}) {
      const double whole = std::max(times->sum(), 1e-9) / 100;
      std::vector<std::string> cells{name + (name[0] == 'p' ? run.order : run.decode_policy),
                                     fmt::format("{:g}", run.rate)};
      for (const double part : {times->ideal, times->attention_wait, times->batch_wait, times->padding,
                                times->expert_imbalance}) {
        cells.push_back(fmt::format("{:.1f}", part / whole));
      }
      table.add_row(std::move(cells));
    }
  }
  std::cout << "\n" << table.text(style);
}

base::Status simulate(const SimulateOptions& options) {
  const std::string profiles = find_profiles_dir(options.profiles_dir);
  auto scenario = options.scenario_path.empty() ? config::parse_scenario("", "defaults", profiles)
                                                : config::load_scenario(options.scenario_path, profiles);
  if (!scenario) return tl::unexpected<base::Error>(scenario.error());
  if (options.exact) scenario->speed = model::SimulationSpeed::kExact;
  io::TraceOptions trace_options;
  const auto format = io::trace_format(options.format);
  if (!format) return tl::unexpected<base::Error>(format.error());
  trace_options.format = *format;
  trace_options.columns = options.columns;
  const auto trace = io::read_trace(options.trace_path, trace_options);
  if (!trace) return tl::unexpected<base::Error>(trace.error());
  for (const std::string& note : trace->notes) fmt::print(stderr, "trimtab: {}\n", note);
  std::vector<std::string> policies = options.decode_policies, orders = options.orders;
  if (policies.empty()) policies.push_back(scenario->cluster.decode.policy);
  if (orders.empty()) orders.push_back(scenario->cluster.prefill.order);
  std::vector<Run> runs;
  for (const std::string& policy : policies) {
    for (const std::string& order : orders) {
      scenario->cluster.decode.policy = policy;
      scenario->cluster.prefill.order = order;
      for (const double rate : options.rates) {
        auto run = run_one(*scenario, *trace, options, rate);
        if (!run) return tl::unexpected<base::Error>(run.error());
        runs.push_back(std::move(*run));
      }
    }
  }
  if (options.as_json) {
    json all = json::array();
    for (const Run& run : runs) all.push_back(run_json(run));
    std::cout << json{{"trace", trace->name}, {"profile", scenario->profile.name}, {"runs", all}}.dump(1)
              << "\n";
    return {};
  }
  const report::Style style = report::terminal_style(STDOUT_FILENO);
  fmt::print("{} requests of {} on {}: {} prefill engines x {}, {} decode groups x {}\n\n",
             runs[0].result.submitted, trace->name, scenario->profile.name, scenario->cluster.prefill.engines,
             scenario->cluster.prefill.ranks, scenario->cluster.decode.groups,
             scenario->cluster.decode.ranks);
  std::cout.flush();
  print_comparison(runs, style);
  print_losses(runs, style);
  if (runs.size() == 1) {
    std::cout << "\n";
    print_tiers(runs[0], scenario->cluster.prefill.tier_bounds_tokens, style);
  }
  for (const Run& run : runs) {
    for (const std::string& failure : run.result.failures)
      fmt::print(stderr, "trimtab: a request failed: {}\n", failure);
  }
  return {};
}

}  // namespace

void add_simulate(CLI::App& app) {
  auto options = std::make_shared<SimulateOptions>();
  CLI::App* command = app.add_subcommand(
      "simulate",
      "replay a trace of requests through the production decisions, in virtual time\n\n"
      "  trimtab simulate --trace mine.jsonl                       # a small default fleet\n"
      "  trimtab simulate fleet.toml --trace mine.csv --rate 1 2 4 # how much more load it takes\n"
      "  trimtab simulate fleet.toml --trace mine.jsonl --decode-policy waterline dualpath round_robin\n\n"
      "The scenario is a cluster configuration (`trimtab config` prints its keys) and a table [simulation]; "
      "docs/simulation.md "
      "says what is modelled and what is not.");
  command->add_option("scenario", options->scenario_path, "TOML; without one, a small default fleet")
      ->check(CLI::ExistingFile);
  command
      ->add_option("--trace", options->trace_path, "requests: Mooncake or agentic jsonl, Azure csv, any csv")
      ->required();
  command->add_option("--trace-format", options->format, "auto, mooncake, agentic, azure or csv")
      ->capture_default_str();
  command->add_option("--csv-arrival", options->columns.arrival, "csv: column of the arrival")
      ->capture_default_str();
  command
      ->add_option("--csv-arrival-unit-s", options->columns.arrival_unit_s,
                   "csv: seconds that one unit of it is")
      ->capture_default_str();
  command->add_option("--csv-prompt", options->columns.prompt, "csv: column of the prompt's tokens")
      ->capture_default_str();
  command->add_option("--csv-output", options->columns.output, "csv: column of the answer's tokens")
      ->capture_default_str();
  command
      ->add_option("--rate", options->rates,
                   "arrivals (closed loop: conversations) so many times as fast; several compare")
      ->capture_default_str();
  command->add_option("--decode-policy", options->decode_policies,
                      "instead of the scenario's; several compare");
  command->add_option("--prefill-order", options->orders,
                      "instead of the scenario's: fifo, edf, arrival_plus_work; several compare");
  command->add_option("--repeats", options->repeats, "run the trace so often, one after the other")
      ->capture_default_str();
  command->add_option("--requests-max", options->requests_max, "stop after so many");
  command
      ->add_option("--start-span-s", options->start_span_s,
                   "closed loop: conversations start evenly over this time")
      ->capture_default_str();
  command->add_option("--profiles-dir", options->profiles_dir, "directory of the model profiles");
  command->add_flag("--exact", options->exact,
                    "every decode step is an event; slower, for checking the fast form");
  command->add_flag("--json", options->as_json, "print JSON");
  command->add_flag("--quiet", options->quiet, "no progress");
  command->callback([options] { finish(simulate(*options)); });
}

}  // namespace trimtab::apps
