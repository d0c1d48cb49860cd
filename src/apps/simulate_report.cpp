#include "apps/simulate_report.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "apps/simulate_faults.h"
#include "apps/simulate_output.h"
#include "apps/simulate_words.h"
#include "report/table.h"

namespace trimtab::apps {
namespace {

using nlohmann::json;

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
          {"expert_imbalance", times.expert_imbalance / whole},
          {"expert_drift", times.expert_drift / whole},
          {"expert_moves", times.expert_moves / whole},
          {"expert_copies", times.expert_copies / whole}};
}

/// First in a name, since tables cut its end.
std::string experts_name(const Run& run) {
  if (run.experts == "constant") return "";
  return (run.experts == "off" ? "experts off" : run.experts) + ", ";
}

json run_json(const Run& run, const std::vector<std::string>& names) {
  const sim::Result& r = run.result;
  json tiers = json::array();
  for (std::size_t t = 0; t < r.tiers.size(); ++t) {
    json tier = latencies_json(r.tiers[t]);
    tier["context"] = t < names.size() ? names[t] : "";
    tier["served_well_share"] = r.tiers[t].share_served_well();
    tiers.push_back(std::move(tier));
  }
  const double cpu = std::max(run.cpu_s, 1e-9);
  return {{"decode_policy", run.decode_policy},
          {"prefill", run.prefill},
          {"expert_policy", run.experts},
          {"verify", run.verify},
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
          {"matched_tokens", r.matched_tokens},
          {"hit_tokens", r.hit_tokens},
          {"output_tokens", r.output_tokens},
          {"prefill_busy", r.prefill_busy},
          {"decode_busy", r.decode_busy},
          {"prefill_steps", times_json(r.prefill_times)},
          {"decode_steps", times_json(r.decode_times)},
          {"preemptions", r.preemptions},
          {"moves", r.moves},
          {"evicted_blocks", r.evicted_blocks},
          {"outcomes", outcomes_json(r, run.recording ? &*run.recording : nullptr)},
          {"events", r.events},
          {"event_hash", fmt::format("{:016x}", r.event_hash)},
          {"cpu_s", run.cpu_s},
          {"requests_per_cpu_s", static_cast<double>(r.finished) / cpu}};
}

/// Narrower, the names that tell the rows apart would be cut: "waterline" and "waterline_hazard" alike.
constexpr int kWidth = 200;

std::string seconds(double value) {
  return value < 10 ? fmt::format("{:.3f}", value) : fmt::format("{:.1f}", value);
}

void print_comparison(const std::vector<Run>& runs, const report::Style& style) {
  report::Table table({{"decode", report::Align::kLeft},
                       {"prefill", report::Align::kLeft},
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
    const double prompts = std::max(static_cast<double>(r.matched_tokens), 1.0);
    table.add_row({decode_name(run), run.prefill, fmt::format("{:g}", run.rate),
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
                       {"experts"},
                       {"their drift"},
                       {"moves"},
                       {"copies"}});
  for (const Run& run : runs) {
    for (const auto& [name, times] : {std::pair{"prefill, ", &run.result.prefill_times},
                                      std::pair{"decode, ", &run.result.decode_times}}) {
      const double whole = std::max(times->sum(), 1e-9) / 100;
      std::vector<std::string> cells{
          name + (name[0] == 'p' ? experts_name(run) + run.prefill : decode_name(run)),
          fmt::format("{:g}", run.rate)};
      for (const double part :
           {times->ideal, times->attention_wait, times->batch_wait, times->padding, times->expert_imbalance,
            times->expert_drift, times->expert_moves, times->expert_copies}) {
        cells.push_back(fmt::format("{:.1f}", part / whole));
      }
      table.add_row(std::move(cells));
    }
  }
  std::cout << "\n" << table.text(style);
}

std::int64_t memory_peak_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::int64_t>(usage.ru_maxrss) * 1024;
}

}  // namespace

std::string decode_name(const Run& run) {
  return experts_name(run) + (run.verify == "off" ? "" : run.verify + ", ") + run.decode_policy;
}

void print_runs(const std::vector<Run>& runs, const model::Trace& trace, const model::Scenario& scenario,
                bool capacity) {
  report::Style style = report::terminal_style(STDOUT_FILENO);
  style.width = std::max(style.width, kWidth);
  const model::ClusterConfig& cluster = scenario.cluster;
  std::cout << fmt::format("{} of {} on {}: {} x {}, {} x {}\n", counted(runs[0].result.submitted, "request"),
                           trace.name, scenario.profile.name,
                           counted(cluster.prefill.engines, "prefill engine"), cluster.prefill.ranks,
                           counted(cluster.decode.groups, "decode group"), cluster.decode.ranks);
  if (capacity) std::cout << "rate: the largest at which 90 % of every tier's requests are served well\n";
  std::cout << "\n";
  print_comparison(runs, style);
  print_losses(runs, style);
  if (runs.size() != 1) return;
  std::cout << "\n";
  print_tiers(runs[0], scenario.report_bounds_tokens, style);
  std::cout << outcomes_text(runs[0].result);
}

std::string runs_json(const std::vector<Run>& runs, const model::Trace& trace,
                      const model::Scenario& scenario) {
  json all = json::array();
  for (const Run& run : runs) all.push_back(run_json(run, tier_names(scenario.report_bounds_tokens)));
  return json{{"trace", trace.name},
              {"profile", scenario.profile.name},
              {"memory_peak_bytes", memory_peak_bytes()},
              {"runs", all}}
      .dump(1);
}

}  // namespace trimtab::apps
