#include "report/bars.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace trimtab::report {

namespace {

constexpr std::array<const char*, 8> kLeftEighths = {"▏", "▎", "▍", "▌", "▋", "▊", "▉", "█"};
constexpr std::array<const char*, 8> kLowerEighths = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
constexpr std::array<const char*, 8> kAsciiHeights = {"_", ".", "-", "=", "+", "*", "#", "@"};
constexpr std::size_t kColumnRows = 8;

double drawable(double value) { return std::isfinite(value) && value > 0 ? value : 0; }

double top_of(const std::vector<Bar>& bars, const BarOptions& options) {
  double top = drawable(options.reference.value_or(0));
  for (const Bar& bar : bars) top = std::max({top, drawable(bar.value), drawable(bar.before.value_or(0))});
  return top > 0 ? top : 1;
}

/// One row: the bar, what it lost since before in a lighter tone, and the reference where nothing is drawn.
std::string row_of(const Bar& bar, double top, std::size_t width, const BarOptions& options,
                   const Style& style) {
  const double cells = static_cast<double>(width);
  const auto eighths = static_cast<std::size_t>(std::lround(drawable(bar.value) / top * cells * 8));
  const auto before = static_cast<std::size_t>(std::lround(drawable(bar.before.value_or(0)) / top * cells));
  const std::size_t mark =
      options.reference ? static_cast<std::size_t>(std::lround(drawable(*options.reference) / top * cells))
                        : width + 1;
  std::string out;
  for (std::size_t cell = 0; cell < width; ++cell) {
    if (8 * cell + 8 <= eighths) {
      out += style.utf8 ? "█" : "#";
    } else if (8 * cell < eighths && style.utf8) {
      out += kLeftEighths[eighths - 8 * cell - 1];
    } else if (8 * cell + 4 <= eighths) {
      out += "#";
    } else if (cell + 1 == mark) {
      out += style.utf8 ? "│" : "|";
    } else if (cell < before) {
      out += style.utf8 ? "░" : ".";
    } else {
      out += ' ';
    }
  }
  return out;
}

std::string rows_text(const std::vector<Bar>& bars, const BarOptions& options, const Style& style) {
  const double top = top_of(bars, options);
  std::size_t label = 0;
  bool has_before = false;
  for (const Bar& bar : bars) {
    label = std::max(label, display_width(bar.label));
    has_before |= bar.before.has_value();
  }
  const std::size_t digits = fmt::format("{:.{}f}", top, options.decimals).size();
  const std::size_t rest = label + 2 + digits + 1 + (has_before ? digits + 7 : 0);
  const auto all = static_cast<std::size_t>(style.width);
  const std::size_t width = std::clamp<std::size_t>(all > rest ? all - rest : 0, 10, 60);
  std::string out;
  for (const Bar& bar : bars) {
    out += bar.label + std::string(label - display_width(bar.label) + 1, ' ');
    out += row_of(bar, top, width, options, style);
    out += fmt::format(" {:>{}.{}f}", bar.value, digits, options.decimals);
    if (bar.before) out += fmt::format(" (was {:>.{}f})", *bar.before, options.decimals);
    out += '\n';
  }
  return out;
}

std::string columns_text(const std::vector<Bar>& bars, const BarOptions& options, const Style& style) {
  const double top = top_of(bars, options);
  const std::size_t axis = fmt::format("{:.{}f}", top, options.decimals).size() + 2;
  const std::size_t room = std::max<std::size_t>(10, static_cast<std::size_t>(style.width) - axis);
  const std::size_t each = (bars.size() + room - 1) / room;
  std::vector<double> values, before;
  for (std::size_t i = 0; i < bars.size(); ++i) {
    if (i % each == 0) values.push_back(0), before.push_back(0);
    values.back() = std::max(values.back(), drawable(bars[i].value));
    before.back() = std::max(before.back(), drawable(bars[i].before.value_or(0)));
  }
  std::string out;
  for (std::size_t row = kColumnRows; row-- > 0;) {
    const double floor = top * static_cast<double>(row) / kColumnRows;
    const double step = top / kColumnRows;
    const bool marked = options.reference && *options.reference >= floor && *options.reference < floor + step;
    out += fmt::format("{:>{}.{}f} ", floor + step, axis - 2, options.decimals);
    out += marked ? (style.utf8 ? "├" : "+") : (style.utf8 ? "│" : "|");
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto eighths = std::lround((values[i] - floor) / step * 8);
      if (eighths > 0) {
        const auto height = static_cast<std::size_t>(std::min(eighths, 8L)) - 1;
        out += style.utf8 ? kLowerEighths[height] : (height >= 3 ? "#" : " ");
      } else if (before[i] > floor + step / 2) {
        out += style.utf8 ? "░" : ".";
      } else {
        out += marked ? (style.utf8 ? "─" : "-") : " ";
      }
    }
    out += '\n';
  }
  const std::string caption = std::string(axis, ' ') + bars.front().label + " to " + bars.back().label +
                              (each > 1 ? fmt::format(", a column is the busiest of {}", each) : "");
  out += shortened(caption, static_cast<std::size_t>(style.width), style) + "\n";
  return out;
}

}  // namespace

std::string bar_chart(const std::vector<Bar>& bars, const BarOptions& options, const Style& style) {
  if (bars.empty()) return "";
  return bars.size() > options.rows_max ? columns_text(bars, options, style)
                                        : rows_text(bars, options, style);
}

std::string sparkline(const std::vector<double>& values, double top, const Style& style) {
  std::string out;
  for (const double value : values) {
    const double part = top > 0 ? drawable(value) / top : 0;
    const auto height = static_cast<std::size_t>(std::clamp<long>(std::lround(part * 7), 0, 7));
    out += style.utf8 ? kLowerEighths[height] : kAsciiHeights[height];
  }
  return out;
}

}  // namespace trimtab::report
