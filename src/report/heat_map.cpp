#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "report/chart_frame.h"
#include "report/html_assets.h"

namespace trimtab::report {

namespace {

constexpr std::size_t kColumnsMax = 128;
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

/// Neighbours become their mean (of kinds: the first of them) until the columns are few enough.
void narrow(HeatMap& map) {
  while (!map.values.empty() && map.columns.empty() && map.values[0].size() > kColumnsMax) {
    for (auto& row : map.values) {
      std::vector<double> half;
      for (std::size_t i = 0; i < row.size(); i += 2) {
        const bool pair = i + 1 < row.size() && std::isfinite(row[i + 1]);
        half.push_back(!std::isfinite(row[i])      ? (pair ? row[i + 1] : kNone)
                       : pair && map.kinds.empty() ? (row[i] + row[i + 1]) / 2
                                                   : row[i]);
      }
      row = std::move(half);
    }
    map.x.step *= 2;
  }
}

/// Too many rows to see: each column is sorted, and rows are ranks of that order.
void rank_rows(HeatMap& map, std::size_t rows_max) {
  const std::size_t rows = map.values.size();
  if (rows <= rows_max || !map.kinds.empty()) return;
  std::vector<std::vector<double>> ranked(rows_max, std::vector<double>(map.values[0].size(), kNone));
  for (std::size_t c = 0; c < map.values[0].size(); ++c) {
    std::vector<double> column;
    for (const auto& row : map.values) column.push_back(std::isfinite(row[c]) ? row[c] : 0);
    std::ranges::sort(column, std::greater{});
    for (std::size_t r = 0; r < rows_max; ++r) ranked[r][c] = column[r * (rows - 1) / (rows_max - 1)];
  }
  map.note += fmt::format("{}{} rows are shown as {}: at every time the busiest is on top.",
                          map.note.empty() ? "" : " ", rows, rows_max);
  map.rows.clear();
  for (std::size_t r = 0; r < rows_max; ++r)
    map.rows.push_back(fmt::format("{} busiest of {}", r * (rows - 1) / (rows_max - 1) + 1, rows));
  map.values = std::move(ranked);
}

double top_of(const HeatMap& map) {
  double top = 0;
  for (const auto& row : map.values) {
    for (const double value : row) top = std::isfinite(value) ? std::max(top, value) : top;
  }
  return map.top.value_or(top > 0 ? top : 1);
}

/// The class of a cell's colour; -1: nothing is drawn.
int level(const HeatMap& map, double value, double top) {
  if (!std::isfinite(value) || value < 0) return -1;
  if (!map.kinds.empty()) return static_cast<int>(value) % kColours;
  return std::min(static_cast<int>(value / top * kHeatLevels), kHeatLevels - 1);
}

/// One path for each colour, of runs of equal cells.
std::string cells(const HeatMap& map, const Frame& frame, double row_height, double top) {
  std::vector<std::string> paths(std::max(kColours, kHeatLevels));
  const double columns = static_cast<double>(map.values[0].size());
  const double wide = (frame.right - frame.left) / columns;
  const double gap = row_height > 6 ? 1 : 0;
  for (std::size_t r = 0; r < map.values.size(); ++r) {
    const auto& row = map.values[r];
    const double y = frame.top + static_cast<double>(r) * row_height;
    for (std::size_t c = 0; c < row.size();) {
      std::size_t end = c + 1;
      const int of = level(map, row[c], top);
      while (end < row.size() && level(map, row[end], top) == of) ++end;
      if (of >= 0) {
        const double x = frame.left + static_cast<double>(c) * wide, w = static_cast<double>(end - c) * wide;
        paths[static_cast<std::size_t>(of)] +=
            fmt::format("M{:.1f} {:.1f}h{:.2f}v{:.1f}h-{:.2f}z", x, y, w, row_height - gap, w);
      }
      c = end;
    }
  }
  std::string out;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    if (paths[i].empty()) continue;
    out += fmt::format("<path class=\"{}{}\" d=\"{}\"/>\n", map.kinds.empty() ? 'h' : 'k', i, paths[i]);
  }
  return out;
}

std::string row_labels(const HeatMap& map, const Frame& frame, double row_height) {
  std::string out;
  const auto every = static_cast<std::size_t>(std::max(1.0, std::ceil(14 / row_height)));
  const bool ranked = !map.rows.empty() && map.rows[0].starts_with("1 busiest");
  for (std::size_t r = 0; r < map.rows.size(); r += every) {
    if (ranked && r > 0) break;
    const double y = frame.top + (static_cast<double>(r) + 0.5) * row_height + 4;
    out += fmt::format("<text x=\"{:.0f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n", frame.left - 6,
                       std::max(y, frame.top + 9), ranked ? "busiest" : escaped(map.rows[r]));
  }
  if (ranked) {
    out += fmt::format("<text x=\"{:.0f}\" y=\"{:.1f}\" text-anchor=\"end\">least</text>\n", frame.left - 6,
                       frame.bottom);
  }
  return out;
}

std::string column_labels(const HeatMap& map, const Frame& frame) {
  std::string out;
  const std::size_t every = (map.columns.size() + 9) / 10;
  for (std::size_t c = 0; c < map.columns.size(); c += every) {
    const double x = frame.left + (static_cast<double>(c) + 0.5) / static_cast<double>(map.columns.size()) *
                                      (frame.right - frame.left);
    out += fmt::format("<text x=\"{:.1f}\" y=\"{:.0f}\" text-anchor=\"middle\">{}</text>\n", x,
                       frame.bottom + 17, escaped(map.columns[c]));
  }
  return out;
}

std::string legend_of(const HeatMap& map, double top) {
  if (!map.kinds.empty()) {
    std::string out = "<ul class=\"legend\">";
    for (std::size_t i = 0; i < map.kinds.size(); ++i)
      out += fmt::format("<li><i class=\"k{}\"></i>{}</li>", i % kColours, escaped(map.kinds[i]));
    return out + "</ul>\n";
  }
  std::string out = "<div class=\"scale\">0<span>";
  for (int i = 0; i < kHeatLevels; ++i) out += fmt::format("<i class=\"h{}\"></i>", i);
  return out + fmt::format("</span>{} {}</div>\n", shortened_number(top), escaped(map.unit));
}

/// Longer names move the drawing to the right, as far as half of it.
double label_room(const HeatMap& map) {
  std::size_t longest = 6;
  if (!map.rows.empty() && map.rows[0].starts_with("1 busiest")) return 56;
  for (const std::string& row : map.rows) longest = std::max(longest, display_width(row));
  return std::min(12 + 7.0 * static_cast<double>(longest), 200.0);
}

}  // namespace

