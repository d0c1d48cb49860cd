#include "policy/overlap/phases.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "base/check.h"

namespace trimtab::policy {

namespace {

constexpr std::int64_t kCutMultiple = 128;

LayerTimes slowed(LayerTimes times, double contention_ratio) {
  times.attention *= 1 + contention_ratio;
  times.moe *= 1 + contention_ratio;
  return times;
}

double serial_time(const LayerTimes& times) { return times.compute() + times.communication(); }

void judge(PhaseDecision& decision, const LayerTimes& first, const LayerTimes& second,
           const OverlapCosts& costs, bool second_reads_first) {
  const LayerTimes a = slowed(first, costs.contention_ratio), b = slowed(second, costs.contention_ratio);
  const PipelinePlan plan = best_pipeline(a, b, decision.form, second_reads_first);
  decision.overlapped_s = plan.period_s + costs.launch_s;
  decision.attention_first = plan.attention_first;
  decision.bound_s = period_bound(a, b) + costs.launch_s;
  decision.worth = decision.overlapped_s < decision.serial_s * (1 - costs.gain_min_ratio);
}

/// The chunks before token `cut` of the step, and those from there on.
struct Cut {
  std::vector<PrefillChunk> first, second;
  bool inside = false;
};
Cut cut_at(std::span<const PrefillChunk> chunks, std::int64_t cut) {
  Cut result;
  std::int64_t at = 0;
  for (const PrefillChunk& chunk : chunks) {
    const std::int64_t before = std::clamp<std::int64_t>(cut - at, 0, chunk.tokens);
    if (before > 0) result.first.push_back({before, chunk.computed});
    if (before < chunk.tokens) result.second.push_back({chunk.tokens - before, chunk.computed + before});
    result.inside |= before > 0 && before < chunk.tokens;
    at += chunk.tokens;
  }
  return result;
}

/// Borders next to the middle of the step's work, and the middle itself where a long chunk lies over it.
std::vector<std::int64_t> candidate_cuts(const PrefillModel& model, std::span<const PrefillChunk> chunks,
                                         std::int64_t tokens) {
  const double half = serial_time(prefill_times(model, chunks)) / 2;
  const auto work_before = [&](std::int64_t cut) {
    return serial_time(prefill_times(model, cut_at(chunks, cut).first));
  };
  std::vector<std::int64_t> cuts;
  std::int64_t at = 0, below = 0, above = tokens;
  for (const PrefillChunk& chunk : chunks) {
    at += chunk.tokens;
    if (at >= tokens) break;
    if (work_before(at) <= half) {
      below = at;
    } else {
      above = at;
      break;
    }
  }
  if (below > 0) cuts.push_back(below);
  if (above < tokens) cuts.push_back(above);
  // Work grows with the cut: halve the interval down to one multiple.
  std::int64_t low = below / kCutMultiple, high = (above + kCutMultiple - 1) / kCutMultiple;
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    (work_before(middle * kCutMultiple) <= half ? low : high) = middle;
  }
  for (const std::int64_t multiple : {low, high}) {
    const std::int64_t cut = multiple * kCutMultiple;
    if (cut > 0 && cut < tokens) cuts.push_back(cut);
  }
  return cuts;
}

}  // namespace

PhaseDecision decide_decode_overlap(const OverlapModel& model, std::int64_t batch,
                                    const OverlapCosts& costs) {
  TRIMTAB_CHECK(batch >= 0, std::to_string(batch));
  PhaseDecision decision;
  decision.form = PipelineForm::kFiveStages;
  decision.serial_s = serial_time(layer_times(model, static_cast<double>(batch)));
  decision.overlapped_s = decision.bound_s = decision.serial_s;
  if (batch < 2) return decision;
  decision.first_tokens = (batch + 1) / 2;
  const LayerTimes first = layer_times(model, static_cast<double>(decision.first_tokens));
  const LayerTimes second = layer_times(model, static_cast<double>(batch - decision.first_tokens));
  judge(decision, first, second, costs, /*second_reads_first=*/false);
  return decision;
}

std::int64_t decode_overlap_from(const OverlapModel& model, std::int64_t batch_max,
                                 const OverlapCosts& costs) {
  std::int64_t from = batch_max + 1;
  for (std::int64_t batch = batch_max; batch >= 2;
       batch -= std::min<std::int64_t>(8, std::max<std::int64_t>(batch - 2, 1))) {
    if (!decide_decode_overlap(model, batch, costs).worth) break;
    from = batch;
  }
  return from;
}

LayerTimes prefill_times(const PrefillModel& model, std::span<const PrefillChunk> chunks) {
  double tokens = 0, context = 0, pairs = 0;
  for (const PrefillChunk& chunk : chunks) {
    TRIMTAB_CHECK(chunk.tokens > 0 && chunk.computed >= 0,
                  std::to_string(chunk.tokens) + " tokens after " + std::to_string(chunk.computed));
    const auto q = static_cast<double>(chunk.tokens), c = static_cast<double>(chunk.computed);
    tokens += q;
    context += c + q;
    pairs += q * (c + q / 2);
  }
  LayerTimes times;
  if (tokens <= 0) return times;
  times.attention =
      std::max((model.attention_weight_bytes + context * model.kv_bytes_per_token) / model.memory_bytes_per_s,
               tokens * 2 * model.attention_weight_bytes / model.linear_flops_per_s +
                   pairs * model.attention_flops_per_pair / model.attention_flops_per_s);
  times.moe =
      std::max(model.experts_per_rank * model.expert_bytes / model.memory_bytes_per_s,
               tokens * model.experts_per_token * model.expert_flops_per_token / model.moe_flops_per_s);
  times.dispatch = tokens * model.copies_per_token * model.dispatch_bytes / model.network_bytes_per_s;
  times.combine = tokens * model.copies_per_token * model.combine_bytes / model.network_bytes_per_s;
  return times;
}

PhaseDecision decide_prefill_overlap(const PrefillModel& model, std::span<const PrefillChunk> chunks,
                                     const OverlapCosts& costs) {
  PhaseDecision best;
  best.serial_s = serial_time(prefill_times(model, chunks));
  best.overlapped_s = best.bound_s = best.serial_s;
  std::int64_t tokens = 0;
  for (const PrefillChunk& chunk : chunks) tokens += chunk.tokens;
  bool first = true;
  for (const std::int64_t cut : candidate_cuts(model, chunks, tokens)) {
    const Cut parts = cut_at(chunks, cut);
    PhaseDecision decision = best;
    decision.first_tokens = cut;
    judge(decision, prefill_times(model, parts.first), prefill_times(model, parts.second), costs,
          parts.inside);
    // Borders come first; a cut inside a sequence ties the parts together and must be clearly better.
    const double limit = parts.inside ? best.overlapped_s * 0.98 : best.overlapped_s;
    if (first || decision.overlapped_s < limit) best = decision;
    first = false;
  }
  return best;
}

std::string describe(const PhaseDecision& decision) {
  char text[200];
  std::snprintf(
      text, sizeof text,
      "%s: %.0f us a layer serial, %.0f us overlapped in %s stages (%.2f x; no schedule below %.0f us), "
      "%lld tokens first",
      decision.worth ? "overlap" : "one batch", decision.serial_s * 1e6, decision.overlapped_s * 1e6,
      decision.form == PipelineForm::kFiveStages ? "five" : "four", decision.speed_up(),
      decision.bound_s * 1e6, static_cast<long long>(decision.first_tokens));
  return text;
}

}  // namespace trimtab::policy
