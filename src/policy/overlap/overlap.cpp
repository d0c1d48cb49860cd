#include "policy/overlap/overlap.h"

#include <algorithm>
#include <cstdio>
#include <string>

#include "base/check.h"

namespace trimtab::policy {

LayerTimes layer_times(const OverlapModel& model, double tokens) {
  const double kv_bytes = tokens * model.context_tokens * model.kv_bytes_per_token;
  const double attention_flops = tokens * model.context_tokens * model.attention_flops_per_token;
  LayerTimes times;
  times.attention = std::max((model.attention_weight_bytes + kv_bytes) / model.memory_bytes_per_s,
                             attention_flops / model.attention_flops_per_s);
  times.moe =
      std::max(model.experts_per_rank * model.expert_bytes / model.memory_bytes_per_s,
               tokens * model.experts_per_token * model.expert_flops_per_token / model.moe_flops_per_s);
  times.dispatch = tokens * model.routed_per_token * model.dispatch_bytes / model.network_bytes_per_s;
  times.combine = tokens * model.routed_per_token * model.combine_bytes / model.network_bytes_per_s;
  return times;
}

OverlapTimes overlap_times(const OverlapModel& model, std::int64_t batch) {
  TRIMTAB_CHECK(batch > 0, "batch " + std::to_string(batch));
  const auto tokens = static_cast<double>(batch);
  const LayerTimes whole = layer_times(model, tokens);
  const LayerTimes half = layer_times(model, tokens / 2);
  OverlapTimes times;
  times.serial_s = whole.compute() + whole.communication();
  times.overlapped_s = std::max(2 * half.compute(), 2 * half.communication());
  times.speed_up = times.serial_s / times.overlapped_s;
  times.compute_to_communication = half.compute() / half.communication();
  return times;
}

OverlapDecision worth(const OverlapModel& model, std::int64_t batch) {
  OverlapDecision decision;
  decision.times = overlap_times(model, batch);
  decision.gain_s = decision.times.serial_s - decision.times.overlapped_s;
  const auto tokens = static_cast<double>(batch);
  decision.extra_weights_s =
      2 * layer_times(model, tokens / 2).compute() - layer_times(model, tokens).compute();
  // One request cannot be split, whatever the model says about half of it.
  decision.worth = batch >= 2 && decision.gain_s > 0;
  return decision;
}

std::string describe(const OverlapDecision& decision) {
  char text[160];
  std::snprintf(text, sizeof text,
                "%s: %.0f us a layer serial, %.0f us overlapped (%.2f x), %.0f us of it weights read twice",
                decision.worth ? "overlap" : "one batch", decision.times.serial_s * 1e6,
                decision.times.overlapped_s * 1e6, decision.times.speed_up, decision.extra_weights_s * 1e6);
  return text;
}

}  // namespace trimtab::policy
