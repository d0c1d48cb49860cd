#include "policy/experts/plan/repair.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "policy/experts/dispatch/share_flow.h"

namespace trimtab::experts {
namespace {

std::size_t index(std::int32_t value) { return static_cast<std::size_t>(value); }

// Changes that are solved for before the best so far is taken. Those of one expert and kind are much alike,
// so a few of each, the most hopeful, go in.
constexpr std::size_t kTrialsMax = 48, kExpertsMax = 12, kAlikeMax = 4;

// `expert` leaves its knot: by a copy in `slot`, or (from >= 0) by changing slots with what is there.
struct Change {
  std::int32_t expert = -1, slot = -1, from = -1;
  std::int64_t bound = 0;    // overload a copy that this can save, at most
  std::int64_t hope = 0;     // the same, with a look at what the place carries now
  std::int64_t carried = 0;  // by the slot: what must go elsewhere
  std::int64_t gain = 0;     // what it saves, solved
  std::int64_t copies() const { return from < 0 ? 1 : 2; }
};

bool more_hopeful(const Change& a, const Change& b) {
  if (a.hope != b.hope) return a.hope > b.hope;
  if (a.bound != b.bound) return a.bound > b.bound;
  if (a.carried != b.carried) return a.carried < b.carried;
  return a.expert != b.expert ? a.expert < b.expert : a.slot < b.slot;
}

}  // namespace

struct Repairer::Search {
  ShareFlow flow, trial;
  std::int64_t capacity = 0, overload = 0;
  // What the knots of the flow in force say: per expert, hosts that are not stuck and the knot if none; per
  // rank, the load that must stay on it or in knots; per knot (a rank's id), its overload.
  std::vector<std::int32_t> free_hosts, last_free, knot_of_expert;
  std::vector<std::int64_t> bound_load, knot_overload;
  std::vector<Change> changes;
  std::vector<std::int32_t> places, trapped;  // slots of free ranks; experts that might be let out
  std::vector<std::int64_t> clears;           // load that a free rank can take, by what it can push at once

