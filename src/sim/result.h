#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/distribution.h"
#include "sim/event_queue.h"
#include "sim/outcomes.h"
#include "sim/step_times.h"

namespace trimtab::sim {

/// Times of the requests of one tier, or of all.
struct Latencies {
  Distribution ttft;  // submitted to first token
  Distribution tpot;  // per token after the first, one value a request
  Distribution end_to_end;
  std::uint64_t served_well =
      0;  // first token within the tier's target and a share of the request's own work

  double share_served_well() const {
    return ttft.count() == 0 ? 1.0 : static_cast<double>(served_well) / static_cast<double>(ttft.count());
  }
};

/// One finished request (Scenario::keep_requests).
struct RequestTimes {
  std::uint32_t request = 0, repeat = 0;  // of the trace
  Nanos submitted, first_token, ended;
  std::int64_t prompt = 0, hit = 0, output = 0;
};

/// The engines' account at one instant, all of a stage together.
struct StageSample {
  Nanos at;
  StepTimes prefill, decode;
  double prefill_busy_s = 0, decode_busy_s = 0;
  double prefill_uneven_ns = 0;  // of the waits in `prefill`: what the fullest rank has more than the mean
};

struct Result {
  std::vector<Latencies> tiers;
  Latencies all;
  std::uint64_t submitted = 0, finished = 0, failed = 0, unfinished = 0;
  std::vector<std::string> failures;  // the first few, in words
  std::int64_t prompt_tokens = 0, hit_tokens = 0, computed_tokens = 0, output_tokens = 0;
  std::int64_t matched_tokens = 0;  // prompts of the finished requests, whose hits hit_tokens counts
  Nanos span;                       // of simulated time, first arrival to last end
  double prefill_busy = 0;          // share of the span, mean over engines
  double decode_busy = 0;
  StepTimes prefill_times, decode_times;  // where the steps' time went, all engines
  std::uint64_t prefill_steps = 0, decode_steps = 0, preemptions = 0;
  std::uint64_t moves = 0;  // running requests that were told to leave their decode rank
  std::int64_t evicted_blocks = 0;
  FaultOutcome faults;
  StorageOutcome storage;
  NetworkOutcome network;
  VisionOutcome vision;
  std::uint64_t events = 0;      // of virtual time
  std::uint64_t event_hash = 0;  // equal for equal runs
  std::vector<RequestTimes> requests;
  std::vector<StageSample> samples;  // at the times asked for by Simulation::sample_at
  std::int64_t prefill_tokens = 0;   // computed by prefill ranks; above computed_tokens, some twice
  double prefill_work_ns = 0;        // of their chunks, each rank's own
};

}  // namespace trimtab::sim
