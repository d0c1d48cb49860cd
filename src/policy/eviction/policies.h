#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "base/error.h"
#include "policy/cost/cost_model.h"
#include "policy/eviction/policy.h"

namespace trimtab::eviction {

struct Settings {
  /// How many blocks the store has room for, about: it bounds what is remembered of blocks that left.
  std::int64_t capacity_blocks = 1'000;
  /// What computing a block again costs. None: every block counts the same per byte, which gives the highest
  /// share of blocks hit; with a model, the most time saved.
  const policy::CostModel* cost = nullptr;
  std::int64_t block_tokens = 128;
  /// hit_density: the lead over LRU, in hits of late, with which its own order takes over, and that with
  /// which it stays. `lead` 0: it leads always.
  double lead = 1.02, lead_to_stay = 1.005;
};

// One line of the registry each; the class comments are in docs/policies/eviction.md and at each class.
std::unique_ptr<Policy> make_lru(const Settings& settings);
std::unique_ptr<Policy> make_fifo(const Settings& settings);
std::unique_ptr<Policy> make_s3_fifo(const Settings& settings);
std::unique_ptr<Policy> make_hit_density(const Settings& settings);

///  lru          the one that was used longest ago. Weakness: one pass over a long prompt pushes out what
///               returns.
///  fifo         the one that was stored longest ago: what the others are measured against.
///  s3_fifo      a new block stays in a small queue (a tenth) and leaves from there unless it was used; keys
///               that left it are remembered and come back into the main queue, where use gives another
///               round. Source: "FIFO queues are all you need for cache eviction" (SOSP 2023).
///  hit_density  the one that promises least saved recompute per byte and second; see hit_density.h.
/// Errors: an unknown name (the nearest is offered), a capacity below one block.
base::Result<std::unique_ptr<Policy>> make_policy(std::string_view name, const Settings& settings);
std::span<const std::string_view> policy_names();

}  // namespace trimtab::eviction
