#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/error.h"
#include "policy/experts/types.h"

namespace trimtab::experts {

struct RepairOptions {
  /// Ranks are asked to carry at most (1 + tolerance) x the mean: what is above is overload.
  double tolerance = 0.01;
  /// A change must lower the overload, summed over the ranks, by this part of the mean for each copy it
  /// moves.
  double gain_min = 0.02;
  /// Received copies a call, at most.
  std::int32_t moves_max = 8;
};

struct Repair {
  SlotMap map;
  /// Least possible peak over mean with weighted dispatch, of the map given and of this one: never higher.
  double value_before = 1, value = 1;
  /// Least possible overload in parts of the mean.
  double overload_before = 0, overload = 0;
  std::int64_t received = 0;  // copies
  std::int64_t trials = 0;    // changes that were solved for
};

/// The plan for an engine that dispatches by weight: it asks of a map only that some shares level it.
///
/// A map fails when ranks must carry more than the capacity whatever the shares: ShareFlow::drain finds them
/// in knots, sets of ranks from which no path leads to room, and by max-flow/min-cut the overload left is the
/// least. Only a trapped expert (all copies in knots) that gets out can lower it: by a copy on a free rank,
/// in place of a copy whose expert can spare it, or by changing slots with an expert there (two copies). Each
/// change has a bound, the value of the same cut after it: what the expert carries less what the other loses,
/// the overload of the knot, the load that the new rank can clear. The most hopeful are solved, warm from the
/// flow in force, and the best is taken, until none saves enough for the copies it moves. Overload, unlike
/// the peak, adds up over knots, so that mending one of several equal ones counts.
///
/// Source: our own; the exploration before it scored every candidate by the peak and took 6 ms a layer at 64
/// ranks. Cost: docs/policies/experts.md. Weakness: it knows one estimate of the loads, no window; changes
/// are chosen one by one; dispatch that splits evenly gets worse maps, not better ones.
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
