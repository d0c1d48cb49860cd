#include "policy/experts/plan/repair.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "policy/experts/dispatch/share_flow.h"

namespace trimtab::experts {
namespace {

std::size_t index(std::int32_t value) { return static_cast<std::size_t>(value); }

// Changes that are solved for before the best so far is taken, and how many experts and places are paired for
// that: the rest have a smaller bound.
constexpr std::int32_t kTrialsMax = 24;
constexpr std::size_t kExpertsMax = 16;

// `expert` leaves its knot: by a copy in `slot`, or (from >= 0) by changing slots with what is there.
struct Change {
  std::int32_t expert = -1, slot = -1, from = -1;
  std::int64_t bound = 0;  // overload a copy that this can save, at most
  std::int64_t hope = 0;   // the same, with a look at what the place carries now
  std::int64_t gain = 0;   // what it saves, solved
  std::int64_t copies() const { return from < 0 ? 1 : 2; }
};

}  // namespace

struct Repairer::Search {
  ShareFlow flow, trial;
  std::int64_t capacity = 0, overload = 0, trials = 0;
  // What the knots of the flow in force say: per expert, hosts that are not stuck and the knot if none; per
  // rank, the load that must stay on it or in knots; per knot (a rank's id), its overload.
  std::vector<std::int32_t> free_hosts, last_free, knot_of_expert;
  std::vector<std::int64_t> bound_load, knot_overload;
  std::vector<Change> changes;
  struct Place {
    std::int32_t slot;
    std::int64_t room;
  };
  std::vector<Place> places;
  std::vector<std::int32_t> trapped;

  void look();
  void list_changes(std::int64_t gain_min);
  void list_copies(std::int32_t expert, std::int64_t gain_min);
  void list_exchanges(std::int32_t expert, std::int64_t gain_min);
  bool try_changes(std::int64_t gain_min, std::int64_t copies_max, Change& best);
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

bool Repairer::Search::holds(std::int32_t rank, std::int32_t expert) const {
  const std::int32_t width = flow.shape().slots_per_rank();
  const auto slots = flow.map().subspan(index(rank * width), index(width));
  return std::ranges::find(slots, expert) != slots.end();
}

// A copy outside can take what the expert carries, what its knot has too much, and what the rank can clear.
void Repairer::Search::list_copies(std::int32_t expert, std::int64_t gain_min) {
  const std::int64_t units = flow.expert_units()[index(expert)];
  const std::int64_t over = knot_overload[index(knot_of_expert[index(expert)])];
  for (const Place& place : places) {
    const std::int32_t rank = flow.shape().rank_of_slot(place.slot);
    const std::int32_t old = flow.map()[index(place.slot)];
    if (flow.hosts(old) < 2) continue;
    // Without this copy its expert may be trapped as well.
    const std::int64_t lost = free_hosts[index(old)] == 1 ? flow.expert_units()[index(old)] : 0;
    const std::int64_t bound = std::min({units - lost, over, capacity - bound_load[index(rank)]});
    if (bound < gain_min) continue;
    const std::int64_t carried = flow.slot_units()[index(place.slot)];
    changes.push_back({.expert = expert,
                       .slot = place.slot,
                       .bound = bound,
                       .hope = std::min(bound, place.room + carried) - carried / 4});
  }
}

// Changing slots costs two copies: the expert goes where a lighter one, or one with other copies, was.
void Repairer::Search::list_exchanges(std::int32_t expert, std::int64_t gain_min) {
  const std::int64_t units = flow.expert_units()[index(expert)];
  const std::int64_t over = knot_overload[index(knot_of_expert[index(expert)])];
  const std::int32_t from = flow.first_slot(expert), home = flow.shape().rank_of_slot(from);
  for (const Place& place : places) {
    const std::int32_t other = flow.map()[index(place.slot)];
    if (!flow.is_host(place.slot) || holds(home, other)) continue;
    const std::int64_t lost = free_hosts[index(other)] == 1 ? flow.expert_units()[index(other)] : 0;
    const std::int64_t bound = std::min({units - lost, over}) / 2;
    if (bound < gain_min) continue;
    const std::int64_t room = place.room + flow.slot_units()[index(place.slot)] - units;
    changes.push_back({.expert = expert,
                       .slot = place.slot,
                       .from = from,
                       .bound = bound,
                       .hope = bound + std::min<std::int64_t>(0, room) / 2});
  }
}

void Repairer::Search::list_changes(std::int64_t gain_min) {
  look();
  const Shape& shape = flow.shape();
  places.clear();
  for (std::int32_t slot = 0; slot < shape.slots; ++slot) {
    const std::int32_t rank = shape.rank_of_slot(slot);
    const std::int64_t room = capacity - flow.rank_units()[index(rank)];
    if (flow.knots()[index(rank)] < 0) places.push_back({slot, room});
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
    list_copies(expert, gain_min);
    list_exchanges(expert, gain_min);
  }
}

void Repairer::Search::apply(ShareFlow& to, const Change& change) {
  if (change.from < 0) {
    to.replace(change.slot, change.expert);
  } else {
    to.exchange(change.from, change.slot);
  }
}

// Solves changes, the most hopeful first, until none left can beat the best.
bool Repairer::Search::try_changes(std::int64_t gain_min, std::int64_t copies_max, Change& best) {
  const auto better = [](const Change& a, const Change& b) {
    if (a.hope != b.hope) return a.hope > b.hope;
    if (a.bound != b.bound) return a.bound > b.bound;
    return a.expert != b.expert ? a.expert < b.expert : a.slot < b.slot;
  };
  const auto first = changes.begin();
  const auto end = first + std::min<std::ptrdiff_t>(std::ssize(changes), kTrialsMax);
  std::partial_sort(first, end, changes.end(), better);
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
  flow.reset(shape, current);
  if (!flow.load(tokens)) return bad_loads(tokens);
  flow.even();
  flow.sweep();
  flow.level();
  const double mean = static_cast<double>(flow.total()) / shape.ranks;
  const auto value = [&] { return mean > 0 ? static_cast<double>(flow.peak()) / mean : 1.0; };
  Repair result{.map = SlotMap(current.begin(), current.end()), .value_before = value(), .value = value()};
  const bool wide = shape.ranks >= 32;
  const double tolerance = options_.tolerance >= 0 ? options_.tolerance : wide ? 0.01 : 0.005;
  const double gain = options_.gain_min >= 0 ? options_.gain_min : wide ? 0.002 : 0.001;
  if (result.value <= 1 + tolerance) return result;
  search.capacity = static_cast<std::int64_t>(mean * (1 + tolerance)) + 1;
  search.trials = 0;
  const std::int64_t gain_min = std::max<std::int64_t>(1, static_cast<std::int64_t>(mean * gain));
  while (result.received < options_.moves_max) {
    search.overload = flow.drain(search.capacity);
    if (search.overload < gain_min) break;
    search.list_changes(gain_min);
    Change best;
    if (!search.try_changes(gain_min, options_.moves_max - result.received, best)) break;
    Search::apply(flow, best);
    result.received += best.copies();
  }
  flow.level();
  result.value = value();
  result.map.assign(flow.map().begin(), flow.map().end());
  result.trials = search.trials;
  return result;
}

}  // namespace trimtab::experts
