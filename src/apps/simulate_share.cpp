#include "apps/simulate_share.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>

#include "report/table.h"

namespace trimtab::apps {
namespace {

using nlohmann::json;
using sim::Estimate;
using Figure = std::function<double(const sim::Saturated&)>;

/// The parts of a split, in the order of printing.
struct Loss {
  const char* key;
  const char* says;
  double sim::LossSplit::*part;
};
constexpr Loss kLosses[] = {
    {"arrival", "arrival", &sim::LossSplit::arrival},      {"staleness", "stale", &sim::LossSplit::staleness},
    {"mixture", "mixture", &sim::LossSplit::mixture},      {"atomic", "atomic", &sim::LossSplit::atomic},
    {"expert_drift", "experts", &sim::LossSplit::experts}, {"padding", "padding", &sim::LossSplit::padding},
};

std::vector<double> values(const std::vector<sim::Saturated>& of, const Figure& figure) {
  std::vector<double> out;
  for (const sim::Saturated& each : of) out.push_back(figure(each));
  return out;
}

/// Seed by seed, so that what both have in common drops out.
std::vector<double> ratios(const std::vector<double>& of, const std::vector<double>& to) {
  std::vector<double> out;
  for (std::size_t i = 0; i < std::min(of.size(), to.size()); ++i)
    out.push_back(to[i] > 0 ? of[i] / to[i] * 100 : 0);
  return out;
}

std::string text(const std::vector<double>& of, int digits) {
  if (of.empty()) return "";
  const Estimate estimate = Estimate::of(of);
  if (of.size() < 2) return fmt::format("{:.{}f}", estimate.mean, digits);
  return fmt::format("{:.{}f} ± {:.{}f}", estimate.mean, digits, estimate.half_width, digits);
}

json estimate_json(const std::vector<double>& of) {
  const Estimate estimate = Estimate::of(of);
  return {{"mean", estimate.mean}, {"half_width_95", estimate.half_width}, {"seeds", of}};
}

json saturated_json(const std::vector<sim::Saturated>& of) {
  if (of.empty()) return nullptr;
  json losses = json::object();
  for (const Loss& loss : kLosses) {
    losses[loss.key] =
        estimate_json(values(of, [&](const sim::Saturated& one) { return one.losses.*(loss.part); }));
  }
  return {
      {"share", estimate_json(values(of, [](const sim::Saturated& one) { return one.share; }))},
      {"losses", losses},
      {"decode_bound", !of.empty() && of[0].decode_bound},
      {"requests_per_engine_s",
       estimate_json(values(of, [](const sim::Saturated& one) { return one.requests_per_engine_s; }))},
      {"tokens_per_engine_s",
       estimate_json(values(of, [](const sim::Saturated& one) { return one.tokens_per_engine_s; }))},
      {"fluid_busy", estimate_json(values(of, [](const sim::Saturated& one) { return one.fluid_busy; }))},
      {"unaccounted", estimate_json(values(of, [](const sim::Saturated& one) { return one.unaccounted; }))}};
}

std::string report_json(const sim::ShareReport& report, const model::Trace& trace) {
  json balancers = json::array();
  for (const sim::BalancerShare& each : report.balancers) {
    json one{{"name", each.name},
             {"online_over_offline", saturated_json(each.whole)},
             {"prefill_alone", saturated_json(each.prefill)},
             {"decode_alone", saturated_json(each.decode)}};
    if (!each.capacity.empty()) {
      one["capacity"] = estimate_json(each.capacity);
      one["capacity_of_fifo"] = estimate_json(ratios(each.capacity, report.balancers[1].capacity));
      one["capacity_of_fluid"] = estimate_json(ratios(each.capacity, report.fluid));
      one["capacity_of_atomic"] = estimate_json(ratios(each.capacity, report.ranks));
      if (trace.closed_loop) one["sessions_per_hour"] = estimate_json(each.sessions_per_hour);
    }
    balancers.push_back(one);
  }
  json all{{"trace", trace.name}, {"seeds", report.seeds}, {"balancers", balancers}};
  if (!report.fluid.empty()) {
    all["fluid_bound"] = estimate_json(report.fluid);
    all["atomic_ranks"] = estimate_json(report.ranks);
  }
  return all.dump(1);
}

void print_capacity(const sim::ShareReport& report, bool closed_loop, const report::Style& style) {
  std::cout << "Share of capacity: the largest rate at which 90 % of every tier's requests are served well\n";
  report::Table table({{"balancer", report::Align::kLeft},
                       {"rate"},
                       {"% of FIFO"},
                       {"% of fluid bound"},
                       {"% of atomic ranks"},
                       {closed_loop ? "sessions/h" : ""}});
  for (const sim::BalancerShare& each : report.balancers) {
    table.add_row({each.name, text(each.capacity, 3),
                   text(ratios(each.capacity, report.balancers[1].capacity), 1),
                   text(ratios(each.capacity, report.fluid), 1), text(ratios(each.capacity, report.ranks), 1),
                   closed_loop ? text(each.sessions_per_hour, 1) : ""});
  }
  table.add_row({"fluid bound, same order", text(report.fluid, 3), "", "", "", ""});
  table.add_row({"atomic ranks, same order", text(report.ranks, 3), "", "", "", ""});
  std::cout << table.text(style) << "\n";
}

void print_saturated(const sim::ShareReport& report, const report::Style& style) {
  std::cout << "Share of throughput: online at saturation over the same requests perfectly balanced offline, "
               "and where the rest went, points of 100\n";
  std::vector<report::Column> columns{
      {"balancer", report::Align::kLeft}, {"stage", report::Align::kLeft}, {"share"}};
  for (const Loss& loss : kLosses) columns.push_back({loss.says});
  columns.push_back({"tokens/engine-s"});
  report::Table table(columns);
  for (const sim::BalancerShare& each : report.balancers) {
    for (const auto& [name, of] : {std::pair{"whole", &each.whole}, std::pair{"prefill alone", &each.prefill},
                                   std::pair{"decode alone", &each.decode}}) {
      if (of->empty()) continue;
      const bool decode = of->front().decode_bound;
      std::vector<std::string> row{
          each.name, of == &each.whole ? fmt::format("whole, {} bound", decode ? "decode" : "prefill") : name,
          text(values(*of, [](const sim::Saturated& one) { return one.share; }), 1)};
      for (const Loss& loss : kLosses)
        row.push_back(
            text(values(*of, [&](const sim::Saturated& one) { return one.losses.*(loss.part); }), 1));
      row.push_back(text(values(*of, [](const sim::Saturated& one) { return one.tokens_per_engine_s; }), 0));
      table.add_row(std::move(row));
    }
  }
  std::cout << table.text(style);
}

}  // namespace

CLI::Option* add_share_flags(CLI::App& command, ShareFlags& flags) {
  CLI::Option* share = command.add_flag(
      "--share", flags.share,
      "instead of --rate: how close to the ideal, by both definitions, beside one FIFO queue and "
      "round robin (docs/share.md)");
  command.add_option("--seeds", flags.seeds, "--share: so many draws of the arrivals; intervals are 95 %")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000))
      ->needs(share);
  command.add_option("--share-precision", flags.precision, "--share: relative, of each capacity")
      ->capture_default_str()
      ->check(CLI::Range(1e-4, 0.5))
      ->needs(share);
  command.add_flag("--no-capacity", flags.without_capacity, "--share: throughput at saturation only; faster")
      ->needs(share);
  command
      .add_option("--share-stages", flags.stages,
                  "--share: what is measured at saturation: whole, prefill, decode; or none")
      ->check(CLI::IsMember({"whole", "prefill", "decode", "none"}))
      ->capture_default_str()
      ->needs(share);
  return share;
}

