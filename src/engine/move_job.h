#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/units.h"
#include "model/ids.h"
#include "wire/messages.h"

namespace trimtab::engine {

/// What is said the moment a hand-over is done, by the thread that did it: the rank's own is in the next
/// step.
struct HandOverReport {
  wire::PrefillDone done;                   // but for handed_blocks
  std::shared_ptr<std::atomic<bool>> said;  // set before the word is out
};

/// One piece of block traffic of a request. The arena's blocks that it names must stay referenced until it is
/// done.
struct MoveJob {
  enum class Kind : std::uint8_t { kHandOver, kFetch, kStore } kind = Kind::kFetch;
  model::RequestId id;
  std::uint64_t stay = 0;                 // the owner's: which stay of the request at this rank it belongs to
  std::vector<std::uint32_t> blocks;      // of this rank's arena
  std::vector<model::BlockKey> keys;      // kFetch, kStore: one per block
  std::optional<model::BlockKey> parent;  // kStore: of keys[0]
  model::RankId target;                   // kHandOver
  std::string segment;                    // kHandOver: the decode rank's arena
  std::vector<std::uint32_t> destination;  // kHandOver: one per block
  std::optional<HandOverReport> report;    // kHandOver
  base::Nanos compute;                     // kFetch: what the first step over the hit is predicted to compute
  base::Nanos patience;  // kFetch: how long a loader that is away is dialled again before the hit is given up
};

struct MoveDone {
  MoveJob job;
  std::uint32_t moved = 0;  // leading blocks that were moved
  bool cancelled = false;
  base::Status status;  // why it stopped short
};

}  // namespace trimtab::engine
