#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/chart_frame.h"
#include "report/html_assets.h"

namespace trimtab::report {

namespace {

double drawable(double value) { return std::isfinite(value) && value > 0 ? value : 0; }

}  // namespace

Html stacked_bars(const StackedBars& chart) {
  std::string out = figure_open(chart.title, "% of the whole") + "<ul class=\"legend\">";
  for (std::size_t p = 0; p < chart.parts.size(); ++p)
    out += fmt::format("<li><i class=\"k{}\"></i>{}</li>", p % kColours, escaped(chart.parts[p]));
  out += "</ul>\n<div class=\"bars\">\n";
  for (const StackedBars::Bar& bar : chart.bars) {
    double whole = 0;
    for (const double part : bar.parts) whole += drawable(part);
    out += fmt::format("<b>{}</b><div class=\"track\">", escaped(bar.label));
    std::string first = "0 %";
    for (std::size_t p = 0; p < bar.parts.size() && p < chart.parts.size(); ++p) {
      const double percent = whole > 0 ? 100 * drawable(bar.parts[p]) / whole : 0;
      if (p == 0) first = fmt::format("{:.1f} %", percent);
      if (percent <= 0) continue;
      out += fmt::format("<span class=\"k{}\" style=\"width:{:.3f}%\" title=\"{}: {:.2f} %\"></span>",
                         p % kColours, percent, escaped(chart.parts[p]), percent);
    }
    out += fmt::format("</div><em>{}</em>\n", first);
  }
  return Html::trusted(out + "</div>\n" + figure_close(chart.note));
}

Html value_bars(const ValueBars& chart) {
  double top = 0;
  bool has_before = false;
  for (const ValueBars::Bar& bar : chart.bars) {
    top = std::max({top, drawable(bar.value), drawable(bar.before.value_or(0))});
    has_before |= bar.before.has_value();
  }
  if (top <= 0) top = 1;
  std::string out = figure_open(chart.title, chart.unit);
  if (has_before) {
    out +=
        "<ul class=\"legend\"><li><i class=\"k0\"></i>now</li><li><i class=\"dash\"></i>before</li></ul>\n";
  }
  out += "<div class=\"bars\">\n";
  for (const ValueBars::Bar& bar : chart.bars) {
    out += fmt::format("<b>{}</b><div class=\"track\"><span class=\"k0\" style=\"width:{:.3f}%\"></span>",
                       escaped(bar.label), 100 * drawable(bar.value) / top);
    std::string text = fmt::format("{:.{}f}", bar.value, chart.decimals);
    if (bar.before) {
      out += fmt::format("<span class=\"was\" style=\"width:{:.3f}%\"></span>",
                         100 * drawable(*bar.before) / top);
      text += fmt::format(" (was {:.{}f})", *bar.before, chart.decimals);
    }
    out += fmt::format("</div><em>{}</em>\n", text);
  }
  return Html::trusted(out + "</div>\n" + figure_close(chart.note));
}

}  // namespace trimtab::report
