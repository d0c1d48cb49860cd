#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cluster/events.h"

namespace trimtab::cluster {

struct TierStatus {
  TokenCount bound;  // contexts up to this, exclusive; base::kForever's value for the last tier
  std::uint32_t queued = 0;
  Nanos queued_quota;
};

struct RankStatus {
  Place place;
  bool heard = false;             // there, and of a formation that is not broken
  std::int64_t blocks_total = 0;  // KV blocks; 0 for encoders
  std::uint32_t requests = 0;     // that hold something there
  std::int64_t running = 0;       // decode: by the placer's account, reservations included
  TokenCount kv;                  // decode
  std::int64_t patches = 0;       // vision: in flight
  std::uint32_t steps_seen = 0;   // reports since the rank joined, saturating
};

struct EngineStatus {
  model::Role role = model::Role::kPrefill;
  EngineId engine;
  bool serving = false, draining = false;
  std::string tiers;                // prefill: "0-1"; empty: none
  std::optional<Nanos> quota_left;  // prefill: of its open pull
  std::vector<RankStatus> ranks;
};

struct ClusterStatus {
  std::vector<EngineStatus> engines;  // by role, then id
  std::vector<TierStatus> tiers;
  std::uint32_t requests = 0, matching = 0, queued = 0, prefilling = 0, decoding = 0, held = 0;
  std::uint32_t releases_pending = 0;
  std::string decode_policy;
  bool ready = false;  // every engine of the configuration serves
};

/// Everything that a request can leave behind; all zero once every request has ended and every abort is
/// answered.
struct Census {
  std::uint64_t requests = 0, queued = 0, leases = 0, held = 0, holdings = 0, deadlines = 0, releases = 0;
  std::uint64_t decode_accounts = 0, vision_jobs = 0, admission_accounts = 0;
  std::uint64_t total() const {
    return requests + queued + leases + held + holdings + deadlines + releases + decode_accounts +
           vision_jobs + admission_accounts;
  }
};

}  // namespace trimtab::cluster