base::Status simulate_share(const model::Scenario& scenario, const model::Trace& trace,
                            const sim::WorkloadOptions& workload, const ShareFlags& flags, bool as_json,
                            bool shows) {
  if (std::isnan(flags.precision)) {
    return base::fail(base::Code::kInvalidArgument, "a precision of nan: use a number from 0.0001 to 0.5",
                      "--share-precision");
  }
  sim::ShareOptions options;
  options.seeds = flags.seeds;
  options.workload = workload;
  options.capacity.precision = flags.precision;
  options.with_capacity = !flags.without_capacity;
  options.stages.clear();
  for (const auto& [name, stage] :
       {std::pair{"whole", sim::SaturatedStage::kWhole}, std::pair{"prefill", sim::SaturatedStage::kPrefill},
        std::pair{"decode", sim::SaturatedStage::kDecode}}) {
    if (std::ranges::find(flags.stages, name) != flags.stages.end()) options.stages.push_back(stage);
  }
  const auto report = sim::measure_share(scenario, trace, options, [shows](const std::string& what) {
    if (shows) fmt::print(stderr, "\r{:80}\r{} ", "", what);
  });
  if (shows) fmt::print(stderr, "\r{:80}\r", "");
  if (!report) return tl::unexpected<base::Error>(report.error());
  if (as_json) {
    std::cout << report_json(*report, trace) << "\n";
    return {};
  }
  report::Style style = report::terminal_style(STDOUT_FILENO);
  style.width = std::max(style.width, 200);  // the names tell the rows apart
  const std::string draws =
      report->seeds == 1 ? "1 seed (no interval)" : fmt::format("{} seeds (± 95 %)", report->seeds);
  std::cout << fmt::format(
      "{} of {}, {}. Both are shares of this model's ideal, on this trace and fleet; they say "
      "nothing about any figure published for another system.\n\n",
      trace.name, scenario.profile.name, draws);
  if (options.with_capacity) print_capacity(*report, trace.closed_loop, style);
  if (!options.stages.empty()) print_saturated(*report, style);
  return {};
}

}  // namespace trimtab::apps
