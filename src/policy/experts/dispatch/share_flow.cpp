#include "policy/experts/dispatch/share_flow.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "base/check.h"

namespace trimtab::experts {
namespace {

// Bits of the whole layer's load: below the 52 of a double's fraction, so that adding 2^52 rounds a load to
// whole units, and far enough up that one unit is nothing.
constexpr int kTotalBits = 51;
constexpr double kRounder = 0x1.0p52;
// Sums are taken in lanes that are added in one order: alike whatever the compiler's vectors.
constexpr std::size_t kLanes = 8;

std::size_t index(std::int32_t value) { return static_cast<std::size_t>(value); }

// Sum of the loads, or NaN if one is not legal.
template <class T>
double legal_sum(std::span<const T> tokens) {
  std::array<double, kLanes> lanes{};
  std::array<bool, kLanes> legal;
  legal.fill(true);
  std::size_t i = 0;
  for (; i + kLanes <= tokens.size(); i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const auto value = static_cast<double>(tokens[i + lane]);
      lanes[lane] += value;
      legal[lane] &= value >= 0;  // false for NaN
    }
  }
  for (std::size_t lane = 0; i < tokens.size(); ++i, ++lane) {
    const auto value = static_cast<double>(tokens[i]);
    lanes[lane] += value;
    legal[lane] &= value >= 0;
  }
  const double sum =
      ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
  const bool all = std::ranges::all_of(legal, [](bool b) { return b; });
  return all && sum <= std::numeric_limits<double>::max() ? sum : std::numeric_limits<double>::quiet_NaN();
}

template <class T>
base::Error error_of(std::span<const T> tokens) {
  std::string message = "the loads of all experts together overflow: divide them";
  for (std::size_t e = 0; e < tokens.size(); ++e) {
    const auto value = static_cast<double>(tokens[e]);
    if (std::isfinite(value) && value >= 0) continue;
    message = fmt::format("expert {} has a load of {}: loads are finite and not negative", e, tokens[e]);
    break;
  }
  return {base::Code::kInvalidArgument, std::move(message), "policy/experts"};
}

}  // namespace

tl::unexpected<base::Error> bad_loads(std::span<const double> tokens) {
  return tl::unexpected(error_of(tokens));
}
tl::unexpected<base::Error> bad_loads(std::span<const std::int64_t> tokens) {
  return tl::unexpected(error_of(tokens));
}
tl::unexpected<base::Error> bad_loads(std::span<const std::int32_t> tokens) {
  return tl::unexpected(error_of(tokens));
}

void ShareFlow::reset(const Shape& shape, std::span<const std::int32_t> map) {
  TRIMTAB_CHECK(map.size() == index(shape.slots));
  shape_ = shape;
  changed_ = false;
  map_.assign(map.begin(), map.end());
  const std::size_t slots = map.size(), experts = index(shape.experts), ranks = index(shape.ranks);
  hosts_.assign(experts, 0);
  first_slot_.assign(experts, -1);
  next_slot_.resize(slots);
  rank_of_slot_.resize(slots);
  std::vector<std::int32_t> last(experts, -1);
  for (std::int32_t slot = 0; slot < shape.slots; ++slot) {
    const std::size_t expert = index(map[index(slot)]);
    rank_of_slot_[index(slot)] = shape.rank_of_slot(slot);
    next_slot_[index(slot)] = slot;
    const std::int32_t before = last[expert];
    if (before >= 0 && rank_of_slot_[index(before)] == rank_of_slot_[index(slot)]) continue;
    if (before < 0) {
      first_slot_[expert] = slot;
    } else {
      next_slot_[index(before)] = slot;
      next_slot_[index(slot)] = first_slot_[expert];
    }
    last[expert] = slot;
    ++hosts_[expert];
  }
  replicated_.clear();
  for (std::int32_t expert = 0; expert < shape.experts; ++expert) {
    if (hosts_[index(expert)] > 1) replicated_.push_back(expert);
  }
  replicated_.reserve(experts);
  links_.assign(slots, -1);
  link_count_.assign(ranks, 0);
  fixed_experts_.clear();
  fixed_experts_.reserve(experts);
  fixed_first_.assign(1, 0);
  for (std::int32_t slot = 0; slot < shape.slots; ++slot) {
    const std::int32_t expert = map[index(slot)];
    if (next_slot_[index(slot)] != slot) {
      add_link(slot);
    } else if (first_slot_[index(expert)] == slot) {
      fixed_experts_.push_back(expert);
    }
    if ((slot + 1) % shape.slots_per_rank() == 0) {
      fixed_first_.push_back(static_cast<std::int32_t>(fixed_experts_.size()));
    }
  }
  rank_units_.assign(ranks, 0);
  slot_units_.assign(slots, 0);
  expert_units_.assign(experts, 0);
  queue_.assign(ranks, 0);
  left_.assign(ranks, -1);
  entered_.assign(ranks, -1);
  rank_stamp_.assign(ranks, 0);
  expert_stamp_.assign(experts, 0);
  stamp_ = 0;
  knots_.assign(ranks, -1);
  touched_.clear();
  touched_.reserve(ranks);
  tight_.clear();
  tight_.reserve(ranks);
  bases_.resize(ranks);
}

