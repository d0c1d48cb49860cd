#pragma once

#include <cstdint>

#include "base/error.h"
#include "base/units.h"
#include "model/trace.h"

namespace trimtab::sim {

struct ResampleOptions {
  enum class Arrivals : std::uint8_t { kPoisson, kEven };
  std::uint64_t seed = 1;
  Arrivals arrivals = Arrivals::kPoisson;
  /// Closed loop whose starts were not recorded: over this span.
  base::Nanos start_span{8LL * 3600 * 1'000'000'000};
};

/// Makes a trace stationary: the same conversations (requests, where each is one of its own), shuffled, with
/// starts that have the recorded mean rate and no memory. `kPoisson` draws them uniformly over the recorded
/// span, a Poisson process given its count, so that every seed has the recorded load and mixture; `kEven`
/// spaces them. Inside a conversation distances and think times stay. What shuffling breaks: the drift over
/// the recorded time, and the order in which conversations hit one another's prefixes. Errors: a trace
/// without requests.
base::Result<model::Trace> resample(const model::Trace& trace, const ResampleOptions& options);

}  // namespace trimtab::sim
