#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "report/html.h"

/// Figures of an HTML report, as SVG and markup: titles, units, legends, and values under the pointer.
namespace trimtab::report {

/// Equal steps along a chart's horizontal axis.
struct XAxis {
  double first = 0, step = 1;  // of the buckets' left ends
  std::string unit;            // "s"
};
/// In seconds, minutes or hours, whichever reads best: `step_s` times `count` long.
XAxis time_axis(double step_s, std::size_t count);

struct LineSeries {
  std::string name;
  std::vector<double> values;  // what is not finite is a gap
  int colour = 0;              // modulo kColours
  bool dashed = false;
  bool listed = true;  // in the legend
};

/// Something that happened at an instant: a dotted line, its name under the pointer.
struct Mark {
  double column = 0;  // of the axis, parts of one included: 2.5 is the middle of the third
  std::string name;
};

struct LineChart {
  std::string title, unit;
  XAxis x;
  std::vector<LineSeries> series;  // of one length
  bool logarithmic = false;        // then values of 0 and less are gaps
  std::string note;
  std::vector<Mark> marks = {};  // those outside the axis are not drawn
};
Html line_chart(const LineChart& chart);

/// Cells of rows over time: darker (in the dark: lighter) is more.
struct HeatMap {
  std::string title, unit;
  XAxis x;
  std::vector<std::string> rows;            // names, from the top
  std::vector<std::vector<double>> values;  // [row][column], not negative; what is not finite is empty
  std::string note;
  /// Instead of amounts: what the values 0, 1, ... mean. Each gets a colour.
  std::vector<std::string> kinds;
  /// Named columns instead of the axis' numbers (ranks beside experts).
  std::vector<std::string> columns;
  /// The value that gets the strongest colour; else the largest.
  std::optional<double> top;
};
/// More than `rows_max` rows become that many ranks by load: at every time the row on top is the busiest.
/// More than 128 columns become means of neighbours.
Html heat_map(HeatMap map, std::size_t rows_max = 64);

/// Bars of parts that add up to a whole each: one row a bar.
struct StackedBars {
  std::string title;
  std::vector<std::string> parts;
  struct Bar {
    std::string label;
    std::vector<double> parts;  // in any unit: drawn as shares of their sum
  };
  std::vector<Bar> bars;
  std::string note;
};
Html stacked_bars(const StackedBars& chart);

/// Bars from zero, with what was before as a dashed mark.
struct ValueBars {
  std::string title, unit;
  struct Bar {
    std::string label;
    double value = 0;
    std::optional<double> before;
  };
  std::vector<Bar> bars;
  int decimals = 2;
  std::string note;
};
Html value_bars(const ValueBars& chart);

}  // namespace trimtab::report
