#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <iostream>
#include <memory>

#include "apps/commands.h"
#include "apps/simulate_faults.h"
#include "apps/simulate_loop.h"
#include "apps/simulate_output.h"
#include "apps/simulate_report.h"
#include "apps/simulate_routing.h"
#include "apps/simulate_share.h"
#include "apps/simulate_trace.h"
#include "config/scenario.h"
#include "sim/capacity.h"
#include "sim/simulation.h"

namespace trimtab::apps {
namespace {

struct SimulateOptions {
  std::string scenario_path, profiles_dir, faults_path;
  TraceSource source;
  std::vector<double> rates{1.0};
  std::vector<std::string> decode_policies, orders, assignments;
  std::int64_t repeats = 1, requests_max = INT64_MAX;
  LoopFlags loop;
  ShareFlags share;
  OutputOptions output;
  bool capacity = false, one_queue = false, exact = false, as_json = false, quiet = false;
};

double cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

/// How work finds its rank, and in which order: "pull fifo", "least_work".
std::string prefill_name(const model::Scenario& scenario) {
  const model::PrefillConfig& prefill = scenario.cluster.prefill;
  if (prefill.assignment != "pull") return prefill.assignment;
  return prefill.assignment + " " + prefill.order + (prefill.tier_bounds_tokens.empty() ? ", one queue" : "");
}

/// What the run is of.
Run named(const model::Scenario& scenario) {
  Run run;
  run.decode_policy = scenario.cluster.decode.policy;
  run.prefill = prefill_name(scenario);
  name_loop(scenario, run);
  return run;
}

sim::WorkloadOptions workload_options(const SimulateOptions& options, double rate) {
  sim::WorkloadOptions workload;
  workload.rate = rate;
  workload.repeats = options.repeats;
  workload.requests_max = options.requests_max;
  workload.start_span = options.source.start_span();
  workload.stationary = options.source.stationary;
  return workload;
}

base::Result<Run> run_one(const model::Scenario& scenario, const model::Trace& trace,
                          const SimulateOptions& options, double rate) {
  auto workload = sim::Workload::make(trace, workload_options(options, rate));
  if (!workload) return tl::unexpected<base::Error>(workload.error());
  const auto total = static_cast<double>(workload->requests_total());
  auto simulation = sim::Simulation::make(scenario, std::move(*workload));
  if (!simulation) return tl::unexpected<base::Error>(simulation.error());
  Run run = named(scenario);
  run.rate = rate;
  sim::Recorder recorder(recorder_options(options.output));
  if (options.output.records()) (*simulation)->record(recorder);
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
  if (options.output.records()) run.recording = recorder.take();
  if (shows) fmt::print(stderr, "\r{:80}\r", "");
  return run;
}

base::Result<Run> capacity_of(const model::Scenario& scenario, const model::Trace& trace,
                              const SimulateOptions& options) {
  const bool shows = isatty(STDERR_FILENO) != 0 && !options.quiet && !options.as_json;
  const double started = cpu_seconds();
  auto capacity =
      sim::find_capacity(scenario, trace, workload_options(options, 1), {}, [&](double rate, bool held) {
        if (shows)
          fmt::print(stderr, "\r{}: rate {:.4g} {} ", prefill_name(scenario), rate,
                     held ? "holds" : "does not hold");
      });
  if (!capacity) return tl::unexpected<base::Error>(capacity.error());
  if (shows) fmt::print(stderr, "\r{:80}\r", "");
  Run run = named(scenario);
  run.rate = capacity->rate;
  run.cpu_s = cpu_seconds() - started;
  run.result = std::move(capacity->at_rate);
  if (run.rate == 0) {
    fmt::print(stderr,
               "trimtab: {}: no rate serves the trace well; what is said of rate 0 is of the last one "
               "tried\n",
               run.prefill);
  } else if (run.rate >= sim::CapacityOptions{}.rate_most) {
    fmt::print(stderr,
               "trimtab: {}: every rate holds, so this trace is too short to load the fleet and the rate "
               "is no capacity; --repeats runs it more often\n",
               run.prefill);
  }
  if (!options.output.records() || run.rate == 0) return run;
  // The search does not record; the run at the rate it found is the same again.
  auto again = run_one(scenario, trace, options, run.rate);
  if (!again) return again;
  run.recording = std::move(again->recording);
  return run;
}

/// Every combination of placements and orders that were asked for.
base::Status run_placements(model::Scenario scenario, const model::Trace& trace,
                            const SimulateOptions& options, std::vector<Run>& runs) {
  const auto or_own = [](const std::vector<std::string>& asked, const std::string& own) {
    return asked.empty() ? std::vector<std::string>{own} : asked;
  };
  const auto orders = or_own(options.orders, scenario.cluster.prefill.order);
  for (const std::string& policy : or_own(options.decode_policies, scenario.cluster.decode.policy)) {
    for (const std::string& assignment : or_own(options.assignments, scenario.cluster.prefill.assignment)) {
      for (const std::string& order : orders) {
        if (assignment != "pull" && &order != &orders.front())
          continue;  // pushed work is first come, first served
        scenario.cluster.decode.policy = policy;
        scenario.cluster.prefill.assignment = assignment;
        scenario.cluster.prefill.order = order;
        for (std::size_t i = 0; i < (options.capacity ? 1 : options.rates.size()); ++i) {
          auto run = options.capacity ? capacity_of(scenario, trace, options)
                                      : run_one(scenario, trace, options, options.rates[i]);
          if (!run) return tl::unexpected<base::Error>(run.error());
          runs.push_back(std::move(*run));
        }
      }
    }
  }
  return {};
}

base::Status simulate(const SimulateOptions& options) {
  TRIMTAB_TRY(check_outputs(options.output));
  const std::string profiles = find_profiles_dir(options.profiles_dir);
  auto scenario = options.scenario_path.empty() ? config::parse_scenario("", "defaults", profiles)
                                                : config::load_scenario(options.scenario_path, profiles);
  if (!scenario) return tl::unexpected<base::Error>(scenario.error());
  TRIMTAB_TRY(add_faults(*scenario, options.faults_path));
  if (options.exact) scenario->speed = model::SimulationSpeed::kExact;
  scenario->keep_requests = !options.output.requests.empty();
  const auto asked = loop_scenarios(*scenario, options.loop);
  const bool experts = std::ranges::any_of(
      asked, [](const model::Scenario& one) { return one.experts.policy != model::ExpertPolicy::kConstant; });
  TRIMTAB_TRY(read_routing(*scenario, options.scenario_path, experts));
  const auto trace = load_trace(options.source);
  if (!trace) return tl::unexpected<base::Error>(trace.error());
  if (options.one_queue) scenario->cluster.prefill.tier_bounds_tokens.clear();
  if (options.share.share) {
    if (options.output.records() || !options.output.requests.empty()) {
      return base::fail(base::Code::kInvalidArgument,
                        "--share prints its measures and writes no files: leave --report, --csv, --requests "
                        "and --timeline out");
    }
    const bool shows = isatty(STDERR_FILENO) != 0 && !options.quiet && !options.as_json;
    const auto loops = loop_scenarios(*scenario, options.loop);
    if (loops.size() > 1) {
      return base::fail(base::Code::kInvalidArgument,
                        "--share measures one scenario: give one --expert-policy and one --verify");
    }
    return simulate_share(loops[0], *trace, workload_options(options, 1), options.share, options.as_json,
                          shows);
  }
  std::vector<Run> runs;
  for (const model::Scenario& one : loop_scenarios(*scenario, options.loop))
    TRIMTAB_TRY(run_placements(one, *trace, options, runs));
  TRIMTAB_TRY(write_outputs(options.output, runs, *trace, *scenario, options.capacity));
  if (options.as_json) {
    std::cout << runs_json(runs, *trace, *scenario) << "\n";
    return {};
  }
  print_runs(runs, *trace, *scenario, options.capacity);
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
  add_trace_options(*command, options->source);
  CLI::Option* rate =
      command
          ->add_option("--rate", options->rates,
                       "arrivals (closed loop: conversations) so many times as fast; several compare")
          ->capture_default_str();
  command->add_option("--decode-policy", options->decode_policies,
                      "instead of the scenario's; several compare");
  command->add_option("--prefill-order", options->orders,
                      "instead of the scenario's: fifo, edf, arrival_plus_work; several compare");
  command->add_option(
      "--prefill-assignment", options->assignments,
      "instead of the scenario's: pull, random, round_robin, power_of_two, least_requests, least_work, "
      "dualpath; several compare");
  command->add_flag("--one-queue", options->one_queue, "pull from one queue instead of tiers");
  CLI::Option* capacity = command->add_flag(
      "--capacity", options->capacity,
      "instead of --rate: find the largest rate that serves 90 % of every tier well (docs/simulation.md)");
  capacity->excludes(rate);
  add_loop_flags(*command, options->loop);
  add_share_flags(*command, options->share)->excludes(rate)->excludes(capacity);
  command->add_option("--repeats", options->repeats, "run the trace so often, one after the other")
      ->capture_default_str();
  command->add_option("--requests-max", options->requests_max, "stop after so many");
  command->add_option("--profiles-dir", options->profiles_dir, "directory of the model profiles");
  add_fault_option(*command, options->faults_path);
  command->add_flag("--exact", options->exact,
                    "every decode step is an event; slower, for checking the fast form");
  command->add_flag("--json", options->as_json, "print JSON");
  add_output_options(*command, options->output);
  command->add_flag("--quiet", options->quiet, "no progress");
  command->callback([options] { finish(simulate(*options)); });
}

}  // namespace trimtab::apps
