#pragma once

#include <string>
#include <vector>

#include "report/style.h"

namespace trimtab::report {

enum class Align { kLeft, kRight };

struct Column {
  std::string title;
  Align align = Align::kRight;
};

/// Rows under a header. When they are too wide, the left-aligned columns (text) shrink from the widest on;
/// numbers are never cut, since half a number is a wrong one.
class Table {
 public:
  explicit Table(std::vector<Column> columns);

  /// One cell per column; fewer cells leave the last columns empty.
  void add_row(std::vector<std::string> cells);
  /// A line between what comes before and after.
  void add_rule();
  std::size_t rows() const { return rows_.size(); }

  std::string text(const Style& style) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;  // an empty row is a rule
};

}  // namespace trimtab::report
