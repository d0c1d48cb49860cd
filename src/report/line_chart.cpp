#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "report/chart_frame.h"
#include "report/html_assets.h"

namespace trimtab::report {

namespace {

struct Range {
  double low = 0, high = 1;
  bool logarithmic = false, empty = true;
  bool shows(double value) const { return std::isfinite(value) && (!logarithmic || value > 0); }
  /// 0 at the low end, 1 at the high one.
  double part(double value) const {
    return logarithmic ? std::log(value / low) / std::log(high / low) : (value - low) / (high - low);
  }
};

Range range_of(const LineChart& chart) {
  Range range;
  range.logarithmic = chart.logarithmic;
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (const LineSeries& series : chart.series) {
    for (const double value : series.values) {
      if (!range.shows(value)) continue;
      low = std::min(low, value);
      high = std::max(high, value);
    }
  }
  range.empty = !(low <= high);
  if (range.empty) return range;
  if (range.logarithmic) {
    // At least a factor of four, so that a flat line lies in the middle of something.
    range.low = low / 1.15;
    range.high = std::max(high * 1.15, range.low * 4);
  } else {
    range.low = std::min(0.0, low);
    range.high = high > range.low ? range.low + (high - range.low) * 1.05 : range.low + 1;
  }
  return range;
}

std::string path_of(const LineSeries& series, const Range& range, const Frame& frame) {
  std::string d;
  bool pen_down = false;
  const auto n = static_cast<double>(series.values.size());
  for (std::size_t i = 0; i < series.values.size(); ++i) {
    const double value = series.values[i];
    if (!range.shows(value)) {
      pen_down = false;
      continue;
    }
    const double x = frame.left + (static_cast<double>(i) + 0.5) / n * (frame.right - frame.left);
    const double y = frame.bottom - range.part(value) * (frame.bottom - frame.top);
    d += fmt::format("{}{:.1f} {:.1f}", pen_down ? 'L' : 'M', x, y);
    const bool alone = !pen_down && (i + 1 == series.values.size() || !range.shows(series.values[i + 1]));
    if (alone) d += "h1";  // a line of one point would not be seen
    pen_down = true;
  }
  return fmt::format("<path class=\"line c{}{}\" d=\"{}\"/>\n", series.colour % kColours,
                     series.dashed ? " dashed" : "", d);
}

std::string y_axis(const Range& range, const Frame& frame) {
  std::string out;
  for (const double value :
       range.logarithmic ? log_ticks(range.low, range.high) : ticks(range.low, range.high, 5)) {
    const double y = frame.bottom - range.part(value) * (frame.bottom - frame.top);
    out += fmt::format("<path class=\"axis\" d=\"M{:.0f} {:.1f}H{:.0f}\"/>", frame.left, y, frame.right);
    out += fmt::format("<text x=\"{:.0f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n", frame.left - 6,
                       y + 4, shortened_number(value));
  }
  return out;
}

std::string legend_of(const LineChart& chart) {
  if (chart.series.size() < 2) return "";
  std::string out = "<ul class=\"legend\">";
  for (const LineSeries& series : chart.series) {
    if (!series.listed) continue;
    out += fmt::format("<li><i class=\"k{}{}\"></i>{}</li>", series.colour % kColours,
                       series.dashed ? " dash" : "", escaped(series.name));
  }
  return out + "</ul>\n";
}

std::string marks_of(const LineChart& chart, const Frame& frame, std::size_t columns) {
  std::string out;
  double last = -1;
  for (const Mark& mark : chart.marks) {
    const double part = mark.column / static_cast<double>(std::max<std::size_t>(columns, 1));
    if (!(part >= 0 && part <= 1)) continue;
    const double x = frame.left + part * (frame.right - frame.left);
    if (x - last < 0.5) continue;  // one line for what nobody could tell apart
    last = x;
    out += fmt::format("<path class=\"mark\" d=\"M{:.1f} {:.0f}V{:.0f}\"><title>{}</title></path>\n", x,
                       frame.top, frame.bottom, escaped(mark.name));
  }
  return out;
}

}  // namespace

Html line_chart(const LineChart& chart) {
  const Frame frame;
  const Range range = range_of(chart);
  std::string out = figure_open(chart.title, chart.unit) + legend_of(chart);
  if (range.empty) return Html::trusted(out + "<p class=\"remark\">nothing to show</p>\n" + figure_close(""));
  std::size_t columns = 0;
  std::vector<std::string> names;
  std::string values;
  for (const LineSeries& series : chart.series) {
    columns = std::max(columns, series.values.size());
    names.push_back(series.name);
    values += (values.empty() ? "" : ",") + json_list(series.values);
  }
  const std::string more = "&quot;names&quot;:" + json_list(names) + ",&quot;values&quot;:[" + values +
                           "],&quot;unit&quot;:" + json_escaped(chart.unit);
  out += fmt::format("<svg viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"{}\"{}>\n", frame.width,
                     frame.bottom + 26, escaped(chart.title), chart_data(frame, chart.x, columns, more));
  out += y_axis(range, frame) + x_axis(frame, chart.x, columns) + marks_of(chart, frame, columns);
  for (const LineSeries& series : chart.series) out += path_of(series, range, frame);
  out +=
      fmt::format("<line class=\"cursor\" y1=\"{:.0f}\" y2=\"{:.0f}\"/>\n</svg>\n", frame.top, frame.bottom);
  return Html::trusted(out + figure_close(chart.note));
}

}  // namespace trimtab::report
