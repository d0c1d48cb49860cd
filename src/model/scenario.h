#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/units.h"
#include "model/cluster_config.h"
#include "model/cluster_parts.h"
#include "model/expert_model.h"
#include "model/fault_plan.h"
#include "model/overlap_switch.h"
#include "model/profile.h"
#include "model/verify_model.h"

namespace trimtab::model {

enum class SimulationSpeed : std::uint8_t {
  kExact,  // every decode step of every rank is an event
  kFast,   // decode runs in closed form between admissions, finishes and reports
};

struct DecodeModel {
  double expert_balance = 1.0;  // busiest rank / mean of the MoE layers, unless experts are modelled
  double tokens_per_step =
      1.0;  // drawn per request and step: 1 + accepted drafts, unless drafts are modelled
};

struct PrefillModel {
  double expert_balance = 1.0;  // of what is not attention
  /// Work takes the predicted time x a lognormal factor of mean 1 and this sigma, drawn once per request:
  /// policies see the prediction only.
  double cost_error = 0;
  double context_parallel_communication = 0.1;  // of a context-parallel chunk's time, on top
  /// A rank says that a hand-over is done when no step is under way: during one, at its end. One that speaks
  /// at once, as the reference engine's do, has false.
  bool speaks_between_steps = false;
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
  base::Nanos message{50'000};
  double hand_over_bytes_per_s = 50e9;  // of one prefill rank
  double machine_bytes_per_s = 0;       // of a machine, for pool reads and hand-overs together; 0: no limit
  std::uint32_t machine_ranks = 8;      // ranks of an engine that share a machine
};

/// Everything that a simulation depends on besides its requests.
struct Scenario {
  model::ClusterConfig cluster;
  model::Profile profile;
  PrefillModel prefill;
  DecodeModel decode;
  ExpertModel experts;
  VerifyModel verify;
  OverlapSwitch overlap;
  PoolModel pool;
  NetworkModel network;
  StorageModel storage;
  EncoderModel encoder;
  ReportModel reports;
  EntrypointModel entrypoints;
  FaultPlan faults;
  SimulationSpeed speed = SimulationSpeed::kFast;
  base::Nanos report_interval{1'000'000'000};  // fast: how often decode ranks report the growth of what runs
  std::uint64_t seed = 1;
  /// Requests are reported by these tiers of context, whatever tiers the queues have.
  std::vector<std::int64_t> report_bounds_tokens = {16'384, 65'536, 262'144};
  /// A request is served well when its first token comes within its tier's target + slo_work x its own work.
  std::vector<base::Nanos> slo_targets = {base::Nanos{2'000'000'000}, base::Nanos{4'000'000'000},
                                          base::Nanos{8'000'000'000}, base::Nanos{16'000'000'000}};
  double slo_work = 1.5;
  bool keep_requests = false;  // keep every request's times, not only their distributions
};

}  // namespace trimtab::model
