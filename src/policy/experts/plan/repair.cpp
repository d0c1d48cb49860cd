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

/// A slot of a free rank where an expert could come, and what all experts ask of it alike.
struct FreeSlot {
  std::int32_t slot = -1, rank = -1, other = -1;  // other: the expert that is there
  bool copied = false;                            // it has copies elsewhere
  bool host = false;
  std::int64_t carried = 0;
  std::int64_t lost = 0;    // load that may be trapped when the other leaves
  std::int64_t spare = 0;   // of the rank: capacity less what must stay there or in knots
  std::int64_t clears = 0;  // of the rank: load that it can take, by what it can push at once
};

struct Repairer::Search {
  ShareFlow flow, trial;
  std::int64_t capacity = 0, overload = 0;
  // What the knots of the flow in force say: per expert, hosts that are not stuck and the knot if none; per
  // rank, the load that must stay on it or in knots; per knot (a rank's id), its overload.
  std::vector<std::int32_t> free_hosts, last_free, knot_of_expert;
  std::vector<std::int64_t> bound_load, knot_overload;
  std::vector<Change> changes;
  std::vector<FreeSlot> places;       // slots of free ranks
  std::vector<std::int32_t> trapped;  // experts that might be let out
  std::vector<std::int64_t> rooms;    // of each rank, below the capacity
  std::vector<bool> at_home;          // experts on the rank of the one that would leave it

  void look();
  std::int64_t room_elsewhere(std::int32_t slot) const;
  void list_places();
  void list_changes(std::int64_t gain_min);
  void list_copies(std::int32_t expert, std::int64_t gain_min);
  void list_exchanges(std::int32_t expert, std::int64_t gain_min);
  void offer(std::size_t first, const Change& change);
  bool try_changes(std::int64_t gain_min, std::int64_t copies_max, Change& best, std::int64_t& trials);
  void improve(std::int64_t gain_min, std::int64_t copies_max, Repair& result);
  static void apply(ShareFlow& to, const Change& change);
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
  for (std::int32_t other = flow.next_slot(slot); other != slot; other = flow.next_slot(other))
    room += rooms[index(flow.shape().rank_of_slot(other))];
  return room;
}

// A copy outside can take what the expert carries, what its knot has too much, and what the rank can clear.
void Repairer::Search::list_copies(std::int32_t expert, std::int64_t gain_min) {
  const std::int64_t units = flow.expert_units()[index(expert)];
  const std::int64_t over = knot_overload[index(knot_of_expert[index(expert)])];
  const std::size_t first = changes.size();
  for (const FreeSlot& place : places) {
    if (!place.copied) continue;
    // Without this copy its expert may be trapped as well.
    const std::int64_t bound = std::min({units - place.lost, over, place.spare});
    if (bound < gain_min) continue;
    offer(first, {.expert = expert,
                  .slot = place.slot,
                  .bound = bound,
                  .hope = std::min(bound, place.clears),
                  .carried = place.carried});
  }
}

// Changing slots costs two copies: the expert goes where a lighter one, or one with other copies, was.
void Repairer::Search::list_exchanges(std::int32_t expert, std::int64_t gain_min) {
  const std::int64_t units = flow.expert_units()[index(expert)];
  const std::int64_t over = knot_overload[index(knot_of_expert[index(expert)])];
  const std::int32_t from = flow.first_slot(expert), width = flow.shape().slots_per_rank();
  const auto home = flow.map().subspan(index(flow.shape().rank_of_slot(from) * width), index(width));
  const std::int64_t leaves = flow.slot_units()[index(from)];
  const bool only = flow.hosts(expert) == 1;
  const std::size_t first = changes.size();
  for (const std::int32_t other : home) at_home[index(other)] = true;
  for (const FreeSlot& place : places) {
    if (!place.host || at_home[index(place.other)]) continue;
    // An expert with one copy brings all its load to the new rank.
    const std::int64_t brought = only ? units - place.lost - place.spare : 0;
    const std::int64_t bound =
        std::min({units - place.lost, over - std::max<std::int64_t>(0, brought), place.spare}) / 2;
    if (bound < gain_min) continue;
    const std::int64_t room = place.clears + (place.copied ? 0 : place.carried);
    const std::int64_t excess = std::max<std::int64_t>(0, leaves - room);
    offer(first, {.expert = expert,
                  .slot = place.slot,
                  .from = from,
                  .bound = bound,
                  .hope = bound - excess / 2,
                  .carried = place.carried});
  }
  for (const std::int32_t other : home) at_home[index(other)] = false;
}

// Slots of the ranks outside all knots.
void Repairer::Search::list_places() {
  const Shape& shape = flow.shape();
  places.clear();
  rooms.assign(index(shape.ranks), 0);
  for (std::int32_t rank = 0; rank < shape.ranks; ++rank)
    rooms[index(rank)] = std::max<std::int64_t>(0, capacity - flow.rank_units()[index(rank)]);
  for (std::int32_t rank = 0, slot = 0; rank < shape.ranks; ++rank) {
    if (flow.knots()[index(rank)] >= 0) {
      slot += shape.slots_per_rank();
      continue;
    }
    const std::size_t first = places.size();
    std::int64_t clears = capacity - flow.rank_units()[index(rank)];
    for (std::int32_t i = 0; i < shape.slots_per_rank(); ++i, ++slot) {
      FreeSlot place{.slot = slot, .rank = rank, .other = flow.map()[index(slot)]};
      place.copied = flow.hosts(place.other) > 1;
      place.host = flow.is_host(slot);
      place.carried = flow.slot_units()[index(slot)];
      if (free_hosts[index(place.other)] == 1) place.lost = flow.expert_units()[index(place.other)];
      place.spare = capacity - bound_load[index(rank)];
      clears += std::min(place.carried, room_elsewhere(slot));
      places.push_back(place);
    }
    for (std::size_t i = first; i < places.size(); ++i) places[i].clears = clears;
  }
}

void Repairer::Search::list_changes(std::int64_t gain_min) {
  look();
  list_places();
  const Shape& shape = flow.shape();
  at_home.assign(index(shape.experts), false);
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
    list_copies(expert, gain_min);
    list_exchanges(expert, gain_min);
  }
}

// Of the changes from `first` on, which are one expert's and of one kind, the most hopeful few are kept, in
// their order.
void Repairer::Search::offer(std::size_t first, const Change& change) {
  if (changes.size() - first == kAlikeMax) {
    if (!more_hopeful(change, changes.back())) return;
    changes.pop_back();
  }
  changes.push_back(change);
  for (std::size_t i = changes.size() - 1; i > first && more_hopeful(changes[i], changes[i - 1]); --i)
    std::swap(changes[i], changes[i - 1]);
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
