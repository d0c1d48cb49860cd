#pragma once

#include <span>

#include "policy/decode/types.h"

namespace trimtab::policy {

/// Attention of one layer on one rank is bound by memory: it reads its weights and the KV of every request.
/// The defaults are the chapter's (system facts, section 7).
struct AttentionModel {
  double weight_bytes = 187e6;
  double kv_bytes_per_token = 1152;
  double memory_bytes_per_s = 3.35e12;
};

/// What imbalance costs: every layer all ranks wait for the slowest rank's attention.
struct AttentionWait {
  double slowest_s = 0;
  double mean_s = 0;
  double idle_s() const { return slowest_s - mean_s; }  // of the mean rank, per layer
};

/// `loads` must not be empty.
AttentionWait attention_wait(const AttentionModel& model, std::span<const DecodeLoad> loads);

}  // namespace trimtab::policy
