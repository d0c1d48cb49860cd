#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "report/charts.h"

namespace trimtab::report {

/// Where the drawing area lies in a chart, in units of its view box. Narrow, so that text stays readable on a
/// telephone, where the box shrinks to some 340 pixels.
struct Frame {
  double width = 460, height = 250;
  double left = 50, right = 450, top = 10, bottom = 220;
};

/// Values at which an axis from 0 or `low` to `high` is labelled: at most about `count`, of 1, 2 or 5 times a
/// power of ten.
std::vector<double> ticks(double low, double high, int count);
/// The same for a logarithmic axis; whole powers when the range is wide.
std::vector<double> log_ticks(double low, double high);

/// <figure> with its caption, legend, drawing and note.
std::string figure_open(std::string_view title, std::string_view unit);
std::string figure_close(std::string_view note);
/// The horizontal axis under the frame, with its unit.
std::string x_axis(const Frame& frame, const XAxis& x, std::size_t columns);
/// The numbers of the chart for the script, as an attribute: places and axis; `more` are further members.
std::string chart_data(const Frame& frame, const XAxis& x, std::size_t columns, const std::string& more);
std::string json_list(const std::vector<std::string>& names);
/// Numbers, null where they are not finite.
std::string json_list(const std::vector<double>& values);

}  // namespace trimtab::report
