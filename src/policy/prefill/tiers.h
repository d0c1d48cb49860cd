#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/units.h"
#include "model/ids.h"

namespace trimtab::policy {

/// Total context length -> tier (system facts, section 3, level 1). Bounds are exclusive upper bounds,
/// ascending; the last tier has none, so there is one tier more than bounds. A request that grows past its
/// bound is in the next tier.
class TierMap {
 public:
  /// kInvalidArgument when the bounds do not ascend strictly, or are more than 15.
  static base::Result<TierMap> make(std::span<const std::int64_t> bounds_tokens);

  model::TierId tier_of(base::TokenCount context) const;
  std::uint32_t size() const { return static_cast<std::uint32_t>(bounds_.size()) + 1; }
  /// "64K-256K", "<512", ">=4K"; K = 1,024 tokens.
  std::string name(model::TierId tier) const;

 private:
  explicit TierMap(std::vector<std::int64_t> bounds) : bounds_(std::move(bounds)) {}
  std::vector<std::int64_t> bounds_;
};

/// The tiers that an engine pulls from: all of [first, last]. `cap` is the largest of them that had demand:
/// its batch cap rules the engine's batches.
struct TierRange {
  model::TierId first, last, cap;
  constexpr bool contains(model::TierId tier) const { return first <= tier && tier <= last; }
  constexpr auto operator<=>(const TierRange&) const = default;
};

struct EngineTiers {
  model::EngineId engine;
  TierRange range;
  constexpr auto operator<=>(const EngineTiers&) const = default;
};

struct AllocatorConfig {
  /// A tier keeps its engines while its ideal share is within this many engines of what it has. Largest
  /// remainder alone flips at 0.5.
  double hysteresis_engines = 0.75;
  /// With fewer engines than tiers in demand: a grouping is kept while its busiest engine has at most this
  /// many times the demand of the best grouping's busiest.
  double hysteresis_load_ratio = 1.25;
};

struct Allocation {
  std::vector<EngineTiers> engines;       // ascending by engine
  std::vector<base::Nanos> demand;        // per tier, what was decided on
  std::vector<double> ideal_engines;      // per tier: its share of the demand, in engines
  std::vector<std::uint32_t> engines_of;  // per tier: how many engines serve it
  bool changed = false;                   // some engine's range differs from the round before
  std::string reason;
};

/// Gives engines to tiers in proportion to each tier's share of the last round's compute-quota demand (system
/// facts, section 3). Engines are whole, so shares are rounded by largest remainder, with one engine at least
/// for every tier in demand; hysteresis keeps what is nearly right, and a change moves as few engines as it
/// can (lowest ids stay). With fewer engines than tiers in demand, each engine serves a run of neighbouring
/// tiers: the split of the runs minimises the busiest engine's demand. Tiers without demand are served by the
/// engines of the next longer tier with demand (of the next shorter, when there is none), so that whatever
/// comes next finds an engine at once. Cost: O(engines log engines + tiers^2 engines) once a round (seconds).
/// Weakness: it follows demand one round late, and static tiers split a pool (17 % of capacity in the
/// published-trace study); engines with much quota left may therefore help neighbours (queues.h).
class TierAllocator {
 public:
  explicit TierAllocator(std::uint32_t tiers, const AllocatorConfig& config = {});

  /// `engines`: those in service, any order. `demand`: per tier, quota of the last round. Decides, and
  /// remembers for the hysteresis.
  Allocation decide(std::span<const model::EngineId> engines, std::span<const base::Nanos> demand);

 private:
  bool nearly_right(const std::vector<std::int64_t>& demand, bool fewer_engines) const;

  std::uint32_t tiers_;
  AllocatorConfig config_;
  std::vector<EngineTiers> core_;      // ranges over tiers in demand, before the others are attached
  std::vector<EngineTiers> previous_;  // the last answer
};

}  // namespace trimtab::policy
