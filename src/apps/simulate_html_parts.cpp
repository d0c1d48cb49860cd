// Sections of the page of `trimtab simulate --report` that only some runs have: experts on their ranks, what
// faults did, storage nodes, vision machines, machines' networks.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "apps/simulate_output.h"
#include "apps/simulate_words.h"
#include "report/charts.h"

namespace trimtab::apps {
namespace {

using report::Cell;
using report::Html;

constexpr std::size_t kExpertsShown = 96;

/// The experts that most is asked of, first.
std::vector<std::size_t> by_popularity(const std::vector<double>& popularity) {
  std::vector<std::size_t> order(popularity.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order,
                           [&](std::size_t a, std::size_t b) { return popularity[a] > popularity[b]; });
  order.resize(std::min(order.size(), kExpertsShown));
  return order;
}

/// Ranks down, with their load over the mean; the most popular experts across.
Html experts_map(const sim::ExpertPicture& picture, const std::vector<double>& placed, std::string title,
                 double top) {
  report::HeatMap map{std::move(title), "of a mean rank's load", {}, {}, {}, "", {}, {}, top};
  const std::vector<std::size_t> order = by_popularity(picture.popularity);
  const std::vector<double> loads = rank_loads(picture, placed);
  for (std::uint32_t rank = 0; rank < picture.ranks; ++rank) {
    map.rows.push_back(fmt::format("{} ({:.2f})", rank, loads[rank]));
    std::vector<double> row;
    for (const std::size_t expert : order)
      row.push_back(placed[rank * picture.popularity.size() + expert] * picture.ranks);
    map.values.push_back(std::move(row));
  }
  for (const std::size_t expert : order) map.columns.push_back(std::to_string(expert));
  map.note = fmt::format(
      "A row is a rank, with its load over the mean rank's; across, {} of {} experts by popularity. First "
      "simulated layer, loads of the run's end.",
      order.size(), picture.popularity.size());
  return report::heat_map(std::move(map), std::numeric_limits<std::size_t>::max());
}

Html experts_of(const sim::ExpertPicture& picture, const std::string& name) {
  double top = 0;
  for (const std::vector<double>* placed : {&picture.before, &picture.after})
    top = std::max(top, *std::ranges::max_element(*placed) * picture.ranks);
  report::ValueBars bars{
      name + ": busiest rank", "x the mean rank", {}, 3, "Dashed: as placed at the start."};
  bars.bars.push_back({picture.plans > 0 ? fmt::format("after {}", counted(picture.plans, "re-placement"))
                                         : "never re-placed",
                       busiest(picture, picture.after), busiest(picture, picture.before)});
  return report::grid({experts_map(picture, picture.before, name + ": experts as placed at the start", top),
                       experts_map(picture, picture.after, name + ": experts as re-placed", top),
                       report::value_bars(bars)});
}

Cell number(double value, int decimals = 0) { return {fmt::format("{:.{}f}", value, decimals), {}}; }

std::vector<Cell> named(const Run& run, const std::vector<Run>& runs) { return {{run_name(run, runs), {}}}; }

void append(std::vector<Cell>& row, std::initializer_list<Cell> cells) {
  row.insert(row.end(), cells.begin(), cells.end());
}

Html faults_over_time(const sim::Recording& r) {
  report::LineChart chart{"Requests", "per s", report::time_axis(r.seconds(), r.buckets), {}, false, ""};
  for (const auto& [name, values] :
       {std::pair{"retried", &r.retried}, std::pair{"failed", &r.failed}, std::pair{"finish", &r.finished}}) {
    report::LineSeries series{name, {}, static_cast<int>(chart.series.size()), false};
    for (const double value : *values) series.values.push_back(value / r.seconds());
    chart.series.push_back(std::move(series));
  }
  chart.marks = fault_marks(r);
  chart.note = "Dotted: a fault begins. Retried: computed again, or asked again by the client.";
  return report::line_chart(chart);
}

Html faults_list(const sim::Recording& r) {
  constexpr std::size_t kShown = 40;
  std::vector<std::vector<Cell>> rows;
  for (const sim::FaultMark& fault : r.faults) {
    if (rows.size() == kShown) break;
    rows.push_back(
        {number(base::to_seconds(fault.from - r.origin), 1),
         {fault_name(fault), {}},
         {fault.until.value < 0 ? "not over at the end"
                                : fmt::format("{:.1f}", base::to_seconds(fault.until - fault.from)),
          {}}});
  }
  Html out = report::table({{"at s"}, {"what", report::Align::kLeft}, {"for s"}}, rows);
  const std::size_t more = r.faults.size() + r.faults_left_out - rows.size();
  if (more > 0) out += report::remark(fmt::format("and {} more; faults.csv (--csv) has them", more));
  return out;
}

}  // namespace

Html experts_section(const std::vector<Run>& runs) {
  Html out;
  for (std::size_t k = 0; k < runs.size(); ++k) {
    if (!runs[k].recording || runs[k].recording->decode_experts.ranks == 0) continue;
    Html one = experts_of(runs[k].recording->prefill_experts, "Prefill engine 0");
    one += experts_of(runs[k].recording->decode_experts, "Decode group 0");
    out += runs.size() == 1 ? one : report::folded(run_name(runs[k], runs), one, k == 0);
  }
  return out;
}

Html faults_section(const std::vector<Run>& runs) {
  if (std::ranges::none_of(runs, [](const Run& run) { return run.result.faults.any(); })) return {};
  std::vector<std::vector<Cell>> rows;
  for (const Run& run : runs) {
    const sim::FaultOutcome& f = run.result.faults;
    std::vector<Cell> row = named(run, runs);
    for (const double value : {static_cast<double>(f.engines_lost), base::to_seconds(f.engine_down),
                               static_cast<double>(f.steps_lost), base::to_seconds(f.steps_lost_span),
                               static_cast<double>(f.passes_repeated), static_cast<double>(f.requests_moved),
                               static_cast<double>(f.streams_broken), static_cast<double>(f.fallback_tokens)})
      row.push_back({fmt::format("{:.6g}", std::round(value * 10) / 10), {}});
    rows.push_back(std::move(row));
  }
  Html out = report::table({{"run", report::Align::kLeft},
                            {"engines lost"},
                            {"away s"},
                            {"steps lost"},
                            {"of s"},
                            {"passes repeated"},
                            {"failed over"},
                            {"streams broken"},
                            {"tokens for want of storage"}},
                           rows);
  out += report::remark(
      "Away: summed over engines, start-up included. Steps lost: under way when their group died. Failed "
      "over: "
      "asked again at another entrypoint.");
  for (std::size_t k = 0; k < runs.size(); ++k) {
    if (!runs[k].recording || runs[k].recording->faults.empty()) continue;
    Html one = faults_over_time(*runs[k].recording);
    one += faults_list(*runs[k].recording);
    out += runs.size() == 1 ? one : report::folded(run_name(runs[k], runs), one, k == 0);
  }
  return out;
}

Html storage_section(const std::vector<Run>& runs) {
  std::vector<std::vector<Cell>> rows;
  for (const Run& run : runs) {
    const sim::StorageOutcome& storage = run.result.storage;
    for (std::size_t n = 0; n < storage.nodes.size(); ++n) {
      const sim::StorageNode& node = storage.nodes[n];
      std::vector<Cell> row = named(run, runs);
      append(row, {number(static_cast<double>(n)), number(static_cast<double>(node.reads)),
                   number(storage.node_bytes[n] * 1e-9, 2), number(node.delay.mean_s() * 1e3, 3),
                   number(node.delay.quantile_s(0.99) * 1e3, 3), number(static_cast<double>(node.asked)),
                   number(100 * node.hit_share(), 1)});
      rows.push_back(std::move(row));
    }
  }
  if (rows.empty()) return {};
  Html out = report::table({{"run", report::Align::kLeft},
                            {"node"},
                            {"reads"},
                            {"GB"},
                            {"read mean ms"},
                            {"p99 ms"},
                            {"blocks asked for"},
                            {"found %"}},
                           rows);
  out += report::remark(
      "A read: one request's blocks on the node, from asked to delivered, the queue included. Asked for: a "
      "prefix is looked up block by block until one is missing.");
  return out;
}

Html vision_section(const std::vector<Run>& runs) {
  std::vector<std::vector<Cell>> rows;
  for (const Run& run : runs) {
    const sim::VisionOutcome& vision = run.result.vision;
    if (vision.images == 0) continue;
    const double span = std::max(base::to_seconds(run.result.span), 1e-9);
    for (std::size_t m = 0; m < vision.machines.size(); ++m) {
      const sim::VisionMachine& machine = vision.machines[m];
      std::vector<Cell> row = named(run, runs);
      append(row, {number(static_cast<double>(m)), number(static_cast<double>(machine.images)),
                   number(static_cast<double>(machine.patches)), number(machine.delay.mean_s() * 1e3, 2),
                   number(machine.delay.quantile_s(0.99) * 1e3, 2), number(machine.waiting_s / span, 3),
                   number(machine.queue_most), number(100 * machine.busy, 1)});
      rows.push_back(std::move(row));
    }
  }
  if (rows.empty()) return {};
  Html out = report::table({{"run", report::Align::kLeft},
                            {"machine"},
                            {"images"},
                            {"patches"},
                            {"mean ms"},
                            {"p99 ms"},
                            {"waiting, mean"},
                            {"most at an encoder"},
                            {"busy %"}},
                           rows);
  out += report::remark("From asked to encoded. Waiting: images that are not being encoded yet.");
  return out;
}

Html network_section(const std::vector<Run>& runs) {
  std::vector<std::vector<Cell>> rows;
  for (const Run& run : runs) {
    const sim::NetworkOutcome& network = run.result.network;
    for (const bool prefill : {true, false}) {
      const auto from = static_cast<std::ptrdiff_t>(prefill ? 0 : network.prefill_machines);
      const auto to =
          static_cast<std::ptrdiff_t>(prefill ? network.prefill_machines : network.machine_bytes.size());
      if (to <= from) continue;
      const auto begin = network.machine_busy.begin();
      std::vector<Cell> row = named(run, runs);
      append(
          row,
          {{prefill ? "prefill" : "decode", {}},
           number(static_cast<double>(to - from)),
           number(std::accumulate(network.machine_bytes.begin() + from, network.machine_bytes.begin() + to,
                                  0.0) *
                      1e-9,
                  2),
           number(100 * std::accumulate(begin + from, begin + to, 0.0) / static_cast<double>(to - from), 1),
           number(100 * *std::max_element(begin + from, begin + to), 1),
           number(network.wait.mean_s() * 1e3, 3),
           number(network.wait.quantile_s(0.99) * 1e3, 3)});
      rows.push_back(std::move(row));
    }
  }
  if (rows.empty()) return {};
  Html out = report::table({{"run", report::Align::kLeft},
                            {"machines of", report::Align::kLeft},
                            {"machines"},
                            {"GB"},
                            {"busy %"},
                            {"busiest %"},
                            {"wait mean ms"},
                            {"p99 ms"}},
                           rows);
  out += report::remark("Wait: of a read or a hand-over, both sides together, for those before it.");
  return out;
}

}  // namespace trimtab::apps
