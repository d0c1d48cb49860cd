#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "experts_eval/synthetic_loads.h"

namespace trimtab::experts_eval {

/// What is to be compared, and the machine it would run on. The defaults are the published ones (system
/// facts, sections 6 and 8) but for two, which should be measured: `moe_step_share` is what the published
/// ablation implies (re-placement alone +1.8 % at EP8, from about 1.36 to 1.09 busiest over mean), and the
/// link is the model's 50 GB/s.
struct AdviseOptions {
  std::vector<std::int32_t> ep_sizes{8};
  /// Extra slots of a rank, beyond the fewest that hold every expert.
  std::vector<std::int32_t> redundant_per_rank{0, 1, 2, 4, 8};
  std::int32_t model_layers = 0;  // MoE layers of the model; 0: those of the loads
  std::int64_t expert_bytes = 44'000'000;
  double moe_step_share = 0.1;  // of a step without balancing: the part that waits for the busiest rank
  std::int64_t step_ns = 60'000'000;
  double link_bytes_per_second = 50e9;  // of one rank, while experts move
  /// Part of the time of a move that the group stands still for: 1 when steps wait for it, near 0 when layers
  /// move beside serving.
  double moves_stall_share = 1;
  std::int32_t window_steps = 40;
  /// Steps between re-placements that are tried; each row takes the one that saves most after its moves.
  std::vector<std::int32_t> period_steps{5, 25, 100};
  double recency_steps = 15;
  double move_price = -1;       // as PlanOptions'
  std::int32_t layers_max = 8;  // layers planned and scored, spread over the loads' layers; 0: all
};

/// One EP size with one number of slots.
struct Advice {
  std::int32_t ep_size = 0, slots = 0, slots_per_rank = 0, redundant = 0;
  std::int32_t period_steps = 0;  // the best of those tried
  double balance_none = 1;    // by number, with no more slots than needed: what there is without balancing
  double balance_static = 1;  // these slots by number, never re-placed
  double balance = 1;         // planned before each period, scored on the steps after it
  /// Of the redundant slots, all MoE layers of the model together, and of one rank.
  std::int64_t memory_bytes = 0, memory_bytes_per_rank = 0;
  /// Part of the step that is saved: moe_step_share x (1 - balance / balance_none); without and with what
  /// moves cost.
  double step_saved_ratio = 0, step_saved_net_ratio = 0;
  double moves_per_layer_step = 0, moves_per_plan = 0;  // received copies, after the first plan
  std::int64_t first_moves_ns =
      0;  // the first re-placement from the map by number, every rank receiving its part
  std::int64_t plan_moves_ns = 0;  // each later one, on average
  /// Steps until the first re-placement has paid for itself; infinite when it never does.
  double break_even_steps = 0;
  /// Shortest period at which later re-placements do not cost more than everything that balancing saves.
  double period_min_steps = 0;
  bool knee = false;  // of its EP size: further slots give less than those before it gave (greatest distance
                      // to the chord of the curve)
};

struct AdviseResult {
  std::vector<Advice> rows;  // by EP size, then slots, as asked
  std::int32_t best_row =
      0;  // greatest net saving; of rows within a thousandth of a step, the one with fewest slots
  std::int32_t layers_scored = 0, steps_scored = 0;
};

/// Needs window_steps + 1 steps at least. Errors: those of the shapes and of the options, naming the value.
base::Result<AdviseResult> advise(const Loads& loads, const AdviseOptions& options);

/// "EP8, 416 slots: 1.363 -> 1.050, 2.0 % of a step saved ..." for people.
std::string describe(const Advice& advice);

}  // namespace trimtab::experts_eval