// Unless it is one already, from a time when its expert had several hosts.
void ShareFlow::make_link(std::int32_t slot) {
  const std::int32_t rank = rank_of_slot_[index(slot)], base = rank * shape_.slots_per_rank();
  const auto links = std::span(links_).subspan(index(base), index(link_count_[index(rank)]));
  if (std::ranges::find(links, slot) == links.end()) add_link(slot);
}

void ShareFlow::add_link(std::int32_t slot) {
  const std::int32_t rank = rank_of_slot_[index(slot)];
  links_[index(rank * shape_.slots_per_rank() + link_count_[index(rank)]++)] = slot;
}

bool ShareFlow::load(std::span<const double> tokens) { return load_any(tokens); }
bool ShareFlow::load(std::span<const std::int64_t> tokens) { return load_any(tokens); }
bool ShareFlow::load(std::span<const std::int32_t> tokens) { return load_any(tokens); }

template <class T>
bool ShareFlow::load_any(std::span<const T> tokens) {
  TRIMTAB_CHECK(tokens.size() == expert_units_.size() && !changed_);
  const double sum = legal_sum(tokens);
  if (!(sum >= 0)) return false;
  // Below 2^-900 a load is nothing: its unit would not be a number.
  const int exponent = sum > 0x1.0p-900 ? std::ilogb(sum) + 1 : -900;
  const double scale = std::ldexp(1.0, kTotalBits - exponent);
  unit_tokens_ = std::ldexp(1.0, exponent - kTotalBits);
  const auto rounder = std::bit_cast<std::int64_t>(kRounder);
  for (std::size_t e = 0; e < tokens.size(); ++e) {
    expert_units_[e] =
        std::bit_cast<std::int64_t>(static_cast<double>(tokens[e]) * scale + kRounder) - rounder;
  }
  total_ = 0;
  for (const std::int64_t units : expert_units_) total_ += units;
  for (std::size_t rank = 0; rank < rank_units_.size(); ++rank) {
    std::int64_t units = 0;
    for (std::int32_t i = fixed_first_[rank]; i < fixed_first_[rank + 1]; ++i) {
      units += expert_units_[index(fixed_experts_[index(i)])];
    }
    rank_units_[rank] = units;
  }
  for (const std::int32_t expert : replicated_) {
    std::int32_t slot = first_slot_[index(expert)];
    for (std::int32_t i = 0; i < hosts_[index(expert)]; ++i, slot = next_slot_[index(slot)]) {
      slot_units_[index(slot)] = 0;
    }
  }
  for (const std::int32_t expert : fixed_experts_) {
    slot_units_[index(first_slot_[index(expert)])] = expert_units_[index(expert)];
  }
  tight_.clear();
  bound_ = (total_ + shape_.ranks - 1) / shape_.ranks;
  return true;
}

std::int64_t ShareFlow::peak() const { return std::ranges::max(rank_units_); }

void ShareFlow::even() {
  for (const std::int32_t expert : replicated_) pour_even(expert);
}

void ShareFlow::pour_even(std::int32_t expert) {
  const std::int64_t hosts = hosts_[index(expert)];
  const std::int64_t part = expert_units_[index(expert)] / hosts;
  std::int64_t left = expert_units_[index(expert)] - part * hosts;
  std::int32_t slot = first_slot_[index(expert)];
  for (std::int64_t i = 0; i < hosts; ++i, slot = next_slot_[index(slot)]) {
    const std::int64_t units = part + (i < left ? 1 : 0);
    rank_units_[index(rank_of_slot_[index(slot)])] += units - slot_units_[index(slot)];
    slot_units_[index(slot)] = units;
  }
}

void ShareFlow::place(std::span<const std::int64_t> slot_units) {
  TRIMTAB_CHECK(slot_units.size() == slot_units_.size());
  for (const std::int32_t expert : replicated_) {
    std::int64_t sum = 0;
    std::int32_t slot = first_slot_[index(expert)];
    for (std::int32_t i = 0; i < hosts_[index(expert)]; ++i, slot = next_slot_[index(slot)]) {
      const std::int64_t units = slot_units[index(slot)];
      TRIMTAB_CHECK(units >= 0);
      sum += units;
      rank_units_[index(rank_of_slot_[index(slot)])] += units - slot_units_[index(slot)];
      slot_units_[index(slot)] = units;
    }
    TRIMTAB_CHECK(sum == expert_units_[index(expert)]);
  }
}

void ShareFlow::sweep() {
  for (const std::int32_t expert : replicated_) pour(expert);
}

