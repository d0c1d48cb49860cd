#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cluster/events.h"
#include "model/scenario.h"
#include "sim/event_queue.h"
#include "sim/machine_links.h"
#include "sim/recorder.h"

namespace trimtab::sim {

using cluster::EngineId;
using cluster::RankId;
using cluster::RequestId;
using cluster::TokenCount;

using model::SimulationSpeed;

/// One request inside the simulated engines.
struct SimRequest {
  RequestId id;
  bool live = false;
  // Count the passes on either side, over all uses of the slot: an event of an earlier pass is known by them.
  std::uint64_t prefill_pass = 0, decode_pass = 0;

  std::int64_t prompt = 0, output = 0;  // tokens; `output` is known to the engines only
  std::int64_t generated = 0;
  Nanos submitted, first_token, last_token;
  std::int64_t first_hit = 0;
  bool started = false;
  bool matched = false;  // first_hit is known
  // Of the prompt's blocks in the pool: how many were matched, and when; when the rest was stored.
  std::int64_t matched_blocks = 0;
  Nanos matched_at, stored_at;
  std::uint32_t entrypoint = 0;  // which gateway process holds its stream
  std::uint32_t tries = 0;       // by its client, before this one

  // On the prefill side.
  RankId prefill;
  std::int64_t tokens = 0, hit = 0;  // of this pass
  Nanos batch_cap = base::kForever;
  Nanos read_until;        // hit blocks are all there
  bool computing = false;  // the rank's scheduler has it (or had it)
  bool computed = false, target = false, hand_over = true;
  bool moved = false;  // its hand-over has ended
  std::int64_t last_chunk = 0;
  std::uint64_t storage_epoch = 0;       // of the pool at the match
  std::vector<model::ImageSpan> images;  // ascending
  std::vector<bool> embedded;            // of each: the rank has its embeddings
  TokenCount ready{INT64_MAX};           // tokens from here on wait for embeddings

  // On the decode side.
  RankId decode;
  std::int64_t reserved_tokens = 0;
  bool reserved = false, running = false;
};

/// Tokens before the first image whose embeddings the rank lacks, of those that are not inside the hit.
TokenCount ready_tokens(const SimRequest& request);

/// Of all layers, as the pool stores it.
inline double kv_bytes_per_token(const model::Scenario& scenario) {
  return static_cast<double>(scenario.profile.kv.block_bytes.value) /
         static_cast<double>(model::kBlockTokens);
}

/// What the groups need of the host around them.
class Host {
 public:
  virtual ~Host() = default;
  virtual EventQueue& queue() = 0;
  virtual SimRequest& request(std::uint32_t slot) = 0;
  /// Hands an event to the cluster machine; its actions are done before this returns (or, from inside
  /// another, right after that one's).
  virtual void tell(cluster::Event event) = 0;
  /// Of the machines; null: networks never limit.
  virtual MachineLinks* links() { return nullptr; }
  /// Who watches; mostly nobody.
  virtual Recorder* recorder() { return nullptr; }
  static std::uint32_t slot_of(RequestId id) { return static_cast<std::uint32_t>(id.value & kSlotMask); }
  static constexpr std::uint64_t kSlotBits = 24;
  static constexpr std::uint64_t kSlotMask = (std::uint64_t{1} << kSlotBits) - 1;
};

}  // namespace trimtab::sim
