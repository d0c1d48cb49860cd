#pragma once

#include <cstdint>

#include "base/units.h"

namespace trimtab::model {

/// Who decides how many drafts a decode step verifies.
enum class VerifyPolicy : std::uint8_t {
  kOff,        // no drafts are modelled: DecodeModel::tokens_per_step
  kFixed,      // all drafts of everyone
  kPublished,  // each rank for itself, by confidence (DSpark as published)
  kGroup,      // ours: one graph size for the group
};

/// Drafts, how they are accepted, and what a step of verified rows takes beyond the profile's coefficients:
///   decode_step.fixed + unprofiled + dispatch x rows + max(weights, moe x rows x expert balance)
///     + attention x KV + sampler + sampler_row x rows,
/// rows being those of the largest padded batch. The acceptance is that of the study in
/// docs/policies/speculate.md with its mean raised (1.17 there): in the loop requests that are rarely
/// accepted stay longer, and the published accepted length of 3.29 is that of the batch.
struct VerifyModel {
  VerifyPolicy policy = VerifyPolicy::kOff;
  std::int32_t drafts = 5;
  // Chance of a draft, given those before it: logistic(request + round + position).
  double accept_mean = 1.43, accept_request_sigma = 0.9, accept_round_sigma = 1.1, accept_position = -0.05;
  base::Nanos weights;     // least time of the MoE layers: their weights are read whatever the batch
  base::Nanos unprofiled;  // in every step, though not in the measured curve: waits, shared networks
  base::Nanos sampler;     // once a step: sampler, LM head, drafts
  double sampler_row_ns = 0;
};

}  // namespace trimtab::model