Html heat_map(HeatMap map, std::size_t rows_max) {
  std::string out = figure_open(map.title, map.unit);
  if (map.values.empty() || map.values[0].empty())
    return Html::trusted(out + "<p class=\"remark\">nothing to show</p>\n" + figure_close(""));
  narrow(map);
  rank_rows(map, std::max<std::size_t>(rows_max, 2));
  const auto rows = static_cast<double>(map.values.size());
  const double row_height = std::clamp(220 / rows, 3.0, 16.0);
  Frame frame;
  frame.left = label_room(map);
  frame.bottom = frame.top + rows * row_height;
  const double top = top_of(map);
  std::string values;
  for (const auto& row : map.values) values += (values.empty() ? "" : ",") + json_list(row);
  std::string more = "&quot;rows&quot;:" + json_list(map.rows) + ",&quot;values&quot;:[" + values +
                     "],&quot;unit&quot;:" + json_escaped(map.unit);
  if (!map.kinds.empty()) more += ",&quot;kinds&quot;:" + json_list(map.kinds);
  if (!map.columns.empty()) more += ",&quot;at&quot;:" + json_list(map.columns);
  const std::size_t columns = map.values[0].size();
  out += legend_of(map, top);
  out += fmt::format("<svg viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"{}\"{}>\n", frame.width,
                     frame.bottom + 26, escaped(map.title), chart_data(frame, map.x, columns, more));
  out += cells(map, frame, row_height, top) + row_labels(map, frame, row_height);
  out += map.columns.empty() ? x_axis(frame, map.x, columns) : column_labels(map, frame);
  return Html::trusted(out + "</svg>\n" + figure_close(map.note));
}

}  // namespace trimtab::report