  void look();
  std::int64_t room_elsewhere(std::int32_t slot) const;
  void list_changes(std::int64_t gain_min);
  void list_copies(std::int32_t expert, std::int64_t gain_min);
  void list_exchanges(std::int32_t expert, std::int64_t gain_min);
  void keep_few(std::size_t first);
  bool try_changes(std::int64_t gain_min, std::int64_t copies_max, Change& best, std::int64_t& trials);
  void improve(std::int64_t gain_min, std::int64_t copies_max, Repair& result);
  static void apply(ShareFlow& to, const Change& change);
  bool holds(std::int32_t rank, std::int32_t expert) const;
};

// Reads the knots that `drain` left in the flow.
void Repairer::Search::look() {
  const Shape& shape = flow.shape();
  const auto knots = flow.knots();
  free_hosts.assign(index(shape.experts), 0);
  knot_of_expert.assign(index(shape.experts), -1);
  bound_load.assign(index(shape.ranks), 0);
  knot_overload.assign(index(shape.ranks), 0);
  last_free.assign(index(shape.experts), -1);
  for (std::int32_t slot = 0; slot < shape.slots; ++slot) {
    const std::size_t expert = index(flow.map()[index(slot)]);
    const std::int32_t rank = shape.rank_of_slot(slot), knot = knots[index(rank)];
    if (knot >= 0) {
      knot_of_expert[expert] = knot;
    } else {
      ++free_hosts[expert];
      last_free[expert] = rank;
    }
  }
  for (std::int32_t expert = 0; expert < shape.experts; ++expert) {
    if (free_hosts[index(expert)] == 1) {
      bound_load[index(last_free[index(expert)])] += flow.expert_units()[index(expert)];
    }
  }
  for (std::int32_t rank = 0; rank < shape.ranks; ++rank) {
    const std::int64_t over = flow.rank_units()[index(rank)] - capacity;
    if (knots[index(rank)] >= 0) knot_overload[index(knots[index(rank)])] += over;
  }
}

// Of the other ranks with a copy of what the slot holds.
std::int64_t Repairer::Search::room_elsewhere(std::int32_t slot) const {
  std::int64_t room = 0;
  for (std::int32_t other = flow.next_slot(slot); other != slot; other = flow.next_slot(other)) {
    const std::int32_t rank = flow.shape().rank_of_slot(other);
    room += std::max<std::int64_t>(0, capacity - flow.rank_units()[index(rank)]);
  }
  return room;
}

bool Repairer::Search::holds(std::int32_t rank, std::int32_t expert) const {
  const std::int32_t width = flow.shape().slots_per_rank();
  const auto slots = flow.map().subspan(index(rank * width), index(width));
  return std::ranges::find(slots, expert) != slots.end();
}

// A copy outside can take what the expert carries, what its knot has too much, and what the rank can clear.
void Repairer::Search::list_copies(std::int32_t expert, std::int64_t gain_min) {
  const std::int64_t units = flow.expert_units()[index(expert)];
  const std::int64_t over = knot_overload[index(knot_of_expert[index(expert)])];
  for (const std::int32_t place : places) {
    const std::int32_t rank = flow.shape().rank_of_slot(place);
    const std::int32_t old = flow.map()[index(place)];
    if (flow.hosts(old) < 2) continue;
    // Without this copy its expert may be trapped as well.
    const std::int64_t lost = free_hosts[index(old)] == 1 ? flow.expert_units()[index(old)] : 0;
    const std::int64_t bound = std::min({units - lost, over, capacity - bound_load[index(rank)]});
    if (bound < gain_min) continue;
    changes.push_back({.expert = expert,
                       .slot = place,
                       .bound = bound,
                       .hope = std::min(bound, clears[index(rank)]),
                       .carried = flow.slot_units()[index(place)]});
  }
}

// Changing slots costs two copies: the expert goes where a lighter one, or one with other copies, was.
void Repairer::Search::list_exchanges(std::int32_t expert, std::int64_t gain_min) {
  const std::int64_t units = flow.expert_units()[index(expert)];
  const std::int64_t over = knot_overload[index(knot_of_expert[index(expert)])];
  const std::int32_t from = flow.first_slot(expert), home = flow.shape().rank_of_slot(from);
  for (const std::int32_t place : places) {
    const std::int32_t other = flow.map()[index(place)];
    if (!flow.is_host(place) || holds(home, other)) continue;
    const std::int64_t lost = free_hosts[index(other)] == 1 ? flow.expert_units()[index(other)] : 0;
    const std::size_t rank = index(flow.shape().rank_of_slot(place));
    // An expert with one copy brings all its load to the new rank.
    const std::int64_t brought = flow.hosts(expert) == 1 ? units + bound_load[rank] - lost - capacity : 0;
    const std::int64_t bound =
        std::min({units - lost, over - std::max<std::int64_t>(0, brought), capacity - bound_load[rank]}) / 2;
    if (bound < gain_min) continue;
    const std::int64_t carried = flow.slot_units()[index(place)];
    const std::int64_t room = clears[rank] + (flow.hosts(other) == 1 ? carried : 0);
    const std::int64_t excess = std::max<std::int64_t>(0, flow.slot_units()[index(from)] - room);
    changes.push_back({.expert = expert,
                       .slot = place,
                       .from = from,
                       .bound = bound,
                       .hope = bound - excess / 2,
                       .carried = carried});
  }
}

void Repairer::Search::list_changes(std::int64_t gain_min) {
  look();
  const Shape& shape = flow.shape();
  places.clear();
  clears.assign(index(shape.ranks), 0);
  for (std::int32_t rank = 0, slot = 0; rank < shape.ranks; ++rank) {
    std::int64_t& clear = clears[index(rank)];
    clear = capacity - flow.rank_units()[index(rank)];
    for (std::int32_t i = 0; i < shape.slots_per_rank(); ++i, ++slot) {
      if (flow.knots()[index(rank)] >= 0) continue;
      places.push_back(slot);
      clear += std::min(flow.slot_units()[index(slot)], room_elsewhere(slot));
    }
  }
  const auto worth = [&](std::int32_t expert) {
    return std::min(flow.expert_units()[index(expert)], knot_overload[index(knot_of_expert[index(expert)])]);
  };
  trapped.clear();
  for (std::int32_t expert = 0; expert < shape.experts; ++expert) {
    if (free_hosts[index(expert)] == 0 && worth(expert) >= gain_min) trapped.push_back(expert);
  }
  std::ranges::stable_sort(trapped, [&](std::int32_t a, std::int32_t b) {
    const std::int64_t wa = worth(a), wb = worth(b);
    return wa != wb ? wa > wb : flow.expert_units()[index(a)] > flow.expert_units()[index(b)];
  });
  if (trapped.size() > kExpertsMax) trapped.resize(kExpertsMax);
  changes.clear();
  for (const std::int32_t expert : trapped) {
    std::size_t first = changes.size();
    list_copies(expert, gain_min);
    keep_few(first);
    first = changes.size();
    list_exchanges(expert, gain_min);
    keep_few(first);
  }
}

// Of the changes from `first` on, which are one expert's and of one kind.
void Repairer::Search::keep_few(std::size_t first) {
  const auto begin = changes.begin() + static_cast<std::ptrdiff_t>(first);
  const std::size_t keep = std::min(kAlikeMax, changes.size() - first);
  std::partial_sort(begin, begin + static_cast<std::ptrdiff_t>(keep), changes.end(), more_hopeful);
  changes.resize(first + keep);
}

void Repairer::Search::apply(ShareFlow& to, const Change& change) {
  if (change.from < 0) {
    to.replace(change.slot, change.expert);
  } else {
    to.exchange(change.from, change.slot);
  }
}

// Solves changes, the most hopeful first, until none left can beat the best.
bool Repairer::Search::try_changes(std::int64_t gain_min, std::int64_t copies_max, Change& best,
                                   std::int64_t& trials) {
  const auto first = changes.begin();
  const auto end = first + static_cast<std::ptrdiff_t>(std::min(changes.size(), kTrialsMax));
  std::partial_sort(first, end, changes.end(), more_hopeful);
  best = {.gain = gain_min - 1};
  for (auto change = first; change != end; ++change) {
    if (change->bound <= best.gain || change->copies() > copies_max) continue;
    trial = flow;
    apply(trial, *change);
    change->gain = (overload - trial.drain(capacity)) / change->copies();
    ++trials;
    if (change->gain > best.gain) best = *change;
  }
  return best.expert >= 0;
}

// Leaves the overloads in units.
void Repairer::Search::improve(std::int64_t gain_min, std::int64_t copies_max, Repair& result) {
  overload = flow.drain(capacity);
  result.overload_before = static_cast<double>(overload);
  while (overload >= gain_min && result.received < copies_max) {
    list_changes(gain_min);
    Change best;
    if (!try_changes(gain_min, copies_max - result.received, best, result.trials)) break;
    apply(flow, best);
    result.received += best.copies();
    overload = flow.drain(capacity);
  }
  result.overload = static_cast<double>(overload);
}

Repairer::Repairer(const RepairOptions& options) : options_(options), search_(std::make_unique<Search>()) {}
Repairer::~Repairer() = default;
Repairer::Repairer(Repairer&&) noexcept = default;
Repairer& Repairer::operator=(Repairer&&) noexcept = default;

base::Result<Repair> Repairer::repair(const Shape& shape, std::span<const double> tokens,
                                      std::span<const std::int32_t> current) {
  TRIMTAB_TRY(check(shape, current, /*distinct=*/true));
  if (tokens.size() != index(shape.experts)) {
    return base::fail(base::Code::kInvalidArgument,
                      fmt::format("loads of {} experts for a layer of {}", tokens.size(), shape.experts),
                      "policy/experts");
  }
  Search& search = *search_;
  ShareFlow& flow = search.flow;
  if (!(options_.tolerance >= 0) || !(options_.gain_min >= 0)) {
    return base::fail(base::Code::kInvalidArgument,
                      fmt::format("repair with tolerance {} and least gain {}: neither may be negative",
                                  options_.tolerance, options_.gain_min),
                      "policy/experts");
  }
  flow.reset(shape, current);
  if (!flow.load(tokens)) return bad_loads(tokens);
  flow.even();
  flow.sweep();
  Repair result{.map = SlotMap(current.begin(), current.end())};
  if (flow.total() == 0) return result;
  const double mean = static_cast<double>(flow.total()) / shape.ranks;
  result.value = result.value_before = static_cast<double>(flow.level()) / mean;
  // Rounded up, so that a tolerance of 0 asks for what whole units can reach.
  search.capacity = static_cast<std::int64_t>(mean * (1 + options_.tolerance)) + 1;
  if (flow.peak() <= search.capacity) return result;
  search.improve(static_cast<std::int64_t>(mean * options_.gain_min) + 1, options_.moves_max, result);
  result.overload_before /= mean;
  result.overload /= mean;
  const double value = static_cast<double>(flow.level()) / mean;
  if (value > result.value_before) {  // less overload, but a higher peak
    result.overload = result.overload_before;
    result.received = 0;
    return result;
  }
  result.value = value;
  result.map.assign(flow.map().begin(), flow.map().end());
  return result;
}

}  // namespace trimtab::experts
