#include "report/table.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace trimtab::report {

namespace {

constexpr std::size_t kGap = 2, kTextMin = 8;

std::string padded(const std::string& cell, std::size_t width, Align align) {
  const std::string space(width - std::min(width, display_width(cell)), ' ');
  return align == Align::kRight ? space + cell : cell + space;
}

std::string line_of(const std::vector<std::string>& cells, const std::vector<Column>& columns,
                    const std::vector<std::size_t>& widths, const Style& style) {
  std::string out;
  for (std::size_t c = 0; c < columns.size(); ++c) {
    const std::string cell = c < cells.size() ? shortened(cells[c], widths[c], style) : "";
    out += padded(cell, widths[c], columns[c].align);
    if (c + 1 < columns.size()) out += std::string(kGap, ' ');
  }
  out.erase(out.find_last_not_of(' ') + 1);
  return out + "\n";
}

}  // namespace

Table::Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

void Table::add_row(std::vector<std::string> cells) {
  TRIMTAB_CHECK(!cells.empty() && cells.size() <= columns_.size(), "a row has at most a cell per column");
  rows_.push_back(std::move(cells));
}

void Table::add_rule() { rows_.emplace_back(); }

std::string Table::text(const Style& style) const {
  std::vector<std::size_t> widths(columns_.size());
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    widths[c] = display_width(columns_[c].title);
    for (const auto& row : rows_) {
      if (c < row.size()) widths[c] = std::max(widths[c], display_width(row[c]));
    }
  }
  const auto total = [&] {
    std::size_t sum = kGap * (columns_.size() - 1);
    for (const std::size_t width : widths) sum += width;
    return sum;
  };
  while (total() > static_cast<std::size_t>(style.width)) {
    std::size_t widest = columns_.size();
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      if (columns_[c].align == Align::kLeft && widths[c] > kTextMin &&
          (widest == columns_.size() || widths[c] > widths[widest])) {
        widest = c;
      }
    }
    if (widest == columns_.size()) break;
    --widths[widest];
  }
  std::vector<std::string> titles;
  for (const Column& column : columns_) titles.push_back(column.title);
  std::string out = toned(line_of(titles, columns_, widths, style), Tone::kBold, style);
  std::string rule;
  for (std::size_t i = 0; i < total(); ++i) rule += style.utf8 ? "─" : "-";
  rule = toned(rule, Tone::kDim, style) + "\n";
  out += rule;
  for (const auto& row : rows_) out += row.empty() ? rule : line_of(row, columns_, widths, style);
  return out;
}

}  // namespace trimtab::report
