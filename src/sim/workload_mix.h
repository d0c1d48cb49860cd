#pragma once

#include <span>
#include <vector>

#include "base/error.h"
#include "base/units.h"
#include "model/trace.h"

namespace trimtab::sim {

struct MixOptions {
  /// Share of the requests that comes of each trace, relative. Empty: traces are laid over one another at
  /// their recorded rates.
  std::vector<double> weights;
  /// Closed loops whose starts were not recorded: over this span.
  base::Nanos start_span{8LL * 3600 * 1'000'000'000};
};

/// More requests than this are an error: the mixed trace is held in memory.
inline constexpr std::int64_t kMixRequestsMax = 20'000'000;

/// Lays traces over one another. The sum of their recorded rates stays; each is stretched or squeezed in time
/// so that it has its share of it, and runs again, with contents of its own, until the longest has run once.
/// Conversations stay whole: think times, and the distances between an open loop's requests relative to its
/// rate. Block ids are kept apart by trace and run; blocks of different sizes are cut to the greatest common
/// one. With a closed loop among them the mix is one, in which an open loop's requests are conversations of
/// one turn. Errors: no trace, a weight that is not positive, as many weights as traces, block sizes with
/// less than 16 tokens in common, more than kMixRequestsMax requests.
base::Result<model::Trace> mix(std::span<const model::Trace> traces, const MixOptions& options);

}  // namespace trimtab::sim
