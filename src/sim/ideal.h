#pragma once

#include <cstdint>
#include <vector>

#include "base/error.h"
#include "model/scenario.h"
#include "model/trace.h"
#include "sim/event_queue.h"

namespace trimtab::sim {

/// What one request costs, whoever computes it where.
struct RequestWork {
  Nanos attention, rest;  // prefill of what does not hit, as one chunk
  std::int64_t prompt = 0, hit = 0, output = 0;
  std::uint32_t tier = 0;  // of Scenario::report_bounds_tokens

  Nanos work() const { return attention + rest; }
};

/// Sums over requests: what perfectly even engines must do, whatever the order.
struct WorkSums {
  std::uint64_t requests = 0;
  std::int64_t computed_tokens = 0, hit_tokens = 0, output_tokens = 0;
  double attention_ns = 0, rest_ns = 0;  // prefill
  double request_steps = 0;              // decode: a request is in so many steps
  double kv_token_steps = 0;             // and so much KV is read in them

  double work_ns() const { return attention_ns + rest_ns; }
  void add(const RequestWork& request, double tokens_per_step);
};

/// The cost of a trace on a scenario's engines, computed from the trace and the profile alone: nothing that a
/// policy decided or logged goes in. Hits are those of a pool that keeps everything: each request finds the
/// blocks of all that stand before it in the trace.
std::vector<RequestWork> trace_work(const model::Trace& trace, const model::Scenario& scenario);

/// One request's cost with the hit that it had.
RequestWork work_of(const model::Scenario& scenario, std::int64_t prompt, std::int64_t hit,
                    std::int64_t output);

/// Perfectly balanced engines offline: all work is there at the start, and is spread evenly over all ranks;
/// every step is full; nothing waits, nothing is padded, experts are even.
struct Offline {
  Nanos prefill, decode;     // time that all prefill ranks, all decode ranks need
  double prefill_speed = 1;  // of a rank: work over time of a full step, which pays its fixed part
  double decode_batch = 1;   // requests per rank at full concurrency
  Nanos decode_step;         // at full concurrency
  /// The slower stage decides.
  Nanos whole() const { return std::max(prefill, decode); }
  bool decode_bound() const { return decode > prefill; }
};
Offline offline(const WorkSums& sums, const model::Scenario& scenario);

/// What a decode step costs beyond its fixed part for so many requests (padding left out, experts even) and
/// KV on each rank.
double decode_step_ns(const model::DecodeStepCost& cost, double requests, double kv_tokens);

}  // namespace trimtab::sim
