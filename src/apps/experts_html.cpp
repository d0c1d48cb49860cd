#include "apps/experts_html.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "apps/experts_inputs.h"
#include "report/charts.h"

namespace trimtab::apps {
namespace {

using report::Html;

/// Counts of one step and layer, [experts].
std::span<const double> counts_of(const io::ExpertLoads& loads, std::int32_t step, std::int32_t layer) {
  const auto experts = static_cast<std::size_t>(loads.experts);
  const std::size_t at = (static_cast<std::size_t>(step) * static_cast<std::size_t>(loads.layers) +
                          static_cast<std::size_t>(layer)) *
                         experts;
  return std::span(loads.counts).subspan(at, experts);
}

std::vector<double> totals_of(const io::ExpertLoads& loads, std::int32_t layer) {
  std::vector<double> totals(static_cast<std::size_t>(loads.experts));
  for (std::int32_t step = 0; step < loads.steps; ++step) {
    const auto counts = counts_of(loads, step, layer);
    for (std::size_t e = 0; e < totals.size(); ++e) totals[e] += counts[e];
  }
  return totals;
}

/// Tokens of each slot when copies share evenly, [slots].
std::vector<double> slot_loads(const experts::Shape& shape, const experts::SlotMap& map,
                               std::span<const double> counts) {
  const auto copies = experts::copies_of(shape, map);
  std::vector<double> out;
  for (const std::int32_t expert : map)
    out.push_back(counts[static_cast<std::size_t>(expert)] / copies[static_cast<std::size_t>(expert)]);
  return out;
}

std::vector<double> by_rank(const experts::Shape& shape, const std::vector<double>& slots) {
  std::vector<double> ranks(static_cast<std::size_t>(shape.ranks));
  for (std::size_t s = 0; s < slots.size(); ++s)
    ranks[static_cast<std::size_t>(shape.rank_of_slot(static_cast<std::int32_t>(s)))] += slots[s];
  return ranks;
}

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// Busiest rank over mean in every step, of one layer.
std::vector<double> balance_by_step(const experts::Shape& shape, const experts::SlotMap& map,
                                    const io::ExpertLoads& loads, std::int32_t layer) {
  std::vector<double> out;
  for (std::int32_t step = 0; step < loads.steps; ++step) {
    const auto ranks = by_rank(shape, slot_loads(shape, map, counts_of(loads, step, layer)));
    const double mean = mean_of(ranks);
    out.push_back(mean > 0 ? *std::ranges::max_element(ranks) / mean
                           : std::numeric_limits<double>::quiet_NaN());
  }
  return out;
}

/// Ranks down, their copies across with the hottest first.
Html copies_map(const std::string& title, const experts::Shape& shape, const experts::SlotMap& map,
                std::span<const double> totals, double top) {
  const std::vector<double> slots = slot_loads(shape, map, totals);
  const double mean = std::max(mean_of(slots), 1e-12);
  report::HeatMap out{title, "x the mean copy", {}, {}, {}, "", {}, {}, top};
  const std::int32_t per_rank = shape.slots_per_rank();
  for (std::int32_t rank = 0; rank < shape.ranks; ++rank) {
    std::vector<double> row(slots.begin() + std::ptrdiff_t{rank} * per_rank,
                            slots.begin() + std::ptrdiff_t{rank + 1} * per_rank);
    std::ranges::sort(row, std::greater{});
    const double sum = std::accumulate(row.begin(), row.end(), 0.0);
    for (double& value : row) value /= mean;
    out.rows.push_back(fmt::format("{} ({:.2f})", rank, sum / (mean * per_rank)));
    out.values.push_back(std::move(row));
  }
  for (std::int32_t c = 0; c < per_rank; ++c) out.columns.push_back(std::to_string(c + 1));
  out.note = "A row is a rank with its load over the mean rank's; its copies of experts, the hottest left.";
  return report::heat_map(std::move(out));
}

/// Layers down, ranks across.
Html layers_map(const std::string& title, const experts::Shape& shape,
                const std::vector<experts::SlotMap>& maps, const io::ExpertLoads& loads, double top) {
  report::HeatMap out{title, "x the mean rank", {}, {}, {}, "", {}, {}, top};
  for (std::size_t layer = 0; layer < maps.size(); ++layer) {
    auto ranks =
        by_rank(shape, slot_loads(shape, maps[layer], totals_of(loads, static_cast<std::int32_t>(layer))));
    const double mean = std::max(mean_of(ranks), 1e-12);
    for (double& rank : ranks) rank /= mean;
    out.rows.push_back(fmt::format("layer {}", layer));
    out.values.push_back(std::move(ranks));
  }
  for (std::int32_t r = 0; r < shape.ranks; ++r) out.columns.push_back(std::to_string(r));
  out.note = "Across: ranks.";
  return report::heat_map(std::move(out), std::numeric_limits<std::size_t>::max());
}

double hottest_rank(const experts::Shape& shape, const std::vector<experts::SlotMap>& maps,
                    const io::ExpertLoads& loads) {
  double top = 1;
  for (std::size_t layer = 0; layer < maps.size(); ++layer) {
    const auto ranks =
        by_rank(shape, slot_loads(shape, maps[layer], totals_of(loads, static_cast<std::int32_t>(layer))));
    top = std::max(top, *std::ranges::max_element(ranks) / std::max(mean_of(ranks), 1e-12));
  }
  return top;
}

Html layer_table(const MapsPage& page) {
  const bool two = !page.after_name.empty();
  std::vector<report::HtmlColumn> columns = {{"layer"}, {two ? "balance before" : "balance"}};
  if (two) columns.insert(columns.end(), {{"after"}, {"copies received"}});
  std::vector<std::vector<report::Cell>> rows;
  const auto add = [&](std::string name, double before, double after, std::int64_t received) {
    std::vector<report::Cell> row = {{std::move(name), {}}, {fmt::format("{:.4f}", before), {}}};
    if (two) row.insert(row.end(), {{fmt::format("{:.4f}", after), {}}, {fmt::format("{}", received), {}}});
    rows.push_back(std::move(row));
  };
  add("all", total_before(page.scores), total_after(page.scores), total_received(page.scores));
  for (const LayerScore& one : page.scores)
    add(std::to_string(one.layer), one.before, one.after, one.received);
  return report::table(columns, rows);
}

}  // namespace

std::string maps_html(const MapsPage& page, const io::ExpertLoads& loads) {
  const bool two = !page.after_name.empty();
  const auto layer = static_cast<std::size_t>(page.layer);
  const std::vector<double> totals = totals_of(loads, page.layer);
  report::HtmlPage out(page.title, page.subtitle);
  report::ValueBars bars{"Balance by layer", "busiest rank / mean rank", {}, 3, ""};
  for (const LayerScore& one : page.scores) {
    bars.bars.push_back({fmt::format("layer {}", one.layer), two ? one.after : one.before,
                         two ? std::optional(one.before) : std::nullopt});
  }
  Html balance = report::paragraph(
      two ? fmt::format(
                "Busiest rank over the mean, summed over the steps: {:.4f} before ({}), {:.4f} after ({}).",
                total_before(page.scores), page.before_name, total_after(page.scores), page.after_name)
          : fmt::format("Busiest rank over the mean, summed over the steps: {:.4f} ({}).",
                        total_before(page.scores), page.before_name));
  report::LineChart steps{fmt::format("Balance of layer {} step by step", page.layer),
                          "busiest rank / mean rank",
                          {0, 1, "step"},
                          {},
                          false,
                          "1 is perfectly even."};
  steps.series.push_back({two ? "before" : "balance",
                          balance_by_step(page.shape_before, page.before[layer], loads, page.layer), 1,
                          false});
  if (two)
    steps.series.push_back(
        {"after", balance_by_step(page.shape, page.after[layer], loads, page.layer), 0, false});
  balance += report::grid({report::value_bars(bars), report::line_chart(steps)});
  out.section("balance", "Balance", balance);

  const double rank_top = hottest_rank(page.shape_before, page.before, loads);
  const auto slots = slot_loads(page.shape_before, page.before[layer], totals);
  const double copy_top = *std::ranges::max_element(slots) / std::max(mean_of(slots), 1e-12);
  std::vector<Html> maps = {
      layers_map(two ? "Ranks, before" : "Ranks", page.shape_before, page.before, loads, rank_top)};
  if (two) maps.push_back(layers_map("Ranks, after", page.shape, page.after, loads, rank_top));
  const std::string of = fmt::format("Experts on the ranks of layer {}", page.layer);
  maps.push_back(
      copies_map(two ? of + ", before" : of, page.shape_before, page.before[layer], totals, copy_top));
  if (two) maps.push_back(copies_map(of + ", after", page.shape, page.after[layer], totals, copy_top));
  out.section("ranks", "Experts and ranks", report::grid(maps));
  out.section("layers", "By layer", layer_table(page));
  return out.text();
}

std::string rules_html(const std::vector<RuleScore>& rules, const std::string& title,
                       const std::string& subtitle) {
  report::HtmlPage page(title, subtitle);
  const auto right = report::Align::kRight;
  const auto less = report::Better::kLess;
  std::vector<std::vector<report::Cell>> rows;
  report::ValueBars balance{"Balance that is left", "busiest rank / mean rank - 1", {}, 4, ""},
      moves{"Copies received", "per layer and step", {}, 2, ""};
  for (const RuleScore& rule : rules) {
    const auto number = [](double value, int decimals) {
      return report::Cell{fmt::format("{:.{}f}", value, decimals), value};
    };
    rows.push_back({{rule.name, {}},
                    number(rule.score.of_sums, 4),
                    number(rule.score.mean_ratio, 4),
                    {fmt::format("{:.2f}", rule.score.moves), {}},
                    {fmt::format("{:.1f}", 100 * rule.score.slots_moved_ratio), {}},
                    {fmt::format("{}", rule.score.duplicates), {}}});
    balance.bars.push_back({rule.name, rule.score.of_sums - 1, {}});
    moves.bars.push_back({rule.name, rule.score.moves, {}});
  }
  Html content = report::table({{"rule", report::Align::kLeft},
                                {"balance", right, less},
                                {"mean ratio", right, less},
                                {"moves / layer / step"},
                                {"moved / plan %"},
                                {"duplicates"}},
                               rows);
  content += report::grid({report::value_bars(balance), report::value_bars(moves)});
  content += report::remark(
      "Balance: the busiest rank's tokens over the mean rank's, summed over steps and layers.");
  page.section("rules", "Planning rules", content);
  return page.text();
}

std::string advice_html(const experts_eval::AdviseResult& result, const std::string& subtitle) {
  report::HtmlPage page("Is balancing experts worth it?", subtitle);
  std::vector<std::vector<report::Cell>> rows;
  std::vector<std::int32_t> sizes;
  for (std::size_t i = 0; i < result.rows.size(); ++i) {
    const experts_eval::Advice& row = result.rows[i];
    if (std::ranges::find(sizes, row.ep_size) == sizes.end()) sizes.push_back(row.ep_size);
    std::string mark = row.knee ? "knee" : "";
    if (static_cast<std::int32_t>(i) == result.best_row) mark += mark.empty() ? "best" : ", best";
    rows.push_back(
        {{std::to_string(row.ep_size), {}},
         {std::to_string(row.slots), {}},
         {std::to_string(row.redundant), {}},
         {fmt::format("{:.3f}", row.balance_none), {}},
         {fmt::format("{:.3f}", row.balance), {}},
         {bytes_text(static_cast<double>(row.memory_bytes)), {}},
         {bytes_text(static_cast<double>(row.memory_bytes_per_rank)), {}},
         {fmt::format("{:.2f}", 100 * row.step_saved_ratio), {}},
         {fmt::format("{:.2f}", 100 * row.step_saved_net_ratio), 100 * row.step_saved_net_ratio},
         {std::to_string(row.period_steps), {}},
         {std::isfinite(row.break_even_steps) ? fmt::format("{:.0f}", std::ceil(row.break_even_steps))
                                              : "never",
          {}},
         {mark, {}}});
  }
  Html content = report::paragraph(
      "Best: " + experts_eval::describe(result.rows[static_cast<std::size_t>(result.best_row)]) + ".");
  content += report::table({{"EP"},
                            {"slots"},
                            {"extra"},
                            {"unbalanced"},
                            {"balanced"},
                            {"memory"},
                            {"a rank"},
                            {"saved %"},
                            {"net %", report::Align::kRight, report::Better::kMore},
                            {"re-placed every"},
                            {"even after steps"},
                            {"", report::Align::kLeft}},
                           rows);
  std::vector<Html> figures;
  for (const std::int32_t ep : sizes) {
    report::ValueBars balance{fmt::format("EP{}: balance that is left, by slots", ep),
                              "busiest rank / mean rank - 1",
                              {},
                              3,
                              "Before: the same slots by number, never re-placed."},
        saved{fmt::format("EP{}: saved of a step, by slots", ep), "%, after what moves cost", {}, 2, ""};
    for (const experts_eval::Advice& row : result.rows) {
      if (row.ep_size != ep) continue;
      const std::string label = fmt::format("{} slots", row.slots);
      balance.bars.push_back({label, row.balance - 1, row.balance_static - 1});
      saved.bars.push_back({label, 100 * row.step_saved_net_ratio, {}});
    }
    figures.push_back(report::value_bars(balance));
    figures.push_back(report::value_bars(saved));
  }
  content += report::grid(figures);
  content += report::remark(
      "Extra: redundant slots. Unbalanced: experts by number without them. Balanced: planned from the latest "
      "steps, scored "
      "on steps that the plan had not seen. Net: after what moves cost. Even after: steps until the first "
      "re-placement has "
      "paid for its moves.");
  page.section("slots", "Balance, memory and time against slots", content);
  return page.text();
}

}  // namespace trimtab::apps
