#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "base/check.h"
#include "policy/prefill/tiers.h"

namespace trimtab::policy {

namespace {

using Wide = __int128;  // engines * demand passes 2^63 when demand is counted in years
using Demand = std::vector<std::int64_t>;

/// The share of each tier in engines: in proportion to demand, but one at least for a tier in demand, which
/// the others pay for. Numerators over one denominator for the tiers that are not at the minimum.
struct Shares {
  std::vector<bool> minimum;  // this tier has exactly one engine, more than its proportion
  std::int64_t engines = 0;   // what the others share
  Wide demand = 0;            // their sum

  double of(std::size_t tier, std::int64_t tier_demand) const {
    if (minimum[tier]) return 1.0;
    if (tier_demand == 0) return 0.0;
    return static_cast<double>(engines) * static_cast<double>(tier_demand) / static_cast<double>(demand);
  }
};

/// Needs at least as many engines as tiers in demand.
Shares share(const Demand& demand, std::int64_t engines) {
  Shares shares;
  shares.minimum.assign(demand.size(), false);
  shares.engines = engines;
  for (const std::int64_t d : demand) shares.demand += d;
  for (bool again = true; again;) {
    again = false;
    for (std::size_t tier = 0; tier < demand.size(); ++tier) {
      if (demand[tier] == 0 || shares.minimum[tier]) continue;
      if (static_cast<Wide>(shares.engines) * demand[tier] < shares.demand) {
        shares.minimum[tier] = again = true;
        shares.engines -= 1;
        shares.demand -= demand[tier];
      }
    }
  }
  return shares;
}

/// Largest remainder, ties to the shorter tier.
std::vector<std::uint32_t> round_shares(const Shares& shares, const Demand& demand) {
  std::vector<std::uint32_t> counts(demand.size());
  std::vector<std::pair<Wide, std::size_t>> remainders;
  std::int64_t left = shares.engines;
  for (std::size_t tier = 0; tier < demand.size(); ++tier) {
    if (shares.minimum[tier]) counts[tier] = 1;
    if (demand[tier] == 0 || shares.minimum[tier]) continue;
    const Wide scaled = static_cast<Wide>(shares.engines) * demand[tier];
    counts[tier] = static_cast<std::uint32_t>(scaled / shares.demand);
    left -= counts[tier];
    remainders.emplace_back(-(scaled % shares.demand), tier);
  }
  std::sort(remainders.begin(), remainders.end());
  for (std::size_t i = 0; left > 0; ++i, --left) ++counts[remainders[i].second];
  return counts;
}

/// Ends (exclusive) of `runs` runs of `values` whose largest sum is least; the shortest first runs among
/// equals.
std::vector<std::size_t> split_runs(const Demand& values, std::size_t runs) {
  const std::size_t n = values.size();
  std::vector<std::int64_t> prefix(n + 1);
  for (std::size_t i = 0; i < n; ++i) prefix[i + 1] = prefix[i] + values[i];
  // best[k][i]: least largest sum of values[i..] in k runs; the cut is the end of its first run.
  constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
  std::vector<std::vector<std::int64_t>> best(runs + 1, std::vector<std::int64_t>(n + 1, kNone));
  std::vector<std::vector<std::size_t>> cut(runs + 1, std::vector<std::size_t>(n + 1, 0));
  best[0][n] = 0;
  for (std::size_t k = 1; k <= runs; ++k) {
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t end = i + 1; end <= n; ++end) {
        if (best[k - 1][end] == kNone) continue;
        const std::int64_t largest = std::max(prefix[end] - prefix[i], best[k - 1][end]);
        if (largest < best[k][i]) {
          best[k][i] = largest;
          cut[k][i] = end;
        }
      }
    }
  }
  std::vector<std::size_t> ends;
  for (std::size_t k = runs, i = 0; k > 0; --k) ends.push_back(i = cut[k][i]);
  return ends;
}

std::vector<std::uint32_t> covers(const std::vector<EngineTiers>& core, std::uint32_t tiers) {
  std::vector<std::uint32_t> count(tiers);
  for (const EngineTiers& engine : core) {
    for (std::uint32_t t = engine.range.first.value; t <= engine.range.last.value; ++t) ++count[t];
  }
  return count;
}

