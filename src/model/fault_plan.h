#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/units.h"
#include "model/ids.h"

namespace trimtab::model {

/// What breaks, or is done to a running cluster. `targets` of a fault are of this kind.
enum class FaultKind : std::uint8_t {
  kRank,         // one rank dies (of an encoder machine: one encoder); its group restarts with it
  kEngine,       // a prefill engine, decode group or vision machine dies as a whole
  kStorageNode,  // of the pool: its blocks are misses, its reads fail
  kEntrypoint,   // a gateway process: the streams that it holds break
  kQueue,        // nothing is dequeued while it is down, nothing is lost
  kDrain,        // an engine takes no new work and leaves when it is empty
  kLateStart,    // an engine that is not there from the beginning
};

/// One line of a plan: at given times, or at random ones.
struct Fault {
  FaultKind kind = FaultKind::kEngine;
  Role role = Role::kPrefill;          // of a rank, an engine, a drain, a late start
  std::vector<std::int64_t> targets;   // ids; empty: all of them
  std::vector<std::int64_t> ranks;     // of a rank fault; empty: drawn
  std::optional<base::Nanos> at;       // absent: at random
  base::Nanos span = base::kForever;   // how long; kForever: for good
  base::Nanos start_up;                // of an engine, after that: until it serves
  double rate_per_hour = 0;            // random: of each target
  double down_share = 0;               // random, instead of a rate: of each target's time
  base::Nanos until = base::kForever;  // random ones come before this
  bool loses_content = false;          // of a storage node: it comes back empty
  std::string where;                   // "plan.toml:12", for messages
};

/// What goes wrong in a run, and when. Random faults draw from a stream of their own, so that the same plan
/// hits every policy alike.
struct FaultPlan {
  std::vector<Fault> faults;
  std::uint64_t seed = 1;
};

}  // namespace trimtab::model
