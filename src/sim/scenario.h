#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/units.h"
#include "model/cluster_config.h"
#include "model/profile.h"

namespace trimtab::sim {

using base::Nanos;

enum class Speed : std::uint8_t {
  kExact,  // every decode step of every rank is an event
  kFast,   // decode runs in closed form between admissions, finishes and reports
};

/// Time of one decode step of a group whose ranks wait for one another in every layer (system facts, section
/// 7):
///   fixed + attention x max over ranks of KV tokens + dispatch x max of requests + moe x expert balance x
///   mean of requests, where requests are padded to the next captured graph size.
struct DecodeStepModel {
  Nanos fixed{15'000'000};
  double attention_ns_per_kv_token = 21.0;
  double dispatch_ns_per_request = 70'000.0;
  double moe_ns_per_request = 70'000.0;
  double expert_balance = 1.0;            // busiest rank / mean of the MoE layers
  double tokens_per_step = 1.0;           // drawn per request and step: 1 + accepted drafts
  std::vector<std::int32_t> graph_sizes;  // ascending; empty: no padding
};

struct PrefillStepModel {
  double expert_balance = 1.0;  // of what is not attention
};

/// The pool behind the prefix hits.
struct PoolModel {
  bool enabled = true;
  std::int64_t capacity_blocks = 0;    // of kBlockTokens; 0: everything stays
  double read_bytes_per_s = 40e9;      // of one engine's machine
  std::int64_t bytes_per_token = 891;  // when the profile does not say
  bool layerwise = true;               // computing starts when the first owner layer is there
};

struct NetworkModel {
  Nanos message{50'000};
  double hand_over_bytes_per_s = 50e9;  // of one prefill rank
};

/// Everything a run depends on besides its requests.
struct Scenario {
  model::ClusterConfig cluster;
  model::Profile profile;
  PrefillStepModel prefill;
  DecodeStepModel decode;
  PoolModel pool;
  NetworkModel network;
  Speed speed = Speed::kFast;
  Nanos report_interval{1'000'000'000};  // fast: how often decode ranks report the growth of what runs
  std::uint64_t seed = 1;
  bool keep_requests = false;  // keep every request's times, not only their distributions
};

}  // namespace trimtab::sim
