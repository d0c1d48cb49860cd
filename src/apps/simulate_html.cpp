// The page of `trimtab simulate --report`: what runs were like, side by side and over time.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>

#include "apps/simulate_output.h"
#include "apps/simulate_words.h"
#include "report/charts.h"

namespace trimtab::apps {
namespace {

using report::Cell;
using report::Html;

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

std::string seconds(double value) {
  return value < 10 ? fmt::format("{:.3f}", value) : fmt::format("{:.1f}", value);
}

Html summary(const std::vector<Run>& runs, bool capacity) {
  const auto less = [](const char* title) {
    return report::HtmlColumn{title, report::Align::kRight, report::Better::kLess};
  };
  const auto more = [](const char* title) {
    return report::HtmlColumn{title, report::Align::kRight, report::Better::kMore};
  };
  std::vector<report::HtmlColumn> columns = {{"decode", report::Align::kLeft},
                                             {"prefill", report::Align::kLeft},
                                             {"rate"},
                                             more("requests/s"),
                                             less("TTFT p50 s"),
                                             less("p90 s"),
                                             less("p99 s"),
                                             less("TPOT p50 ms"),
                                             less("p99 ms"),
                                             more("hit %"),
                                             more("prefill ideal %"),
                                             more("decode ideal %"),
                                             {"prefill busy %"},
                                             {"decode busy %"},
                                             {"yielded"},
                                             less("failed")};
  if (capacity) columns[2].better = report::Better::kMore;
  std::vector<std::vector<Cell>> rows;
  for (const Run& run : runs) {
    const sim::Result& r = run.result;
    const double per_second = static_cast<double>(r.finished) / std::max(base::to_seconds(r.span), 1e-9);
    const double hit =
        100 * static_cast<double>(r.hit_tokens) / std::max(static_cast<double>(r.matched_tokens), 1.0);
    const auto in_s = [](double value) { return Cell{seconds(value), value}; };
    const auto number = [](double value, int decimals) {
      return Cell{fmt::format("{:.{}f}", value, decimals), value};
    };
    rows.push_back({{decode_name(run), {}},
                    {run.prefill, {}},
                    {fmt::format("{:.4g}", run.rate), run.rate},
                    number(per_second, 2),
                    in_s(r.all.ttft.quantile_s(0.5)),
                    in_s(r.all.ttft.quantile_s(0.9)),
                    in_s(r.all.ttft.quantile_s(0.99)),
                    number(r.all.tpot.quantile_s(0.5) * 1e3, 2),
                    number(r.all.tpot.quantile_s(0.99) * 1e3, 2),
                    number(hit, 1),
                    number(100 * r.prefill_times.share(), 2),
                    number(100 * r.decode_times.share(), 2),
                    number(100 * r.prefill_busy, 1),
                    number(100 * r.decode_busy, 1),
                    number(static_cast<double>(r.preemptions), 0),
                    number(static_cast<double>(r.failed + r.unfinished), 0)});
  }
  Html out = report::table(columns, rows);
  out += report::remark(
      "TTFT: submitted to first token. TPOT: per token after the first. Ideal: what ranks that are all "
      "equally "
      "loaded would take, over what the steps took. Bold: the best of a column.");
  if (capacity)
    out += report::remark("Rate: the largest at which 90 % of every tier's requests are served well.");
  return out;
}

Html tiers(const std::vector<Run>& runs, const std::vector<std::string>& names) {
  const auto less = report::Better::kLess;
  const auto right = report::Align::kRight;
  std::vector<std::vector<Cell>> rows;
  for (std::size_t t = 0; t < names.size(); ++t) {
    for (const Run& run : runs) {
      if (t >= run.result.tiers.size() || run.result.tiers[t].ttft.count() == 0) continue;
      const sim::Latencies& of = run.result.tiers[t];
      std::vector<Cell> row = {
          {names[t], {}}, {run_name(run, runs), {}}, {fmt::format("{}", of.ttft.count()), {}}};
      for (const double q : {0.5, 0.9, 0.99}) row.push_back({seconds(of.ttft.quantile_s(q)), {}});
      for (const double q : {0.5, 0.99})
        row.push_back({fmt::format("{:.2f}", of.tpot.quantile_s(q) * 1e3), {}});
      for (const double q : {0.5, 0.99}) row.push_back({seconds(of.end_to_end.quantile_s(q)), {}});
      row.push_back({fmt::format("{:.1f}", 100 * of.share_served_well()), {}});
      rows.push_back(std::move(row));
    }
  }
  Html out = report::table({{"context", report::Align::kLeft},
                            {"run", report::Align::kLeft},
                            {"requests"},
                            {"TTFT p50 s", right, less},
                            {"p90 s"},
                            {"p99 s"},
                            {"TPOT p50 ms"},
                            {"p99 ms"},
                            {"whole p50 s"},
                            {"p99 s"},
                            {"served well %"}},
                           rows);
  return out;
}

Html losses(const std::vector<Run>& runs) {
  std::vector<Html> figures;
  for (const auto& [title, member] : {std::pair{"Prefill steps", &sim::Result::prefill_times},
                                      std::pair{"Decode steps", &sim::Result::decode_times}}) {
    report::StackedBars chart{title, {}, {}, ""};
    std::vector<std::size_t> shown;  // parts that any run has
    for (std::size_t p = 0; p < kTimeParts.size(); ++p) {
      const bool any = std::ranges::any_of(runs, [&](const Run& run) {
        return run.result.*member.*kTimeParts[p].second > 0.0005 * (run.result.*member).sum();
      });
      if (!any && p > 0) continue;
      shown.push_back(p);
      chart.parts.emplace_back(kTimeParts[p].first);
    }
    for (const Run& run : runs) {
      report::StackedBars::Bar bar{run_name(run, runs), {}};
      for (const std::size_t p : shown) bar.parts.push_back(run.result.*member.*kTimeParts[p].second);
      chart.bars.push_back(std::move(bar));
    }
    chart.note =
        "The number is the share that ranks loaded equally would take; the parts add up to the steps' time.";
    figures.push_back(report::stacked_bars(chart));
  }
  Html out = report::grid(figures);
  out += report::remark(
      "Attention wait: for the rank with the most attention (decode: KV). Batch wait: for the rank with the "
      "most other "
      "work (decode: requests). Padding: batches filled up to a captured graph size. Experts: MoE layers "
      "wait for the "
      "busiest rank; drift: what a fresh plan would avoid; moves and copies: what balancing them costs.");
  return out;
}

/// A percentile of every tier over time; empty buckets are gaps.
report::LineChart percentile_chart(const sim::Recording& r, const std::vector<std::string>& names,
                                   const char* title, const char* unit, double scale,
                                   std::vector<sim::Percentiles> sim::TierOverTime::*of) {
  report::LineChart chart{
      title,         unit, report::time_axis(r.seconds(), r.buckets), {}, true, "Solid: P99, dashed: P50.",
      fault_marks(r)};
  chart.logarithmic = of != &sim::TierOverTime::queue;  // most requests wait for nothing
  for (std::size_t t = 0; t < r.tiers.size() && t < names.size(); ++t) {
    report::LineSeries high{names[t], {}, static_cast<int>(t), false, true},
        middle{names[t] + " P50", {}, static_cast<int>(t), true, false};
    bool any = false;
    for (const sim::Percentiles& one : r.tiers[t].*of) {
      any |= one.count > 0;
      high.values.push_back(one.count > 0 ? one.p99 * scale : kNone);
      middle.values.push_back(one.count > 0 ? one.p50 * scale : kNone);
    }
    if (!any) continue;
    chart.series.push_back(std::move(high));
    chart.series.push_back(std::move(middle));
  }
  return chart;
}

report::LineChart over_time(const sim::Recording& r, const char* title, const char* unit) {
  return {title, unit, report::time_axis(r.seconds(), r.buckets), {}, false, "", fault_marks(r)};
}

std::string rank_label(std::size_t rank, std::uint32_t per_engine) {
  return fmt::format("{}.{}", rank / std::max(per_engine, 1U), rank % std::max(per_engine, 1U));
}

Html rank_map(const sim::Recording& r, const char* title, const char* unit,
              const std::vector<sim::Series>& values, std::uint32_t per_engine, std::optional<double> top,
              const char* note) {
  report::HeatMap map{title, unit, report::time_axis(r.seconds(), r.buckets), {}, values, note, {}, {}, top};
  for (std::size_t k = 0; k < values.size(); ++k) map.rows.push_back(rank_label(k, per_engine));
  return report::heat_map(std::move(map));
}

/// Which engines served which tiers: the ranges seen are the kinds.
Html allocation(const sim::Recording& r) {
  report::HeatMap map{"Tiers that prefill engines serve",
                      "",
                      report::time_axis(r.seconds(), r.buckets),
                      {},
                      {},
                      "Tier 0 has the shortest contexts. An engine without a tier in its range takes none.",
                      {},
                      {},
                      {}};
  std::vector<std::vector<std::string>> served(r.engine_tiers.size());
  std::map<std::string, std::size_t> kinds;
  for (std::size_t e = 0; e < r.engine_tiers.size(); ++e) {
    for (std::size_t i = 0; i < r.buckets; ++i) {
      std::string name;
      for (std::size_t t = 0; t < r.engine_tiers[e].size(); ++t) {
        if (r.engine_tiers[e][t][i] >= 0.5) name += (name.empty() ? "tier " : " + ") + std::to_string(t);
      }
      if (name.empty()) name = "none";
      served[e].push_back(name);
      kinds.emplace(name, 0);
    }
  }
  for (auto& [name, index] : kinds) {
    index = map.kinds.size();
    map.kinds.push_back(name);
  }
  for (std::size_t e = 0; e < served.size(); ++e) {
    map.rows.push_back(fmt::format("{}", e));
    std::vector<double> row;
    for (const std::string& name : served[e]) row.push_back(static_cast<double>(kinds.at(name)));
    map.values.push_back(std::move(row));
  }
  return report::heat_map(std::move(map), std::numeric_limits<std::size_t>::max());
}

report::LineChart peak_over_mean(const sim::Recording& r) {
  report::LineChart chart = over_time(r, "Busiest decode rank over the mean", "ratio");
  for (const auto& [name, values] :
       {std::pair{"KV", &r.decode_kv}, std::pair{"requests", &r.decode_running}}) {
    report::LineSeries series{name, {}, static_cast<int>(chart.series.size()), false};
    for (std::size_t i = 0; i < r.buckets; ++i) {
      double sum = 0, top = 0;
      for (const sim::Series& rank : *values) {
        sum += rank[i];
        top = std::max(top, rank[i]);
      }
      series.values.push_back(sum > 0 ? top * static_cast<double>(values->size()) / sum : kNone);
    }
    chart.series.push_back(std::move(series));
  }
  chart.note = "1 is perfectly even.";
  return chart;
}

report::LineChart loss_chart(const sim::Recording& r, const char* title,
                             const std::vector<sim::StepTimes>& times) {
  report::LineChart chart = over_time(r, title, "% of the steps' time");
  for (std::size_t p = 1; p < kTimeParts.size(); ++p) {
    report::LineSeries series{kTimeParts[p].first, {}, static_cast<int>(p), false};
    bool any = false;
    for (const sim::StepTimes& one : times) {
      const double whole = one.sum();
      any |= one.*kTimeParts[p].second > 0;
      series.values.push_back(whole > 0 ? 100 * one.*kTimeParts[p].second / whole : kNone);
    }
    if (any) chart.series.push_back(std::move(series));
  }
  return chart;
}

Html run_over_time(const sim::Recording& r, const std::vector<std::string>& names) {
  report::LineChart load = over_time(r, "Requests", "per s");
  for (const auto& [name, values] : {std::pair{"arrive", &r.arrivals}, std::pair{"finish", &r.finished}}) {
    report::LineSeries series{name, {}, static_cast<int>(load.series.size()), false};
    for (const double value : *values) series.values.push_back(value / r.seconds());
    load.series.push_back(std::move(series));
  }
  report::LineChart queued = over_time(r, "Requests that wait, by tier", "requests");
  for (std::size_t t = 0; t < r.queued.size(); ++t)
    queued.series.push_back({fmt::format("tier {}", t), r.queued[t], static_cast<int>(t), false});
  report::LineChart hits = over_time(r, "Prompt tokens found in the pool", "%");
  report::LineSeries rate{"hit rate", {}, 2, false};
  for (std::size_t i = 0; i < r.buckets; ++i)
    rate.values.push_back(r.prompt_tokens[i] > 0 ? 100 * r.hit_tokens[i] / r.prompt_tokens[i] : kNone);
  hits.series.push_back(std::move(rate));
  std::vector<sim::Series> busy = r.prefill_busy;
  for (sim::Series& rank : busy)
    for (double& value : rank) value *= 100;
  return report::grid(
      {report::line_chart(load), report::line_chart(queued),
       report::line_chart(
           percentile_chart(r, names, "Time to first token", "s", 1, &sim::TierOverTime::ttft)),
       report::line_chart(percentile_chart(r, names, "Wait in the queue", "s", 1, &sim::TierOverTime::queue)),
       report::line_chart(
           percentile_chart(r, names, "Time per output token", "ms", 1e3, &sim::TierOverTime::tpot)),
       report::line_chart(hits), allocation(r),
       rank_map(r, "Prefill ranks: own work", "% of the time", busy, r.prefill_ranks, 100,
                "Engine.rank; what is missing to 100 is waiting for peers or for work."),
       rank_map(r, "Decode ranks: KV", "tokens", r.decode_kv, r.decode_ranks, {}, "Group.rank."),
       rank_map(r, "Decode ranks: running requests", "requests", r.decode_running, r.decode_ranks, {},
                "Group.rank."),
       report::line_chart(peak_over_mean(r)),
       report::line_chart(loss_chart(r, "Lost in prefill steps", r.prefill_times)),
       report::line_chart(loss_chart(r, "Lost in decode steps", r.decode_times))});
}

/// Runs that share a time axis, in one chart each.
Html runs_over_time(const std::vector<Run>& runs) {
  report::LineChart ttft{"P99 of the time to first token, all tiers", "s", {}, {}, true, ""};
  report::LineChart ideal{"Decode steps: ideal over actual", "%", {}, {}, false, ""};
  double widest = 0;
  std::size_t longest = 0;
  for (const Run& run : runs) {
    if (run.recording && run.recording->seconds() * static_cast<double>(run.recording->buckets) >
                             widest * static_cast<double>(longest)) {
      widest = run.recording->seconds();
      longest = run.recording->buckets;
    }
  }
  ttft.x = ideal.x = report::time_axis(widest, longest);
  for (std::size_t k = 0; k < runs.size(); ++k) {
    if (!runs[k].recording) continue;
    const sim::Recording& r = *runs[k].recording;
    report::LineSeries worst{run_name(runs[k], runs), {}, static_cast<int>(k), k >= 8}, share = worst;
    for (std::size_t i = 0; i < longest; ++i) {
      const auto at = static_cast<std::size_t>((static_cast<double>(i) + 0.5) * widest / r.seconds());
      double most = kNone;
      if (at < r.buckets) {
        for (const sim::TierOverTime& tier : r.tiers)
          if (tier.ttft[at].count > 0) most = std::fmax(most, tier.ttft[at].p99);  // which ignores a NaN
      }
      worst.values.push_back(most);
      share.values.push_back(at < r.buckets && r.decode_times[at].sum() > 0 ? 100 * r.decode_times[at].share()
                                                                            : kNone);
    }
    ttft.series.push_back(std::move(worst));
    ideal.series.push_back(std::move(share));
  }
  ttft.note = "Of each moment, the tier that waits longest.";
  return report::grid({report::line_chart(ttft), report::line_chart(ideal)});
}

}  // namespace

std::string simulation_html(const std::vector<Run>& runs, const model::Trace& trace,
                            const model::Scenario& scenario, bool capacity) {
  const model::ClusterConfig& cluster = scenario.cluster;
  const std::vector<std::string> names = tier_names(scenario.report_bounds_tokens);
  const sim::Result& first = runs.front().result;
  report::HtmlPage page(
      fmt::format("Simulation of {}", trace.name),
      fmt::format("{}, {:.0f} s simulated; model {}; {} prefill engines x {} ranks, {} decode groups x {} "
                  "ranks; {} form, seed {}",
                  counted(first.submitted, "request"), base::to_seconds(first.span), scenario.profile.name,
                  cluster.prefill.engines, cluster.prefill.ranks, cluster.decode.groups, cluster.decode.ranks,
                  scenario.speed == model::SimulationSpeed::kExact ? "exact" : "fast", scenario.seed));
  page.section("summary", runs.size() > 1 ? "Policy against policy" : "Summary", summary(runs, capacity));
  page.section("loss", "Where the steps' time goes", losses(runs));
  page.section("tiers", "By context", tiers(runs, names));
  for (const auto& [id, title, section] : {std::tuple{"experts", "Experts on their ranks", &experts_section},
                                           std::tuple{"faults", "Faults", &faults_section},
                                           std::tuple{"storage", "Storage nodes", &storage_section},
                                           std::tuple{"vision", "Vision machines", &vision_section},
                                           std::tuple{"network", "Machines' networks", &network_section}}) {
    const Html part = section(runs);
    if (!part.text().empty()) page.section(id, title, part);
  }
  Html over;
  if (runs.size() > 1) over += runs_over_time(runs);
  for (std::size_t k = 0; k < runs.size(); ++k) {
    if (!runs[k].recording) continue;
    const Html charts = run_over_time(*runs[k].recording, names);
    over += runs.size() == 1 ? charts : report::folded(run_name(runs[k], runs), charts, k == 0);
  }
  page.section("time", "Over time", over);
  return page.text();
}

}  // namespace trimtab::apps
