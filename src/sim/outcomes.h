#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/units.h"
#include "sim/distribution.h"

namespace trimtab::sim {

/// What went wrong in a run, and what it cost.
struct FaultOutcome {
  std::uint64_t engines_lost = 0;     // prefill engines, decode groups and encoders, each time
  std::uint64_t engines_joined = 0;   // again, or late
  std::uint64_t engines_drained = 0;  // left when they were empty
  std::uint64_t storage_lost = 0, queue_stops = 0, entrypoints_lost = 0;
  std::uint64_t passes_repeated = 0;  // matches beyond a request's first: redone, or back from a full rank
  std::uint64_t requests_moved = 0;   // asked again at another entrypoint: no token had come
  std::uint64_t streams_broken = 0;   // failed with their entrypoint
  std::uint64_t reports_lost = 0;     // of decode ranks' loads
  std::int64_t fallback_tokens = 0;   // computed because a storage node did not answer
  std::uint64_t outputs_cut = 0;      // answers that the model's context limit ended
  base::Nanos engine_down;            // summed over engines: gone or starting up
  std::uint64_t steps_lost = 0;       // under way in groups that died
  base::Nanos steps_lost_span;        // of them, until they died

  bool any() const {
    return engines_lost + engines_joined + engines_drained + storage_lost + queue_stops + entrypoints_lost +
               reports_lost >
           0;
  }
};

/// One storage node. A prefix is asked for block by block until one is missing.
struct StorageNode {
  std::uint64_t reads = 0;  // each of one request's blocks on the node
  Distribution delay;       // of a read: queued to delivered
  std::uint64_t asked = 0;  // blocks
  std::uint64_t found = 0;  // of them; what is stored behind a node that is down is not found
  double hit_share() const {
    return asked > 0 ? static_cast<double>(found) / static_cast<double>(asked) : 0.0;
  }
};

/// Of the pool's storage nodes.
struct StorageOutcome {
  std::vector<double> node_bytes;  // read from each
  std::vector<StorageNode> nodes;
  /// Most over mean: 1 is even. 0 without reads.
  double hottest() const {
    double sum = 0, most = 0;
    for (const double bytes : node_bytes) {
      sum += bytes;
      most = std::max(most, bytes);
    }
    return sum > 0 ? most * static_cast<double>(node_bytes.size()) / sum : 0.0;
  }
};

/// Of the machines' networks, where they are modelled: prefill machines first.
struct NetworkOutcome {
  std::vector<double> machine_bytes, machine_busy;  // read and handed over; share of the span
  std::size_t prefill_machines = 0;
  Distribution wait;  // of a read or a hand-over for those before it
};

/// One vision machine: all of its encoders.
struct VisionMachine {
  std::uint64_t images = 0;  // encoded
  std::int64_t patches = 0;
  Distribution delay;            // asked to encoded
  double waiting_s = 0;          // images x seconds between asked and begun: over the span, the mean queue
  std::uint32_t queue_most = 0;  // images that one encoder had, the one under way included
  double busy = 0;               // share of the span, mean over the machine's encoders
};

/// What vision did in a run.
struct VisionOutcome {
  std::uint64_t images = 0;       // encoded
  std::int64_t patches = 0;       // of them
  Distribution delay;             // asked to encoded
  double busy = 0;                // share of the span, mean over encoders
  std::uint64_t unencodable = 0;  // requests whose images no encoder of this model takes
  std::vector<VisionMachine> machines;
};

}  // namespace trimtab::sim