double busiest(const std::vector<EngineTiers>& core, const Demand& demand) {
  const auto count = covers(core, static_cast<std::uint32_t>(demand.size()));
  double most = 0;
  for (const EngineTiers& engine : core) {
    double load = 0;
    for (std::uint32_t t = engine.range.first.value; t <= engine.range.last.value; ++t) {
      load += static_cast<double>(demand[t]) / count[t];
    }
    most = std::max(most, load);
  }
  return most;
}

TierRange single(std::size_t tier) {
  const model::TierId id{static_cast<std::uint32_t>(tier)};
  return {id, id, id};
}

/// Engines keep their tier while it needs them, lowest ids first; the rest fill the tiers that lack some.
std::vector<EngineTiers> move_few(std::span<const model::EngineId> engines, std::vector<std::uint32_t> counts,
                                  const std::vector<EngineTiers>& previous) {
  std::vector<EngineTiers> core;
  std::vector<model::EngineId> loose;
  for (const model::EngineId engine : engines) {
    const auto old = std::find_if(previous.begin(), previous.end(),
                                  [engine](const EngineTiers& each) { return each.engine == engine; });
    const bool stays =
        old != previous.end() && old->range.first == old->range.last && counts[old->range.first.value] > 0;
    if (stays) {
      --counts[old->range.first.value];
      core.push_back({engine, single(old->range.first.value)});
    } else {
      loose.push_back(engine);
    }
  }
  std::size_t next = 0;
  for (std::size_t tier = 0; tier < counts.size(); ++tier) {
    for (; counts[tier] > 0; --counts[tier]) core.push_back({loose[next++], single(tier)});
  }
  std::sort(core.begin(), core.end());
  return core;
}

/// Fewer engines than tiers in demand: runs of neighbouring tiers, to the engines in the order of what they
/// had.
std::vector<EngineTiers> group(std::span<const model::EngineId> engines, const Demand& demand,
                               const std::vector<EngineTiers>& previous) {
  std::vector<std::size_t> tiers;
  Demand wanted;
  for (std::size_t tier = 0; tier < demand.size(); ++tier) {
    if (demand[tier] == 0) continue;
    tiers.push_back(tier);
    wanted.push_back(demand[tier]);
  }
  std::vector<std::pair<std::uint32_t, model::EngineId>> order;
  for (const model::EngineId engine : engines) {
    const auto old = std::find_if(previous.begin(), previous.end(),
                                  [engine](const EngineTiers& each) { return each.engine == engine; });
    order.emplace_back(old == previous.end() ? UINT32_MAX : old->range.first.value, engine);
  }
  std::sort(order.begin(), order.end());
  std::vector<EngineTiers> core;
  std::size_t begin = 0;
  for (const std::size_t end : split_runs(wanted, engines.size())) {
    TierRange range = single(tiers[begin]);
    range.last = range.cap = single(tiers[end - 1]).last;
    core.push_back({order[core.size()].second, range});
    begin = end;
  }
  std::sort(core.begin(), core.end());
  return core;
}

/// Tiers that no core holds go to the engines of the next longer tier that one does, or of the longest.
std::vector<EngineTiers> attach(std::vector<EngineTiers> core, std::uint32_t tiers) {
  const auto count = covers(core, tiers);
  std::uint32_t longest = 0;
  for (std::uint32_t t = 0; t < tiers; ++t) {
    if (count[t] > 0) longest = t;
  }
  for (EngineTiers& engine : core) {
    while (engine.range.first.value > 0 && count[engine.range.first.value - 1] == 0)
      --engine.range.first.value;
    if (engine.range.last.value == longest) engine.range.last.value = tiers - 1;
  }
  return core;
}

bool same_engines(std::span<const model::EngineId> engines, const std::vector<EngineTiers>& core) {
  return std::equal(engines.begin(), engines.end(), core.begin(), core.end(),
                    [](model::EngineId id, const EngineTiers& each) { return id == each.engine; });
}

}  // namespace

