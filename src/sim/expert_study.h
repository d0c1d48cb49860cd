#pragma once

#include <array>
#include <cstdint>

#include "sim/decode_group.h"
#include "sim/verify_study.h"

/// For tests and benches: the talk's ablation of expert balancing (system facts, section 6) in a simulated
/// decode group: EP8, 64 requests a rank, re-placement every 800 steps from a window of 200.
namespace trimtab::sim::study {

inline model::Scenario expert_scenario(model::ExpertPolicy policy, std::int32_t redundant, double drift_steps,
                                       std::uint64_t seed) {
  model::Scenario scenario;
  scenario.seed = seed;
  scenario.speed = model::SimulationSpeed::kFast;
  scenario.cluster.decode.ranks = 8;
  scenario.cluster.decode.kv_blocks = 1 << 20;
  scenario.cluster.decode.max_running = 256;
  // A step of 60 ms at 64 requests (of 12,000 tokens in the mean); what waits for the busiest expert rank is
  // so large a part of it that re-placement alone gives the talk's 1.8 %: fitted.
  scenario.profile.decode_step = {base::Nanos{20'000'000}, 31.0, 200e3, 45e3, {}};
  scenario.decode.tokens_per_step = 3.2;
  scenario.experts.policy = policy;
  scenario.experts.layers = 4;
  scenario.experts.skew_amount = 1.7;  // one kind of work, as the talk's prompts: few experts carry much
  scenario.experts.domains = 4;
  scenario.experts.move_bytes_per_s = 400e9;   // one NVLink domain
  scenario.experts.memory_bytes_per_s = 8e12;  // FP4 experts: a device of that generation
  scenario.experts.decode.redundant_slots_per_rank = redundant;
  scenario.experts.decode.drift_steps = drift_steps;
  if (policy == model::ExpertPolicy::kDeepInfer) {
    scenario.experts.decode.interval_steps = 800;
    scenario.experts.decode.window_steps = 200;
  }
  return scenario;
}

struct AblationRow {
  const char* name;
  model::ExpertPolicy policy;
  std::int32_t redundant;
};
/// The first is what the others are compared with.
inline constexpr std::array<AblationRow, 6> kAblationRows = {{
    {"off", model::ExpertPolicy::kOff, 0},
    {"redundancy", model::ExpertPolicy::kRedundancy, 1},
    {"replacement", model::ExpertPolicy::kDeepInfer, 0},
    {"both", model::ExpertPolicy::kDeepInfer, 1},
    {"ours", model::ExpertPolicy::kIncremental, 1},
    {"repair", model::ExpertPolicy::kRepair, 1},
}};

struct Ablation {
  std::array<double, kAblationRows.size()> gain_percent{}, balance{};
};

/// Tokens per second over no balancing, mean over `seeds` popularities with the same requests.
inline Ablation ablate(double drift_steps, std::uint64_t seeds) {
  Ablation result;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    double off = 0;
    for (std::size_t i = 0; i < kAblationRows.size(); ++i) {
      const AblationRow& row = kAblationRows[i];
      model::Scenario scenario = expert_scenario(row.policy, row.redundant, drift_steps, seed);
      const auto prepared = prepare_experts(scenario);
      TRIMTAB_CHECK(prepared.has_value(), prepared.error().message);
      Load load;
      load.requests_per_rank = 64;
      load.output_mean_tokens = 1'024;
      load.warm_steps = 600;
      load.steps = 2'400;
      load.seed = seed;
      const Outcome outcome = World(scenario, load).run();
      if (i == 0) off = outcome.tokens_per_s;
      result.gain_percent[i] += 100 * (outcome.tokens_per_s / off - 1) / static_cast<double>(seeds);
      const StepTimes& times = outcome.times;
      const double moe = scenario.profile.decode_step.moe_ns_per_request * 64 * 2'400;
      result.balance[i] +=
          (1 + (times.expert_imbalance + times.expert_drift) / moe) / static_cast<double>(seeds);
    }
  }
  return result;
}

}  // namespace trimtab::sim::study
