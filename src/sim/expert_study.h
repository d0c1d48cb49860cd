#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "sim/decode_group.h"
#include "sim/verify_study.h"

/// For tests and benches: the talk's ablation of expert balancing (system facts, section 6) in a simulated
/// decode group. From there: EP8, 64 requests a rank of about 12,000 tokens with 1,024 to make, five drafts a
/// request of which 3.3 tokens come, a step of about 60 ms, one redundant slot a rank, re-placement every 800
/// steps from a window of 200. Not given there, and searched for: docs/policies/experts.md, "In the simulated
/// loop".
namespace trimtab::sim::study {

inline constexpr std::uint64_t kSearchSeeds = 1, kReportSeeds = 101;  // the first of each

inline model::Scenario expert_scenario(model::ExpertPolicy policy, std::int32_t redundant, double drift_steps,
                                       std::uint64_t seed) {
  model::Scenario scenario;
  scenario.seed = seed;
  scenario.speed = model::SimulationSpeed::kFast;
  scenario.cluster.decode.ranks = 8;
  scenario.cluster.decode.kv_blocks = 1 << 20;
  scenario.cluster.decode.max_running = 256;
  // Rows of the MoE layers are verified drafts, six a request: with fewer, the noise of their counts hides
  // what copies give. 6 us a row is what its products take at 60 % of the FP8 rate of the talk's devices, and
  // is the number that sets how much of a step can be gained.
  scenario.verify.policy = model::VerifyPolicy::kFixed;
  scenario.profile.decode_step = {base::Nanos{20'000'000}, 31.0, 200e3 / 6, 6e3, {}};
  scenario.experts.policy = policy;
  scenario.experts.layers = 4;
  scenario.experts.skew_amount = 2.1;  // one kind of work, as the talk's prompts: few experts carry much
  scenario.experts.domains = 4;
  scenario.experts.move_bytes_per_s = 400e9;   // one NVLink domain
  scenario.experts.memory_bytes_per_s = 8e12;  // of the same devices
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

struct AblationOptions {
  double drift_steps = 2'000;
  std::uint64_t first_seed = kReportSeeds, seeds = 12;
  std::int64_t warm_steps = 600, steps = 2'400;
  std::size_t rows = kAblationRows.size();  // the first so many
};

struct Ablation {
  static constexpr std::size_t kRows = kAblationRows.size();
  // Of each row: percent of tokens per second over the first, by seed; busiest rank over mean.
  std::array<std::vector<double>, kRows> gain_percent;
  std::array<double, kRows> balance{};
  double copies_percent = 0;  // of a step with redundant slots: reading them
  double step_ms = 0;

  static double mean(const std::vector<double>& of) {
    double sum = 0;
    for (const double value : of) sum += value;
    return sum / static_cast<double>(of.size());
  }
  /// Of the mean.
  static double error(const std::vector<double>& of) {
    double squares = 0;
    for (const double value : of) squares += (value - mean(of)) * (value - mean(of));
    const auto count = static_cast<double>(of.size());
    return std::sqrt(squares / (count - 1) / count);
  }
  /// What row `of` gains over row `over`, by seed: what the seeds have in common drops out.
  std::vector<double> difference(std::size_t of, std::size_t over) const {
    std::vector<double> out;
    for (std::size_t i = 0; i < gain_percent[of].size(); ++i)
      out.push_back(gain_percent[of][i] - gain_percent[over][i]);
    return out;
  }
};

/// Every seed is a popularity of its own; the rows of a seed get the same requests.
inline Ablation ablate(const AblationOptions& options) {
  Ablation result;
  const auto seeds = static_cast<double>(options.seeds);
  for (std::uint64_t i = 0; i < options.seeds; ++i) {
    const std::uint64_t seed = options.first_seed + i;
    double off = 0;
    for (std::size_t r = 0; r < options.rows; ++r) {
      const AblationRow& row = kAblationRows[r];
      model::Scenario scenario = expert_scenario(row.policy, row.redundant, options.drift_steps, seed);
      const auto prepared = prepare_experts(scenario);
      TRIMTAB_CHECK(prepared.has_value(), prepared.error().message);
      Load load;
      load.requests_per_rank = 64;
      load.output_mean_tokens = 1'024;
      load.warm_steps = options.warm_steps;
      load.steps = options.steps;
      load.seed = seed;
      const Outcome outcome = World(scenario, load).run();
      if (r == 0) off = outcome.tokens_per_s;
      if (r == 0) result.step_ms += outcome.step_ms / seeds;
      result.gain_percent[r].push_back(100 * (outcome.tokens_per_s / off - 1));
      const StepTimes& times = outcome.times;
      if (row.redundant > 0) result.copies_percent = 100 * times.expert_copies / times.sum();
      const double rows = 64.0 * (1 + scenario.verify.drafts);
      const double moe =
          scenario.profile.decode_step.moe_ns_per_request * rows * static_cast<double>(options.steps);
      result.balance[r] += (1 + (times.expert_imbalance + times.expert_drift) / moe) / seeds;
    }
  }
  return result;
}

}  // namespace trimtab::sim::study