TierAllocator::TierAllocator(std::uint32_t tiers, const AllocatorConfig& config)
    : tiers_(tiers), config_(config) {
  TRIMTAB_CHECK(tiers > 0);
}

bool TierAllocator::nearly_right(const std::vector<std::int64_t>& demand, bool fewer_engines) const {
  const auto count = covers(core_, tiers_);
  for (std::uint32_t t = 0; t < tiers_; ++t) {
    if (demand[t] > 0 && count[t] == 0) return false;
  }
  if (fewer_engines) {
    std::vector<model::EngineId> engines;
    for (const EngineTiers& each : core_) engines.push_back(each.engine);
    const double best = busiest(group(engines, demand, core_), demand);
    return busiest(core_, demand) <= config_.hysteresis_load_ratio * best;
  }
  const Shares shares = share(demand, static_cast<std::int64_t>(core_.size()));
  for (std::uint32_t t = 0; t < tiers_; ++t) {
    if (std::abs(shares.of(t, demand[t]) - count[t]) > config_.hysteresis_engines) return false;
  }
  return std::all_of(core_.begin(), core_.end(),
                     [](const EngineTiers& each) { return each.range.first == each.range.last; });
}

Allocation TierAllocator::decide(std::span<const model::EngineId> engines_in,
                                 std::span<const base::Nanos> demand_in) {
  TRIMTAB_CHECK(demand_in.size() == tiers_, "one demand per tier");
  std::vector<model::EngineId> engines(engines_in.begin(), engines_in.end());
  std::sort(engines.begin(), engines.end());
  engines.erase(std::unique(engines.begin(), engines.end()), engines.end());
  Demand demand;
  for (const base::Nanos d : demand_in) demand.push_back(std::max<std::int64_t>(d.value, 0));
  const auto in_demand = static_cast<std::size_t>(
      std::count_if(demand.begin(), demand.end(), [](std::int64_t d) { return d > 0; }));
  const bool same = same_engines(engines, core_) && !core_.empty();
  const bool fewer = engines.size() < in_demand;

  Allocation out;
  out.demand.assign(demand_in.begin(), demand_in.end());
  out.ideal_engines.assign(tiers_, 0.0);
  double total = 0;
  for (const std::int64_t d : demand) total += static_cast<double>(d);
  for (std::uint32_t t = 0; t < tiers_ && total > 0; ++t) {
    out.ideal_engines[t] = static_cast<double>(engines.size()) * static_cast<double>(demand[t]) / total;
  }

  const char* how = "";
  if (engines.empty()) {
    core_.clear();
    how = "no engine in service";
  } else if (in_demand == 0 && same) {
    how = "no demand: kept";
  } else if (in_demand == 0) {
    core_.clear();
    // Without demand nobody's batch cap rules but the request's own: the shortest tier's is never above it.
    for (const model::EngineId engine : engines) {
      core_.push_back({engine, {model::TierId{0}, model::TierId{tiers_ - 1}, model::TierId{0}}});
    }
    how = "no demand: every engine serves every tier";
  } else if (same && nearly_right(demand, fewer)) {
    how = fewer ? "grouping within its tolerance: kept" : "shares within the hysteresis: kept";
  } else if (fewer) {
    core_ = group(engines, demand, core_);
    how = "fewer engines than tiers in demand: neighbours grouped";
  } else {
    core_ = move_few(engines, round_shares(share(demand, static_cast<std::int64_t>(engines.size())), demand),
                     core_);
    how = "shares of demand by largest remainder";
  }
  out.engines = attach(core_, tiers_);
  out.engines_of = covers(out.engines, tiers_);
  out.changed = out.engines != previous_;
  previous_ = out.engines;
  out.reason = how;
  for (std::uint32_t t = 0; t < tiers_; ++t) {
    char text[80];
    std::snprintf(text, sizeof text, "%s tier %u: demand %.3f s, ideal %.2f, has %u", t == 0 ? ";" : ",", t,
                  static_cast<double>(demand[t]) * 1e-9, out.ideal_engines[t], out.engines_of[t]);
    out.reason += text;
  }
  return out;
}

}  // namespace trimtab::policy
