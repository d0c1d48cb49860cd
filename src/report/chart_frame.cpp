#include "report/chart_frame.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace trimtab::report {

XAxis time_axis(double step_s, std::size_t count) {
  const double whole = step_s * static_cast<double>(count);
  if (whole > 3 * 3600) return {0, step_s / 3600, "h"};
  if (whole > 300) return {0, step_s / 60, "min"};
  return {0, step_s, "s"};
}

std::vector<double> ticks(double low, double high, int count) {
  if (!(high > low)) return {low};
  const double rough = (high - low) / count;
  double step = 1;
  while (step > rough) step /= 10;
  while (step * 10 <= rough) step *= 10;
  for (const double factor : {1.0, 2.0, 5.0, 10.0}) {
    if (step * factor < rough * (1 - 1e-9)) continue;
    step *= factor;
    break;
  }
  std::vector<double> out;
  const auto first = static_cast<std::int64_t>(std::ceil(low / step - 1e-9));
  const auto last = static_cast<std::int64_t>(std::floor(high / step + 1e-9));
  for (std::int64_t i = first; i <= last; ++i) out.push_back(static_cast<double>(i) * step);
  return out;
}

std::vector<double> log_ticks(double low, double high) {
  std::vector<double> out;
  double power = 1;
  while (power > low) power /= 10;
  while (power * 10 <= low) power *= 10;
  const bool wide = high / low > 200;
  for (; power <= high * 1.0001; power *= 10) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      if (wide && factor > 1) break;
      const double value = power * factor;
      if (value >= low * 0.9999 && value <= high * 1.0001) out.push_back(value);
    }
  }
  return out;
}

std::string figure_open(std::string_view title, std::string_view unit) {
  const std::string small = unit.empty() ? "" : "<small>" + escaped(unit) + "</small>";
  return fmt::format("<figure>\n<figcaption>{}{}</figcaption>\n", escaped(title), small);
}

std::string figure_close(std::string_view note) {
  return (note.empty() ? std::string() : remark(note).text()) + "</figure>\n";
}

std::string x_axis(const Frame& frame, const XAxis& x, std::size_t columns) {
  const double end = x.first + x.step * static_cast<double>(columns);
  std::string out = fmt::format("<path class=\"axis\" d=\"M{:.0f} {:.0f}H{:.0f}\"/>\n", frame.left,
                                frame.bottom, frame.right);
  for (const double value : ticks(x.first, end, 8)) {
    const double at = frame.left + (value - x.first) / (end - x.first) * (frame.right - frame.left);
    if (at > frame.right - 24) continue;  // the unit stands there
    out += fmt::format("<text x=\"{:.1f}\" y=\"{:.0f}\" text-anchor=\"middle\">{}</text>\n", at,
                       frame.bottom + 17, shortened_number(value));
  }
  return out + fmt::format("<text x=\"{:.0f}\" y=\"{:.0f}\" text-anchor=\"end\">{}</text>\n", frame.right,
                           frame.bottom + 17, escaped(x.unit));
}

std::string json_list(const std::vector<std::string>& names) {
  std::string out = "[";
  for (const std::string& name : names) out += (out.size() > 1 ? "," : "") + json_escaped(name);
  return out + "]";
}

std::string json_list(const std::vector<double>& values) {
  std::string out = "[";
  for (const double value : values) {
    if (out.size() > 1) out += ',';
    out += std::isfinite(value) ? digits(value) : "null";
  }
  return out + "]";
}

std::string chart_data(const Frame& frame, const XAxis& x, std::size_t columns, const std::string& more) {
  return fmt::format(
      " data-chart=\"{{&quot;width&quot;:{:.0f},&quot;left&quot;:{:.0f},&quot;right&quot;:{:.0f},"
      "&quot;top&quot;:{:.0f},&quot;bottom&quot;:{:.0f},&quot;columns&quot;:{},&quot;first&quot;:{:.9g},"
      "&quot;step&quot;:{:.9g},&quot;x&quot;:{},{}}}\"",
      frame.width, frame.left, frame.right, frame.top, frame.bottom, columns, x.first, x.step,
      json_escaped(x.unit), more);
}

}  // namespace trimtab::report
