#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "report/style.h"

namespace trimtab::report {

/// One bar: what is now, and what it was before.
struct Bar {
  std::string label;
  double value = 0;
  std::optional<double> before;
};

struct BarOptions {
  /// A line at this value (the mean rank), with the value named in the last line.
  std::optional<double> reference;
  /// Decimals of the printed values.
  int decimals = 2;
  /// More bars than this become columns, eight rows high, of as many ranks a column as the width asks for.
  std::size_t rows_max = 16;
};

/// Bars from zero. Negative and non-finite values are drawn as zero.
std::string bar_chart(const std::vector<Bar>& bars, const BarOptions& options, const Style& style);

/// A value in one character out of eight heights ("▁▂▃▄▅▆▇█", "_.-=+*#@" in ASCII), `top` the full one.
std::string sparkline(const std::vector<double>& values, double top, const Style& style);

}  // namespace trimtab::report
