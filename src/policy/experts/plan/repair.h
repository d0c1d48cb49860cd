#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/error.h"
#include "policy/experts/types.h"

namespace trimtab::experts {

struct RepairOptions {
  /// Nothing is done while the least possible peak is at most (1 + tolerance) x the mean. Negative: 0.005,
  /// from 32 ranks up 0.01.
  double tolerance = -1;
  /// A change must lower the peak by this part of the mean for each copy it moves. Negative: 0.001, from 32
  /// ranks up 0.002.
  double gain_min = -1;
  /// Received copies a call, at most.
  std::int32_t moves_max = 8;
};

struct Repair {
  SlotMap map;
  /// Least possible peak over mean with weighted dispatch, of the map given and of this one.
  double value_before = 1, value = 1;
  std::int64_t received = 0;  // copies
  std::int64_t trials = 0;    // changes that were solved for
};

/// The plan for an engine that dispatches by weight: it asks of a map only that some shares level it.
///
/// A map fails when a set of ranks must carry more than its part: experts whose copies all lie inside (the
/// tight set that ShareFlow returns as its certificate). Each change lets load out of that set: one of its
/// trapped experts gets a copy outside, in place of a copy there that its expert can spare, or changes places
/// with a lighter expert. Candidates are taken in the order of a bound on what they can reach (the cut's own
/// value after the change), each is solved warm from the flow in force, and the search ends when no bound
/// beats the best found.
///
/// Source: our own. Cost: microseconds while nothing is wrong; see docs/policies/experts.md. Weakness: it
/// knows one estimate of the loads, no window; dispatch that splits evenly makes its maps worse, not better.
class Repairer {
 public:
  explicit Repairer(const RepairOptions& options = {});
  ~Repairer();
  Repairer(Repairer&&) noexcept;
  Repairer& operator=(Repairer&&) noexcept;

  /// `tokens`: the estimate, [experts]. `current`: a map without two copies of an expert on one rank. Errors
  /// name the value: illegal shape, map or loads. The same inputs give the same map on every machine,
  /// whatever was asked before; buffers are reused between calls of one shape.
  base::Result<Repair> repair(const Shape& shape, std::span<const double> tokens,
                              std::span<const std::int32_t> current);

 private:
  struct Search;
  RepairOptions options_;
  std::unique_ptr<Search> search_;
};

}  // namespace trimtab::experts
