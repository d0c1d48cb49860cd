#pragma once

#include <cstdint>
#include <vector>

#include "policy/experts/plan/layer_loads.h"
#include "policy/experts/types.h"

namespace trimtab::experts {

struct CopyWeights {
  /// A copy's load counts as a peak above this part of the mean rank's load.
  double peak_floor = 0.3;
  /// Weight of the copies' squares, which decide how well slots can be packed.
  double variance = 0.1;
};

/// How many copies each expert gets: one, then one more at a time for the expert whose further copy lowers
/// most: the sum over steps of the largest copy's load (as far as it is above the floor), plus the weighted
/// drop of its squares relative to the mean rank. At most one copy a rank. Ties go to the expert with fewest
/// copies, then to the lowest id. (Window-aware replication after DeepInfer, with the variance term.)
std::vector<std::int32_t> choose_copies(const Shape& shape, const LayerLoads& loads,
                                        const CopyWeights& weights);

}  // namespace trimtab::experts
