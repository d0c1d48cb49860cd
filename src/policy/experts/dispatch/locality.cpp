#include "policy/experts/dispatch/locality.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "base/check.h"

namespace trimtab::experts {
namespace {

std::size_t index(std::int32_t value) { return static_cast<std::size_t>(value); }

tl::unexpected<base::Error> bad(std::string message) {
  return base::fail(base::Code::kInvalidArgument, std::move(message), "policy/experts");
}

// Divides `units` over weights so that the parts are whole and add up: boundaries of the running sum, rounded
// down. All weights zero: evenly.
void divide(std::int64_t units, std::span<const double> weights, std::span<std::int64_t> out) {
  double sum = 0;
  for (const double weight : weights) sum += weight;
  const auto count = static_cast<double>(weights.size());
  double run = 0;
  std::int64_t before = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    run += sum > 0 ? weights[i] / sum : 1 / count;
    const auto below =
        i + 1 == weights.size()
            ? units
            : std::clamp(static_cast<std::int64_t>(static_cast<double>(units) * run), before, units);
    out[i] = below - before;
    before = below;
  }
}

}  // namespace

base::Result<LocalShares> LocalShares::make(const Shape& shape, std::span<const std::int32_t> map,
                                            const LocalityOptions& options) {
  TRIMTAB_TRY(check(shape, map, /*distinct=*/false));
  if (!(options.slack >= 0) || !std::isfinite(options.slack)) {
    return bad(fmt::format("a slack of {}: use 0 or more, 0.02 lets the busiest rank carry 2 % more",
                           options.slack));
  }
  LocalShares local;
  local.options_ = options;
  local.shape_ = shape;
  local.sources_ = options.near == Near::kNode ? shape.nodes : shape.ranks;
  local.flow_.reset(shape, map);
  auto table = ShareTable::make(shape, map, 0, options.parts);
  if (!table) return tl::unexpected(table.error());
  local.tables_.assign(index(local.sources_), *table);
  local.wanted_.assign(map.size(), 0);
  local.demand_.assign(index(shape.experts) * index(local.sources_), 0);
  local.sent_.assign(index(local.sources_) * index(shape.ranks), 0);
  return local;
}

std::int32_t LocalShares::node_of_source(std::int32_t source) const {
  return options_.near == Near::kNode ? source : shape_.node_of_rank(source);
}

bool LocalShares::is_near(std::int32_t source, std::int32_t slot, Near near) const {
  const std::int32_t rank = shape_.rank_of_slot(slot);
  if (near == Near::kRank) return options_.near == Near::kRank && rank == source;
  return shape_.node_of_rank(rank) == node_of_source(source);
}

base::Result<LocalityResult> LocalShares::solve(std::span<const double> tokens) {
  if (tokens.size() != index(shape_.experts)) {
    return bad(fmt::format("loads of {} experts for a layer of {}", tokens.size(), shape_.experts));
  }
  alike_.resize(tokens.size() * index(sources_));
  for (std::size_t i = 0; i < alike_.size(); ++i) alike_[i] = tokens[i % tokens.size()] / sources_;
  return solve_sources(alike_);
}

base::Result<LocalityResult> LocalShares::solve_sources(std::span<const double> tokens) {
  const std::size_t experts = index(shape_.experts), sources = index(sources_);
  if (tokens.size() != experts * sources) {
    return bad(fmt::format("{} loads for {} sources x {} experts", tokens.size(), sources_, shape_.experts));
  }
  totals_.assign(experts, 0);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (!(tokens[i] >= 0)) {
      return bad(fmt::format("expert {} has a load of {} at source {}: loads are finite and not negative",
                             i % experts, tokens[i], i / experts));
    }
    totals_[i % experts] += tokens[i];
  }
  if (!flow_.load(totals_)) return bad_loads(std::span<const double>(totals_));
  weights_.resize(sources);
  for (std::size_t e = 0; e < experts; ++e) {
    for (std::size_t s = 0; s < sources; ++s) weights_[s] = tokens[s * experts + e];
    divide(flow_.expert_units()[e], weights_, std::span(demand_).subspan(e * sources, sources));
  }
  LocalityResult result{.total_tokens = static_cast<double>(flow_.total()) * flow_.unit_tokens()};
  flow_.even();
  flow_.sweep();
  const std::int64_t optimum = flow_.level();
  for (std::int32_t expert = 0; expert < shape_.experts; ++expert) count_blind(expert, result);
  start_near();
  const auto enough = static_cast<std::int64_t>(
      std::min(static_cast<double>(flow_.total()), static_cast<double>(optimum) * (1 + options_.slack)));
  const std::int64_t peak = flow_.level(std::max(optimum, enough));
  result.optimum_tokens = static_cast<double>(optimum) * flow_.unit_tokens();
  result.peak_tokens = static_cast<double>(peak) * flow_.unit_tokens();
  for (std::int32_t expert = 0; expert < shape_.experts; ++expert) hand_out(expert, result);
  return result;
}

