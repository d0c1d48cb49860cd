#include "report/html.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "report/html_assets.h"

namespace trimtab::report {

namespace {

/// Bytes of the code point at the start of `text`; 0 when it is not UTF-8.
std::size_t code_point_bytes(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  const std::size_t bytes = first < 0x80   ? 1
                            : first < 0xC2 ? 0
                            : first < 0xE0 ? 2
                            : first < 0xF0 ? 3
                            : first < 0xF5 ? 4
                                           : 0;
  if (bytes == 0 || bytes > text.size()) return 0;
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0U) != 0x80U) return 0;
  }
  return bytes;
}

std::string element(std::string_view tag, std::string_view content) {
  return fmt::format("<{0}>{1}</{0}>\n", tag, content);
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t bytes = code_point_bytes(text);
    const char c = text[0];
    if (bytes == 0) {
      out += "\xEF\xBF\xBD";
    } else if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&quot;";
    } else if (c == '\'') {
      out += "&#39;";
    } else if (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') {
      out += "\xEF\xBF\xBD";
    } else {
      out += text.substr(0, bytes);
    }
    text.remove_prefix(std::max<std::size_t>(bytes, 1));
  }
  return out;
}

std::string json_escaped(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(static_cast<unsigned char>(c)));
    } else {
      out += c;
    }
  }
  return escaped(out + "\"");
}

std::string digits(double value) {
  if (!std::isfinite(value)) return "";
  if (std::abs(value) >= 1000) return fmt::format("{:.0f}", value);
  return fmt::format("{:.4g}", value);
}

std::string shortened_number(double value) {
  if (!std::isfinite(value)) return "";
  const double size = std::abs(value);
  if (size >= 1e9) return fmt::format("{:.3g}G", value / 1e9);
  if (size >= 1e6) return fmt::format("{:.3g}M", value / 1e6);
  if (size >= 1e4) return fmt::format("{:.3g}k", value / 1e3);
  return fmt::format("{:.4g}", value);
}

Html paragraph(std::string_view text) { return Html::trusted(element("p", escaped(text))); }
Html remark(std::string_view text) {
  return Html::trusted("<p class=\"remark\">" + escaped(text) + "</p>\n");
}
Html heading(std::string_view text) { return Html::trusted(element("h3", escaped(text))); }

Html grid(const std::vector<Html>& figures) {
  std::string out = "<div class=\"grid\">\n";
  for (const Html& figure : figures) out += figure.text();
  return Html::trusted(out + "</div>\n");
}

Html folded(std::string_view summary, const Html& inner, bool open) {
  return Html::trusted(fmt::format("<details{}><summary>{}</summary>\n{}</details>\n", open ? " open" : "",
                                   escaped(summary), inner.text()));
}

Html table(const std::vector<HtmlColumn>& columns, const std::vector<std::vector<Cell>>& rows) {
  std::string out = "<div class=\"scroll\" tabindex=\"0\"><table>\n<thead><tr>";
  std::vector<std::optional<double>> best(columns.size());
  for (std::size_t c = 0; c < columns.size(); ++c) {
    const bool left = columns[c].align == Align::kLeft;
    out += fmt::format("<th{}>{}</th>", left ? " class=\"left\"" : "", escaped(columns[c].title));
    if (columns[c].better == Better::kNeither || rows.size() < 2) continue;
    std::size_t with = 0;
    for (const auto& row : rows) {
      if (c >= row.size() || !row[c].value) continue;
      ++with;
      const bool less = columns[c].better == Better::kLess;
      if (!best[c] || (less ? *row[c].value < *best[c] : *row[c].value > *best[c])) best[c] = row[c].value;
    }
    if (with < 2) best[c].reset();
  }
  out += "</tr></thead>\n<tbody>\n";
  for (const auto& row : rows) {
    out += "<tr>";
    for (std::size_t c = 0; c < columns.size(); ++c) {
      const Cell cell = c < row.size() ? row[c] : Cell{};
      const bool left = columns[c].align == Align::kLeft;
      const bool is_best = best[c] && cell.value && *cell.value == *best[c];
      const std::string_view kind = left ? " class=\"left\"" : is_best ? " class=\"best\"" : "";
      out += fmt::format("<td{}>{}</td>", kind, escaped(cell.text));
    }
    out += "</tr>\n";
  }
  return Html::trusted(out + "</tbody></table></div>\n");
}

HtmlPage::HtmlPage(std::string title, std::string subtitle)
    : title_(std::move(title)), subtitle_(std::move(subtitle)) {}

void HtmlPage::section(std::string_view id, std::string_view title, const Html& content) {
  contents_ += fmt::format("<a href=\"#{}\">{}</a>\n", escaped(id), escaped(title));
  body_ += fmt::format("<section id=\"{}\">\n<h2>{}</h2>\n{}</section>\n", escaped(id), escaped(title),
                       content.text());
}

std::string HtmlPage::text() const {
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n"
      "<title>{0}</title>\n<style>\n{2}</style>\n</head>\n<body>\n"
      "<header><h1>{0}</h1>\n<p>{1}</p>\n<nav>{3}</nav></header>\n<main>\n{4}</main>\n"
      "<div id=\"tip\" role=\"status\" hidden></div>\n<script>\n{5}</script>\n</body>\n</html>\n",
      escaped(title_), escaped(subtitle_), html_style(), contents_, body_, html_script());
}

}  // namespace trimtab::report
