#pragma once

#include <cstdint>
#include <vector>

#include "base/units.h"
#include "model/fault_plan.h"
#include "model/ids.h"
#include "sim/step_times.h"

namespace trimtab::sim {

/// One value a bucket of time.
using Series = std::vector<double>;

/// Of the values that came in one bucket of time, in seconds. All 0 where `count` is 0.
struct Percentiles {
  std::uint64_t count = 0;
  double p50 = 0, p90 = 0, p99 = 0;
};

/// Of the requests of one tier of context (Scenario::report_bounds_tokens), a value a bucket.
struct TierOverTime {
  std::vector<Percentiles> queue;  // from waiting to leased, by the time of the lease
  std::vector<Percentiles> ttft;   // by the time of the first token
  std::vector<Percentiles> tpot;   // by the time of the end
};

/// A slice of the timeline: a step of an engine (in the fast form of decode: a run of equal steps), or a
/// phase of a request.
struct Span {
  enum class Kind : std::uint8_t { kPrefillStep, kDecodeSteps, kQueued, kPrefill, kDecode };
  Kind kind = Kind::kPrefillStep;
  base::Nanos begin, end;
  std::uint32_t engine = 0, rank = 0;  // of kPrefill and kDecode: where the request was
  std::uint64_t id = 0;                // the request; of steps: the number of the first
  std::uint64_t steps = 0;             // of kDecodeSteps
  std::int64_t requests = 0;           // in the step
  std::int64_t tokens = 0;             // of a phase: the prompt's
};

/// One fault at one target.
struct FaultMark {
  model::FaultKind kind = model::FaultKind::kEngine;
  model::Role role = model::Role::kPrefill;  // of ranks, engines, drains and late starts
  std::uint32_t target = 0;
  base::Nanos from, until{-1};  // engines: until they serve again; below 0: it was not over at the end
};

/// The experts of one layer on the ranks of a group, under the loads at the run's end: as they were placed at
/// the start, and as they were re-placed.
struct ExpertPicture {
  std::uint32_t ranks = 0;
  std::uint64_t plans = 0;            // that the group made
  std::vector<double> popularity;     // [experts] share of the layer's choices
  std::vector<double> before, after;  // [ranks, experts] of the layer's choices
};

/// What a run looked like over time: every series has `buckets` values, bucket i being the time from origin +
/// i x width on. Ranks are numbered engine x ranks per engine + rank.
struct Recording {
  base::Nanos origin, width;
  std::size_t buckets = 0;
  std::uint32_t prefill_ranks = 0, decode_ranks = 0;  // of one engine

  Series arrivals, finished, failed;              // requests: each once, however often it is retried
  Series retried;                                 // passes that began again, and clients that asked again
  std::vector<Series> queued;                     // [tier of the queues] requests that wait, mean
  std::vector<TierOverTime> tiers;                // by context
  std::vector<Series> prefill_busy;               // [rank] share of the time that its own work took
  std::vector<Series> decode_running;             // [rank] requests, mean
  std::vector<Series> decode_kv;                  // [rank] tokens, mean
  std::vector<std::vector<Series>> engine_tiers;  // [prefill engine][tier] share of the time it served it
  Series prompt_tokens, hit_tokens;               // of the requests leased
  std::vector<StepTimes> prefill_times, decode_times;  // [bucket], all engines
  std::vector<Span> spans;                             // of the slice asked for, in the order they ended
  std::uint64_t spans_left_out = 0;                    // beyond the bound
  std::vector<FaultMark> faults;                       // in the order in which they began
  std::uint64_t faults_left_out = 0;                   // beyond the bound
  // Of the first engine and the first group, where experts are modelled; else without ranks.
  ExpertPicture prefill_experts, decode_experts;

  double seconds() const { return base::to_seconds(width); }
};

}  // namespace trimtab::sim
