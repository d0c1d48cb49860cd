#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "model/scenario.h"

namespace trimtab::sim {

/// Coefficients of a decode step (model::DecodeStepCost, and model::VerifyModel where drafts are modelled),
/// in nanoseconds. A row is a request's token, or one of its drafts to verify.
struct DecodeStep {
  double fixed = 0, attention = 0, dispatch = 0;
  double moe_row = 0, moe_least = 0;
  double unprofiled = 0, sampler = 0, sampler_row = 0;

  static DecodeStep of(const model::Scenario& scenario) {
    const model::DecodeStepCost& cost = scenario.profile.decode_step;
    DecodeStep step{static_cast<double>(cost.fixed.value), cost.attention_ns_per_kv_token,
                    cost.dispatch_ns_per_request, cost.moe_ns_per_request};
    const model::VerifyModel& verify = scenario.verify;
    if (verify.policy == model::VerifyPolicy::kOff) return step;
    step.moe_least = static_cast<double>(verify.weights.value);
    step.unprofiled = static_cast<double>(verify.unprofiled.value);
    step.sampler = static_cast<double>(verify.sampler.value);
    step.sampler_row = verify.sampler_row_ns;
    return step;
  }
  /// The MoE layers on a rank that computes for so many rows.
  double moe(double rows) const { return std::max(moe_least, moe_row * rows); }
  /// What is measured offline for a graph: no context, no imbalance, no sampler.
  double curve(double rows) const { return fixed + dispatch * rows + moe(rows); }
};

}  // namespace trimtab::sim
