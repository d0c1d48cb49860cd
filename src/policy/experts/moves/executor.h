#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "policy/experts/moves/batches.h"
#include "policy/experts/moves/move_plan.h"

namespace trimtab::experts {

/// The weights of one expert, of bytes_per_copy bytes; what a reload reads.
using ExpertBytes = std::function<std::vector<std::byte>(std::int32_t expert)>;

/// Executes a move plan on buffers in memory, slice by slice, and proves it against the experts' true bytes.
/// It is the reference that engines' executors are tested with, and it breaks off like they do.
class MemoryExecutor {
 public:
  /// Buffers as the old map has them; places without an expert are filled with garbage. `position` where to
  /// go on.
  MemoryExecutor(const MovePlan& plan, ExpertBytes truth);

  /// Runs the slice at the position and moves on.
  void run_slice();
  /// What a crash leaves: of the slice at the position, moves with their bit in `done` ran, the next one
  /// was cut in half, and the others' destinations are garbage. The position stays.
  void tear_slice(std::uint64_t done);
  void run();
  bool done() const { return position_.round >= static_cast<std::int32_t>(plan_->batches.size()); }
  MovePosition position() const { return position_; }
  /// Goes on from a recorded position: of another executor's buffers after a restart.
  void resume(MovePosition position) { position_ = position; }

  /// Every place that the plan states as valid holds its expert's bytes, and every expert has one (but those
  /// still to be reloaded). `running`: as seen while the batch at the position runs.
  base::Status prove(bool running) const;

  std::span<const std::byte> place(Place place) const;

 private:
  std::span<std::byte> place(Place place);
  void copy_part(const Move& move, std::int64_t from, std::int64_t to);
  std::pair<std::int64_t, std::int64_t> slice_bounds() const;

  const MovePlan* plan_;
  ExpertBytes truth_;
  std::int64_t bytes_;
  std::vector<std::byte> memory_;  // [hosts, places, bytes]
  MovePosition position_;
};

}  // namespace trimtab::experts
