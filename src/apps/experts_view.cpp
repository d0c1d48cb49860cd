#include "apps/experts_view.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <utility>

#include "report/bars.h"
#include "report/table.h"

namespace trimtab::apps {

namespace {

double weighted(std::span<const LayerScore> layers, double LayerScore::*balance) {
  double peaks = 0, means = 0;
  for (const LayerScore& layer : layers) {
    peaks += layer.*balance * layer.tokens;
    means += layer.tokens;
  }
  return means > 0 ? peaks / means : 1;
}

}  // namespace

double total_before(std::span<const LayerScore> layers) { return weighted(layers, &LayerScore::before); }
double total_after(std::span<const LayerScore> layers) { return weighted(layers, &LayerScore::after); }

std::int64_t total_received(std::span<const LayerScore> layers) {
  std::int64_t sum = 0;
  for (const LayerScore& layer : layers) sum += layer.received;
  return sum;
}

std::int32_t worst_layer(std::span<const LayerScore> layers) {
  const auto worst =
      std::max_element(layers.begin(), layers.end(),
                       [](const LayerScore& a, const LayerScore& b) { return a.before < b.before; });
  return worst == layers.end() ? 0 : worst->layer;
}

std::string layers_table(std::span<const LayerScore> layers, const experts::Shape& shape,
                         std::size_t rows_max, LayerColumns columns, const report::Style& style) {
  std::vector<LayerScore> shown(layers.begin(), layers.end());
  const bool cut = shown.size() > rows_max;
  if (cut) {
    std::stable_sort(shown.begin(), shown.end(),
                     [](const LayerScore& a, const LayerScore& b) { return a.before > b.before; });
    shown.resize(rows_max);
  }
  std::vector<report::Column> titles = {{"layer"},
                                        {columns == LayerColumns::kOne ? "balance" : "balance before"}};
  if (columns != LayerColumns::kOne) titles.push_back({"after"});
  if (columns == LayerColumns::kMoves) {
    titles.push_back({"copies received"});
    titles.push_back({"of slots"});
  }
  report::Table table(titles);
  const auto add = [&](std::string name, const LayerScore& row, double slots) {
    std::vector<std::string> cells = {std::move(name), fmt::format("{:.4f}", row.before)};
    if (columns != LayerColumns::kOne) cells.push_back(fmt::format("{:.4f}", row.after));
    if (columns == LayerColumns::kMoves) {
      cells.push_back(fmt::format("{}", row.received));
      cells.push_back(fmt::format("{:.1f} %", 100 * static_cast<double>(row.received) / slots));
    }
    table.add_row(std::move(cells));
  };
  for (const LayerScore& layer : shown) add(fmt::format("{}", layer.layer), layer, shape.slots);
  if (cut) {
    table.add_row({fmt::format("{} more", layers.size() - rows_max)});
  }
  table.add_rule();
  const double slots = static_cast<double>(shape.slots) * static_cast<double>(layers.size());
  add("all", {0, total_before(layers), total_after(layers), 0, total_received(layers)}, slots);
  return table.text(style);
}

std::vector<double> rank_loads(const experts::Shape& shape, std::span<const std::int32_t> map,
                               const experts::LoadWindow& window) {
  const auto copies = experts::copies_of(shape, map);
  std::vector<double> loads(static_cast<std::size_t>(shape.ranks), 0);
  double sum = 0;
  for (std::int32_t slot = 0; slot < shape.slots; ++slot) {
    const auto expert = static_cast<std::size_t>(map[static_cast<std::size_t>(slot)]);
    const double load = window.totals()[expert] / copies[expert];
    loads[static_cast<std::size_t>(shape.rank_of_slot(slot))] += load;
    sum += load;
  }
  for (double& load : loads) load = sum > 0 ? load * shape.ranks / sum : 1;
  return loads;
}

std::string rank_chart(std::span<const double> before, std::span<const double> after,
                       const report::Style& style) {
  std::vector<report::Bar> bars;
  for (std::size_t rank = 0; rank < after.size(); ++rank) {
    bars.push_back({fmt::format("rank {}", rank), after[rank],
                    before.empty() ? std::nullopt : std::optional(before[rank])});
  }
  return report::bar_chart(bars, {.reference = 1.0}, style);
}

Progress::Progress(std::string what, std::int32_t total)
    : what_(std::move(what)),
      total_(total),
      is_tty_(::isatty(STDERR_FILENO) == 1),
      start_(std::chrono::steady_clock::now()),
      last_(start_) {}

Progress::~Progress() {
  if (shown_) std::cerr << "\r\x1b[K" << std::flush;
}

void Progress::tick() {
  const std::lock_guard lock(mutex_);
  ++done_;
  const auto now = std::chrono::steady_clock::now();
  const bool slow = now - start_ > std::chrono::milliseconds(500);
  if (!is_tty_ || !slow || now - last_ < std::chrono::milliseconds(100)) return;
  last_ = now;
  shown_ = true;
  std::cerr << fmt::format("\r{}: {} of {} layers", what_, done_, total_) << std::flush;
}

}  // namespace trimtab::apps
