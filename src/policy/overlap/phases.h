#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "policy/overlap/overlap.h"
#include "policy/overlap/pipeline.h"

/// Whether a step of prefill or of decode should run as two micro-batches: `worth` (overlap.h) is the
/// published estimate; here stages wait for one another as they do on the device, and what the estimate
/// leaves out is charged.
namespace trimtab::policy {

/// What overlapping costs beyond reading the weights twice.
struct OverlapCosts {
  double launch_s = 0;  // per layer: the stages that are launched once more
  double contention_ratio =
      0;  // computing is slower by this while tokens travel: processors lent to the network
  double gain_min_ratio = 0.02;  // of the serial time; below it the model's error is as large as the gain
};
/// Low-latency transfers of decode use no processors.
constexpr OverlapCosts kDecodeCosts{10e-6, 0.0, 0.02};
/// DeepSeek-V3's prefill lends 20 of an H800's 132 processors to the network.
constexpr OverlapCosts kPrefillCosts{10e-6, 20.0 / 112.0, 0.02};

struct PhaseDecision {
  bool worth = false;
  double serial_s = 0;      // of a layer, one batch
  double overlapped_s = 0;  // of a layer, two micro-batches in the best schedule, costs included
  double bound_s = 0;       // what no schedule can beat, costs included
  PipelineForm form = PipelineForm::kFourStages;
  double attention_first = 0;     // five stages: share of attention before the cut
  std::int64_t first_tokens = 0;  // of the step, in the first micro-batch
  double speed_up() const { return serial_s / overlapped_s; }
};
std::string describe(const PhaseDecision& decision);

/// Decode: `batch` requests of one token each (or rows to verify), halved; five stages. 0 or 1: not worth it.
PhaseDecision decide_decode_overlap(const OverlapModel& model, std::int64_t batch,
                                    const OverlapCosts& costs = kDecodeCosts);
/// The least batch from which on decode overlap pays up to `batch_max`; batch_max + 1 when it does not. The
/// rule that a step can afford: one comparison. Looks at every 8th batch, as graphs are captured.
std::int64_t decode_overlap_from(const OverlapModel& model, std::int64_t batch_max,
                                 const OverlapCosts& costs = kDecodeCosts);

/// One layer of prefill on one rank. The defaults are DeepSeek-V3 on an H800, EP32 over four nodes (system
/// facts, section 9); attention in its uncompressed form, 128 heads x (192 + 128).
struct PrefillModel {
  double memory_bytes_per_s = 3.35e12;
  double attention_flops_per_s = 989e12;
  double linear_flops_per_s = 1979e12;
  double moe_flops_per_s = 1979e12;
  double network_bytes_per_s = 50e9;
  double attention_weight_bytes = 187e6;  // FP8: twice as many FLOPs a token
  double attention_flops_per_pair = 81'920;
  double kv_bytes_per_token = 1152;
  double experts_per_rank = 9;  // eight and a redundant one
  double expert_bytes = 44e6;
  double expert_flops_per_token = 88e6;
  double experts_per_token = 9;
  double copies_per_token = 3;  // that cross the network: at most one a node, four nodes, one of them its own
  double dispatch_bytes = 7392;
  double combine_bytes = 14'336;
};

/// A chunk of one sequence: q tokens after c.
struct PrefillChunk {
  std::int64_t tokens = 0, computed = 0;
};
LayerTimes prefill_times(const PrefillModel& model, std::span<const PrefillChunk> chunks);

/// Prefill: the step's chunks, in order, cut in two where the pipeline runs best: at a border between
/// sequences, or, where one is long, inside it at a multiple of 128 (its second part then waits in every
/// layer for the keys of the first). Four stages. Errors: none; an empty step or one token is not worth it.
PhaseDecision decide_prefill_overlap(const PrefillModel& model, std::span<const PrefillChunk> chunks,
                                     const OverlapCosts& costs = kPrefillCosts);

}  // namespace trimtab::policy
