#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "base/error.h"

namespace trimtab::sim {

/// Which block leaves a full pool. Blocks have slot numbers below the capacity; a slot is stored, perhaps
/// used, and leaves; then another block may be stored in it. To add an order: a class in eviction.cpp and its
/// name.
class Eviction {
 public:
  virtual ~Eviction() = default;
  virtual void stored(std::uint32_t slot, std::uint64_t id) = 0;
  virtual void used(std::uint32_t slot) = 0;
  /// The one that leaves now; it is forgotten. Something must be stored.
  virtual std::uint32_t leave() = 0;
};

///  lru      the one that was used longest ago. Weakness: one pass over a long prompt pushes out what
///  returns. fifo     the one that was stored longest ago: what the others are measured against. s3_fifo  a
///  new block stays in a small queue (a tenth) and leaves from there unless it was used; ids that
///           left it are remembered, and come back into the main queue, where use gives another round.
///           Source: "FIFO queues are all you need for cache eviction" (SOSP 2023).
/// Each does all in constant time. Errors: an unknown name (the nearest is offered).
base::Result<std::unique_ptr<Eviction>> make_eviction(std::string_view name, std::int64_t capacity_blocks);
std::span<const std::string_view> eviction_names();

}  // namespace trimtab::sim
