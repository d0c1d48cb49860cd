#include "sim/step_overlap.h"

#include <algorithm>
#include <cmath>

namespace trimtab::sim {

double overlap_saving(const OverlapParts& parts, double batch, double layers,
                      const policy::OverlapCosts& costs) {
  const auto whole = static_cast<std::int64_t>(batch);
  if (whole < 2) return 0;
  // One layer that stands for all, nanoseconds for bytes and FLOPs.
  const auto rows = static_cast<double>(whole);
  policy::OverlapModel model;
  model.memory_bytes_per_s = model.moe_flops_per_s = model.network_bytes_per_s = 1e9;
  model.attention_weight_bytes = parts.weights;
  model.context_tokens = 1;
  model.kv_bytes_per_token = parts.attention / rows;
  model.attention_flops_per_token = 0;
  model.experts_per_rank = 1;
  model.expert_bytes = parts.experts_least;
  model.experts_per_token = 1;
  model.expert_flops_per_token = parts.experts / rows;
  model.routed_per_token = 1;
  model.dispatch_bytes = model.combine_bytes = parts.network / rows / 2;
  const policy::OverlapDecision decision = policy::worth(model, whole);
  if (!decision.worth) return 0;
  // The step may have been cheaper than one batch of the model, whose experts take their least.
  const double computing = parts.attention + parts.weights + parts.experts;
  const double contention = costs.contention_ratio * std::min(computing, parts.network);
  const double overlapped = decision.times.overlapped_s * 1e9 + contention + costs.launch_s * 1e9 * layers;
  return std::max(computing + parts.network - overlapped, 0.0);
}

void save(StepTimes& times, double saving) {
  const double moves = times.expert_moves, rest = times.sum() - moves;
  if (saving <= 0 || rest <= 0) return;
  StepTimes less;
  less.add(times, 1 - std::min(saving / rest, 1.0));
  less.expert_moves = moves;
  times = less;
}

double moe_layers(const model::Scenario& scenario) {
  if (scenario.experts.model_layers > 0) return scenario.experts.model_layers;
  return scenario.profile.moe_layers > 0 ? static_cast<double>(scenario.profile.moe_layers) : 40;
}

double expert_weights_ns(const model::Scenario& scenario, double ranks) {
  const model::ExpertModel& model = scenario.experts;
  if (model.memory_bytes_per_s <= 0) return 0;
  double experts = model.experts;
  if (experts == 0)
    experts = scenario.profile.experts > 0 ? static_cast<double>(scenario.profile.experts) : 384;
  return std::ceil(experts / ranks) * model.bytes_per_copy * moe_layers(scenario) / model.memory_bytes_per_s *
         1e9;
}

}  // namespace trimtab::sim