void ShareFlow::pour(std::int32_t expert) {
  const std::int32_t first = first_slot_[index(expert)];
  const std::int64_t units = expert_units_[index(expert)];
  if (hosts_[index(expert)] != 2) return pour_many(first, units);
  const std::int32_t second = next_slot_[index(first)];
  std::int64_t& load = rank_units_[index(rank_of_slot_[index(first)])];
  std::int64_t& other = rank_units_[index(rank_of_slot_[index(second)])];
  load -= slot_units_[index(first)];
  other -= slot_units_[index(second)];
  const std::int64_t part = std::clamp((other - load + units) >> 1, std::int64_t{0}, units);
  slot_units_[index(first)] = part;
  slot_units_[index(second)] = units - part;
  load += part;
  other += units - part;
}

void ShareFlow::pour_many(std::int32_t first, std::int64_t units) {
  std::size_t count = 0;
  std::int32_t slot = first;
  do {
    std::int64_t& load = rank_units_[index(rank_of_slot_[index(slot)])];
    load -= slot_units_[index(slot)];
    bases_[count++] = {load, slot};
    slot = next_slot_[index(slot)];
  } while (slot != first);
  std::sort(bases_.begin(), bases_.begin() + static_cast<std::ptrdiff_t>(count));
  // The lowest `wet` ranks rise to one level, as long as that is above the next one's base.
  std::size_t wet = 0;
  std::int64_t water = units;
  do {
    water += bases_[wet++].first;
  } while (wet < count && static_cast<__int128>(bases_[wet].first) * static_cast<__int128>(wet) < water);
  const auto ranks = static_cast<std::int64_t>(wet);
  const std::int64_t level = (water >= 0 ? water : water - ranks + 1) / ranks;
  std::int64_t left = water - level * ranks;
  for (std::size_t i = 0; i < count; ++i) {
    std::int64_t part = 0;
    if (i < wet) {
      part = level + (left > 0 ? 1 : 0) - bases_[i].first;
      --left;
    }
    slot_units_[index(bases_[i].second)] = part;
    rank_units_[index(rank_of_slot_[index(bases_[i].second)])] += part;
  }
}

void ShareFlow::replace(std::int32_t slot, std::int32_t expert) {
  const std::int32_t old = map_[index(slot)];
  const std::int32_t rank = rank_of_slot_[index(slot)];
  TRIMTAB_CHECK(hosts_[index(old)] > 1 && old != expert);
  changed_ = true;
  next_slot_[index(slot_before(slot))] = next_slot(slot);
  if (first_slot_[index(old)] == slot) first_slot_[index(old)] = next_slot_[index(slot)];
  --hosts_[index(old)];
  rank_units_[index(rank)] -= slot_units_[index(slot)];
  slot_units_[index(slot)] = 0;
  pour(old);

  // The slot stays a link of its rank: its expert had several hosts, and the new one has now.
  map_[index(slot)] = expert;
  const std::int32_t first = first_slot_[index(expert)];
  if (hosts_[index(expert)] == 1) {
    make_link(first);
    if (std::ranges::find(replicated_, expert) == replicated_.end()) replicated_.push_back(expert);
  }
  next_slot_[index(slot)] = next_slot_[index(first)];
  next_slot_[index(first)] = slot;
  ++hosts_[index(expert)];
}

std::int32_t ShareFlow::slot_before(std::int32_t slot) const {
  std::int32_t before = slot;
  while (next_slot(before) != slot) before = next_slot(before);
  return before;
}

void ShareFlow::exchange(std::int32_t slot, std::int32_t other) {
  const std::int32_t expert = map_[index(slot)], other_expert = map_[index(other)];
  TRIMTAB_CHECK(expert != other_expert && is_host(slot) && is_host(other));
  changed_ = true;
  const std::int32_t before = slot_before(slot), after = next_slot(slot);
  const std::int32_t other_before = slot_before(other), other_after = next_slot(other);
  next_slot_[index(other)] = after == slot ? other : after;
  if (before != slot) next_slot_[index(before)] = other;
  next_slot_[index(slot)] = other_after == other ? slot : other_after;
  if (other_before != other) next_slot_[index(other_before)] = slot;
  if (first_slot(expert) == slot) first_slot_[index(expert)] = other;
  if (first_slot(other_expert) == other) first_slot_[index(other_expert)] = slot;
  const std::int64_t change = slot_units_[index(other)] - slot_units_[index(slot)];
  rank_units_[index(rank_of_slot_[index(slot)])] += change;
  rank_units_[index(rank_of_slot_[index(other)])] -= change;
  std::swap(slot_units_[index(slot)], slot_units_[index(other)]);
  std::swap(map_[index(slot)], map_[index(other)]);
  if (hosts(expert) > 1) make_link(other);
  if (hosts(other_expert) > 1) make_link(slot);
}

}  // namespace trimtab::experts
