#pragma once

#include <cstdint>

#include "base/error.h"

namespace trimtab::eviction {

/// The SSDs of a pool and what is written to them.
struct Endurance {
  double device_bytes = 0;          // capacity of one
  double drive_writes_per_day = 1;  // DWPD: capacities per day that it is rated for ...
  double rated_years = 5;           // ... over so long
  std::uint32_t devices = 1;        // of one storage node
  std::uint32_t nodes = 1;
  double write_bytes_per_second = 0;  // blocks that the whole pool stores, before coding
  double code_overhead = 1.2;         // 10+2: twelve shards where ten would hold the block
  double write_amplification = 1;  // bytes that reach a device over bytes of shards, from a target's counters
};

struct EndurancePlan {
  double budget_bytes_per_day = 0;      // of one device
  double written_bytes_per_day = 0;     // to one device, coding and amplification included
  double years = 0;                     // until the rating is used up; infinite when nothing is written
  double allowed_bytes_per_second = 0;  // of blocks, for the whole pool to last `rated_years`
  double admitted_ratio = 1;            // of the blocks that may be stored to stay within it
};

/// Errors name the value that cannot be: below or at zero, not finite, an overhead or amplification below
/// one.
base::Result<EndurancePlan> plan_endurance(const Endurance& pool);

}  // namespace trimtab::eviction
