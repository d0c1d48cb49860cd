#pragma once

#include <cstdint>
#include <vector>

#include "base/error.h"
#include "policy/experts/moves/batches.h"
#include "policy/experts/moves/move_plan.h"

namespace trimtab::experts {

/// A copy that must be made; its source host is chosen, its source place and its time are not.
struct PendingCopy {
  std::int32_t expert = 0;
  Place to;
  std::int32_t source = -1;  // host; -1: reload
};

/// Puts the copies into batches (plan_moves says by what rule). Takes sizes and `before` from the plan and
/// fills its batches, slices, commit_batch, staging_used, stall_ns and staging_serves. Error: a cycle and no
/// staging slot.
base::Status order_copies(const MoveOptions& options, const MoveCosts& costs, std::vector<PendingCopy> copies,
                          MovePlan& plan);

}  // namespace trimtab::experts
