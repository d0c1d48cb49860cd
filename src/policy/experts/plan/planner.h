#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/error.h"
#include "policy/experts/load_window.h"
#include "policy/experts/types.h"

namespace trimtab::experts {

/// Where a plan starts.
enum class Start : std::uint8_t {
  kFresh,        // from nothing; with a current map, ranks and slots are relabelled so that few copies move
  kIncremental,  // from the current map: each received copy has a price, and there may be a cap
};
/// Where copies may go.
enum class Scope : std::uint8_t {
  kGlobal,        // anywhere
  kHierarchical,  // groups are packed on nodes and never leave them; copies stay inside the node
};
/// How hard a fresh plan is worked on. Per layer of 384 experts on one core, windows of 100 / 1,000 steps,
/// and the excess over perfect balance in the window against the published window-aware rule's (DeepInfer).
/// On new counts of the same rates little of the difference at 100 steps is left (docs/policies/experts.md).
enum class Effort : std::uint8_t {
  kFast,     // squares only: 1 to 2 ms; 0.43 x at 4 ranks, 0.57 x at 8, 0.87 x at 64
  kDefault,  // from 32 ranks up 10,000 exchanges on the sum of peaks as well: 2 to 3 ms; 0.80 x at 64
  kQuality,  // 40,000, and 25,000 on every step of a long window: 4 to 12 ms; at 1,000 steps 0.83 to 0.86 x
};

struct PlanOptions {
  Start start = Start::kFresh;
  Scope scope = Scope::kGlobal;
  Effort effort = Effort::kDefault;
  /// Incremental: the part of the mean rank's load by which one received copy must lower the expected peak to
  /// be worth it. Negative: 5e-4, from 32 ranks up 1.2e-3; with periods above 20 steps 2e-4 and 2.7e-3.
  double move_price = -1;
  /// Incremental: at most so many received copies; negative: no cap.
  std::int32_t moves_max = -1;
  /// Fresh: weight of a step that is `age` steps old: exp(-age / recency_steps); 0: all alike. Incremental
  /// plans forecast instead, with a memory that fits each expert (plan/forecast.h).
  double recency_steps = 0;
  /// The search draws from this seed and nothing else.
  std::uint64_t seed = 1;
  /// Incremental: steps until the next plan. Up to 20, the forecast of every expert decides; beyond, experts
  /// that rise and fall together are kept apart. 0: 5 with windows below 64 steps, else the window's length.
  std::int32_t period_steps = 0;
};

/// The numbers that led to a plan. Balance = sum over the window's steps of the busiest rank / sum of the
/// mean rank (1 is perfect), copies sharing a load evenly; NaN never, 1 when there is no load.
struct PlanReason {
  double balance_before = 0;  // of the current map on the same window; 0 without one
  double balance = 0;         // of this plan: what it promises
  std::int64_t received = 0;  // copies that ranks must receive from the current map (0 without one)
  std::int64_t swaps = 0, replacements = 0, walk_steps = 0;  // what the search did
};

struct Plan {
  SlotMap map;
  PlanReason reason;
};

/// Plans one layer. Rules that every plan keeps: every expert has a slot, slots are equal over ranks, no rank
/// holds two copies of an expert, no expert has more copies than ranks. Same inputs, same bytes, on every
/// machine. `current`: the map in force, or empty. Its length may differ from shape.slots only for a fresh
/// plan. Errors: a bad shape; a window of another number of experts; incremental without a current map;
/// hierarchical with groups that nodes do not divide (the message offers the global scope).
base::Result<Plan> plan_layer(const Shape& shape, const LoadWindow& window,
                              std::span<const std::int32_t> current, const PlanOptions& options);

/// Ranks were lost or gained. `before` is the map of `old_shape`; survivors[r'] is the old rank that is rank
/// r' now, or -1 for a new one. The plan starts from what the survivors hold, gives every expert without a
/// copy one, and then improves at the price of the options. Errors also when the new shape has too few slots
/// for the experts.
base::Result<Plan> replan_ranks(const Shape& old_shape, std::span<const std::int32_t> before,
                                const Shape& shape, std::span<const std::int32_t> survivors,
                                const LoadWindow& window, const PlanOptions& options);

/// Balance of a map on a window (see PlanReason): {sum of peaks over sum of means, mean of the steps'
/// ratios}.
struct Balance {
  double of_sums = 1;
  double mean_ratio = 1;
};
Balance balance_of(const Shape& shape, std::span<const std::int32_t> map, const LoadWindow& window);

/// "1.0290 -> 1.0163 with 12 of 416 copies received".
std::string describe(const PlanReason& reason);

}  // namespace trimtab::experts