// What stays near when sources do not matter: every source splits by the shares.
void LocalShares::count_blind(std::int32_t expert, LocalityResult& result) const {
  const double whole = static_cast<double>(flow_.expert_units()[index(expert)]);
  if (whole == 0) return;
  std::int32_t slot = flow_.first_slot(expert);
  for (std::int32_t i = 0; i < flow_.hosts(expert); ++i, slot = flow_.next_slot(slot)) {
    const double part = static_cast<double>(flow_.slot_units()[index(slot)]) / whole * flow_.unit_tokens();
    for (std::int32_t source = 0; source < sources_; ++source) {
      const double tokens = part * static_cast<double>(demand_[index(expert * sources_ + source)]);
      if (is_near(source, slot, Near::kRank)) result.on_rank_blind += tokens;
      if (is_near(source, slot, Near::kNode)) result.on_node_blind += tokens;
    }
  }
}

// Every source keeps its tokens on the nearest copies it has, evenly; one without spreads over all.
void LocalShares::start_near() {
  std::ranges::fill(wanted_, 0);
  for (const std::int32_t expert : flow_.replicated()) {
    for (std::int32_t source = 0; source < sources_; ++source) {
      const auto serves = [&](std::int32_t slot, int ring) {
        return ring == 2 || is_near(source, slot, ring == 0 ? Near::kRank : Near::kNode);
      };
      const auto count = [&](int ring) {
        std::int64_t copies = 0;
        std::int32_t slot = flow_.first_slot(expert);
        for (std::int32_t i = 0; i < flow_.hosts(expert); ++i, slot = flow_.next_slot(slot)) {
          copies += serves(slot, ring) ? 1 : 0;
        }
        return copies;
      };
      int ring = 0;
      while (count(ring) == 0) ++ring;
      const std::int64_t units = demand_[index(expert * sources_ + source)], copies = count(ring);
      std::int64_t given = 0;
      std::int32_t slot = flow_.first_slot(expert);
      for (std::int32_t i = 0; i < flow_.hosts(expert); ++i, slot = flow_.next_slot(slot)) {
        if (!serves(slot, ring)) continue;
        wanted_[index(slot)] += units / copies + (given++ < units % copies ? 1 : 0);
      }
    }
  }
  flow_.place(wanted_);
}

// Sources take from the copies' shares: own rank first, own node, then what is left, all in order.
void LocalShares::hand_out(std::int32_t expert, LocalityResult& result) {
  const std::int32_t hosts = flow_.hosts(expert);
  room_.assign(index(hosts), 0);
  std::fill_n(sent_.begin(), index(sources_) * index(hosts), 0);
  std::int32_t slot = flow_.first_slot(expert);
  for (std::int32_t k = 0; k < hosts; ++k, slot = flow_.next_slot(slot)) {
    room_[index(k)] = flow_.slot_units()[index(slot)];
  }
  const std::span<std::int64_t> left(demand_.data() + index(expert * sources_), index(sources_));
  for (int ring = 0; ring < 3; ++ring) {
    for (std::int32_t source = 0; source < sources_; ++source) {
      slot = flow_.first_slot(expert);
      for (std::int32_t k = 0; k < hosts; ++k, slot = flow_.next_slot(slot)) {
        if (ring < 2 && !is_near(source, slot, ring == 0 ? Near::kRank : Near::kNode)) continue;
        const std::int64_t units = std::min(left[index(source)], room_[index(k)]);
        left[index(source)] -= units;
        room_[index(k)] -= units;
        sent_[index(source * hosts + k)] += units;
        const double tokens = static_cast<double>(units) * flow_.unit_tokens();
        if (is_near(source, slot, Near::kRank)) result.on_rank_tokens += tokens;
        if (is_near(source, slot, Near::kNode)) result.on_node_tokens += tokens;
      }
    }
  }
  if (hosts == 1) return;
  for (std::int32_t source = 0; source < sources_; ++source) {
    tables_[index(source)].set_row(flow_, expert,
                                   std::span(sent_).subspan(index(source * hosts), index(hosts)));
  }
}

NodeCount count_nodes(const Shape& shape, std::span<const std::int32_t> slots, std::int32_t top_k,
                      std::span<const std::int32_t> source_rank) {
  TRIMTAB_CHECK(top_k > 0 && slots.size() == source_rank.size() * index(top_k));
  std::vector<std::int64_t> seen(index(shape.nodes), -1);
  std::int64_t nodes = 0, remote = 0;
  for (std::size_t token = 0; token < source_rank.size(); ++token) {
    const std::int32_t home = shape.node_of_rank(source_rank[token]);
    for (std::size_t k = 0; k < index(top_k); ++k) {
      const std::int32_t node = shape.node_of_rank(shape.rank_of_slot(slots[token * index(top_k) + k]));
      if (seen[index(node)] == static_cast<std::int64_t>(token)) continue;
      seen[index(node)] = static_cast<std::int64_t>(token);
      ++nodes;
      remote += node != home ? 1 : 0;
    }
  }
  const auto tokens = static_cast<double>(std::max<std::size_t>(1, source_rank.size()));
  return {static_cast<double>(nodes) / tokens, static_cast<double>(remote) / tokens};
}

}  // namespace trimtab::experts
