#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"
#include "policy/speculate/types.h"

namespace trimtab::policy {

/// The sizes that decode graphs are captured for: 1, 2, 4, then every multiple of 8 up to `rows_max`
/// (requests times 1 + drafts). `rows_max` at least 1.
std::vector<std::int64_t> captured_graph_sizes(std::int64_t rows_max);

struct CurvePoint {
  std::int64_t graph_tokens = 0;  // rows of the captured graph
  Nanos base;                     // of one step of it, measured offline
};

/// Step time of each captured graph, measured once with random routing and short contexts (public engine
/// facts, section 4). All ranks of a group share one curve. Times need not grow with size: real ones are
/// jagged.
class StepCurve {
 public:
  /// Errors (kInvalidArgument, with the offending point): no points, sizes not positive and strictly
  /// ascending, a time that is not positive.
  static base::Result<StepCurve> make(std::vector<CurvePoint> points);

  std::span<const CurvePoint> points() const { return points_; }
  std::size_t size() const { return points_.size(); }
  /// Index of the smallest graph that holds `rows`; size() when none does. O(1).
  std::size_t index_for(std::int64_t rows) const {
    if (rows <= 0) return 0;
    if (rows > points_.back().graph_tokens) return points_.size();
    return index_[static_cast<std::size_t>(rows)];
  }

 private:
  explicit StepCurve(std::vector<CurvePoint> points);
  std::vector<CurvePoint> points_;
  std::vector<std::uint32_t> index_;  // by rows
};

/// What running steps taught about the curve. Time of a step in graph G with batch of n requests:
/// base(G) + row_ns * G + sampler_ns.
struct StepCorrection {
  double row_ns = 0;      // slope, per row of the graph, at least 0
  double sampler_ns = 0;  // sampler, LM head and drafts
};

inline double step_ns(const CurvePoint& point, const StepCorrection& correction) {
  return static_cast<double>(point.base.value) + correction.row_ns * static_cast<double>(point.graph_tokens) +
         correction.sampler_ns;
}

}  // namespace trimtab::policy
