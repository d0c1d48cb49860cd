#pragma once

#include <cstdint>

#include "policy/overlap/overlap.h"

namespace trimtab::policy {

/// How two micro-batches share one compute stream and one network: each goes through attention, dispatch,
/// MoE, combine in every layer, one computing while the other's tokens travel.
enum class PipelineForm : std::uint8_t {
  kFourStages,  // attention, dispatch, MoE, combine
  kFiveStages,  // attention in two parts, between which the other micro-batch's MoE may run: DeepSeek's
                // decode
};

/// The least time of a layer that any schedule could reach: neither stream is ever idle, or one micro-batch
/// is always in some stage.
double period_bound(const LayerTimes& first, const LayerTimes& second);

struct PipelinePlan {
  double period_s = 0;         // of a layer of both micro-batches, in the steady state
  double attention_first = 0;  // share of attention in its first part; five stages only
};
/// The best cyclic schedule: all orders in which the stages of one layer of both micro-batches can follow one
/// another on the two streams are tried, each played until it repeats itself. Splits of attention are tried
/// in eighths. Cost: some hundred microseconds (4 stages) to a millisecond (5): for tables and planning, not
/// for every step. `second_reads_first`: the second micro-batch goes on with a sequence of the
/// first, so its attention in a layer waits for the first's in that layer.
PipelinePlan best_pipeline(const LayerTimes& first, const LayerTimes& second, PipelineForm form,
                           bool second_reads_first = false);

}  // namespace trimtab::policy
