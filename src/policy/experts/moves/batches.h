#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"
#include "policy/experts/moves/move_plan.h"

namespace trimtab::experts {

/// One batch of one layer.
struct LayerBatch {
  std::int32_t layer = 0, batch = 0;
};
/// Batches that run together; their slices keep step.
using MoveRound = std::vector<LayerBatch>;

/// Where a re-placement of several layers stands: everything before it is done, slice `slice` of round
/// `round` is next. Survives a restart as two numbers.
struct MovePosition {
  std::int32_t round = 0, slice = 0;
  bool operator==(const MovePosition&) const = default;
};

struct MoveSchedule {
  std::vector<MoveRound> rounds;
  std::int32_t slices = 1;
  std::int64_t stall_ns = 0;  // the longest round, one slice

  std::int64_t steps() const { return static_cast<std::int64_t>(rounds.size()) * slices; }
  bool done(MovePosition position) const {
    return position.round >= static_cast<std::int32_t>(rounds.size());
  }
  MovePosition next(MovePosition position) const;
};

/// Layers in order, as many together as the budget's stall allows (a re-placement of few copies is mostly
/// layers with one). The staging slots are shared by all layers: on each host, one layer at a time has
/// something there. Plans must have one budget and one set of hosts.
base::Result<MoveSchedule> schedule_layers(std::span<const MovePlan> plans, const MoveBudget& budget);

/// Nanoseconds of one copy under a budget; 0 without a speed.
struct MoveCosts {
  std::int64_t link_ns = 0, node_link_ns = 0, local_ns = 0;
};
base::Result<MoveCosts> costs_of(const MoveBudget& budget);

/// What a batch asks of one host. Links are duplex: sending hides behind receiving. Local copies come on top.
struct HostTime {
  std::int64_t send_ns = 0, receive_ns = 0, local_ns = 0;

  std::int64_t ns() const { return (send_ns > receive_ns ? send_ns : receive_ns) + local_ns; }
  HostTime& operator+=(const HostTime& other);
};
/// [hosts]
std::vector<HostTime> host_times(const MovePlan& plan, const MoveBatch& batch, const MoveCosts& costs);

}  // namespace trimtab::experts
