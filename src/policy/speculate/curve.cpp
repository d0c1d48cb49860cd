#include "policy/speculate/curve.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace trimtab::policy {

namespace {
constexpr std::int64_t kRowsMax = 1 << 20;  // of one rank's step; bounds the table of indices
}

std::vector<std::int64_t> captured_graph_sizes(std::int64_t rows_max) {
  TRIMTAB_CHECK(rows_max >= 1 && rows_max <= kRowsMax, std::to_string(rows_max));
  std::vector<std::int64_t> sizes;
  for (const std::int64_t small : {1, 2, 4})
    if (small <= rows_max) sizes.push_back(small);
  for (std::int64_t rows = 8; rows <= rows_max; rows += 8) sizes.push_back(rows);
  return sizes;
}

base::Result<StepCurve> StepCurve::make(std::vector<CurvePoint> points) {
  const auto refuse = [](std::string message) {
    return base::fail(base::Code::kInvalidArgument, std::move(message), "speculate");
  };
  if (points.empty()) return refuse("a step curve without points; give the time of every captured graph");
  for (std::size_t i = 0; i < points.size(); ++i) {
    const auto& [rows, time] = points[i];
    if (rows < 1 || rows > kRowsMax)
      return refuse(fmt::format("graph of {} rows in the step curve; 1 to {} are possible", rows, kRowsMax));
    if (i > 0 && rows <= points[i - 1].graph_tokens) {
      return refuse(fmt::format("graph of {} rows after one of {} in the step curve; sort it, each size once",
                                rows, points[i - 1].graph_tokens));
    }
    if (time.value <= 0) {
      return refuse(fmt::format("{} ns for the graph of {} rows; a step takes time, measure it again",
                                time.value, rows));
    }
  }
  return StepCurve(std::move(points));
}

StepCurve::StepCurve(std::vector<CurvePoint> points) : points_(std::move(points)) {
  index_.resize(static_cast<std::size_t>(points_.back().graph_tokens) + 1);
  std::uint32_t at = 0;
  for (std::size_t rows = 0; rows < index_.size(); ++rows) {
    if (static_cast<std::int64_t>(rows) > points_[at].graph_tokens) ++at;
    index_[rows] = at;
  }
}

}  // namespace trimtab::policy
