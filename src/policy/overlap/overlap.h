#pragma once

#include <cstdint>
#include <string>

namespace trimtab::policy {

/// One MoE layer on one rank: what it reads, computes and sends. The defaults are the chapter's model of
/// DeepSeek-V3 decode on an H800 (system facts, section 8).
struct OverlapModel {
  double memory_bytes_per_s = 3.35e12;
  double attention_flops_per_s = 989e12;
  double moe_flops_per_s = 1979e12;
  double network_bytes_per_s = 50e9;
  double attention_weight_bytes = 187e6;
  double context_tokens = 4096;                // per request
  double kv_bytes_per_token = 1152;            // read by attention, per token of context
  double attention_flops_per_token = 278'528;  // per query and token of context
  double experts_per_rank = 3;
  double expert_bytes = 44e6;
  double expert_flops_per_token = 88e6;
  double experts_per_token = 9;   // whose work lands here per token of the batch, shared one included
  double routed_per_token = 8;    // that travel
  double dispatch_bytes = 7392;   // per token and expert, FP8 and scales
  double combine_bytes = 14'336;  // BF16
};

/// Seconds of each stage of one layer with a batch of `tokens`.
struct LayerTimes {
  double attention = 0, moe = 0, dispatch = 0, combine = 0;
  double compute() const { return attention + moe; }
  double communication() const { return dispatch + combine; }
};
LayerTimes layer_times(const OverlapModel& model, double tokens);

struct OverlapTimes {
  double serial_s = 0;                  // one batch, stages in turn
  double overlapped_s = 0;              // two micro-batches, one computing while the other's tokens travel
  double speed_up = 0;                  // serial / overlapped
  double compute_to_communication = 0;  // of a micro-batch, at half the batch
};
/// `batch` tokens per rank and step, positive.
OverlapTimes overlap_times(const OverlapModel& model, std::int64_t batch);

struct OverlapDecision {
  bool worth = false;
  double gain_s = 0;           // per layer; negative: it would cost
  OverlapTimes times;          // by the model
  double extra_weights_s = 0;  // compute that the split adds: weights are read twice
};
/// Whether splitting a batch pays: max(2 C(b/2), 2 M(b/2)) < C(b) + M(b).
OverlapDecision worth(const OverlapModel& model, std::int64_t batch);
/// "overlap: 408 us serial, 281 us overlapped, 1.45 x".
std::string describe(const OverlapDecision& decision);

}  // namespace trimtab::policy
