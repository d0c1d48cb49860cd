#include "base/duration_text.h"

#include <cmath>
#include <cstdio>

namespace trimtab::base {

std::string duration_text(Nanos span) {
  if (span == kForever) return "no limit";
  const double millis = to_millis(span);
  const double size = std::fabs(millis);
  char text[48];
  // Each bound is where the finer form would round up to the coarser one, so "10.0 ms" and "10000 ms" do not
  // exist.
  if (span.value == 0) return "0 ms";
  if (size < 9.95) {
    std::snprintf(text, sizeof text, "%.1f ms", millis);
  } else if (size < 9'999.5) {
    std::snprintf(text, sizeof text, "%.0f ms", millis);
  } else {
    std::snprintf(text, sizeof text, "%.1f", to_seconds(span));
    std::string seconds = text;
    if (seconds.ends_with(".0")) seconds.resize(seconds.size() - 2);
    return seconds + " s";
  }
  return text;
}

}  // namespace trimtab::base
