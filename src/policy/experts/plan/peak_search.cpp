#include "policy/experts/plan/peak_search.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace trimtab::experts {
namespace {

constexpr std::int32_t kManyRanks = 32;
constexpr double kLeastScore = 1e-7;  // of the mean rank: below it rounding would decide

std::size_t at(std::int32_t value) { return static_cast<std::size_t>(value); }

}  // namespace

double PeakSearch::power(double x) const {
  for (std::int32_t i = 0; i < doublings_; ++i) x *= x;
  return x;
}

double PeakSearch::root(double x) const {
  for (std::int32_t i = 0; i < doublings_; ++i) x = std::sqrt(x);
  return x;
}

void PeakSearch::start(std::span<const float> loads, std::span<const std::int32_t> before) {
  copies_ = copies_of(shape_, map_);
  loads_.assign(loads.begin(), loads.begin() + shape_.experts);
  double total = 0;
  for (const double load : loads_) total += load;
  for (double& load : loads_) load = total > 0 ? load * shape_.ranks / total : 0;
  changed_.assign(at(shape_.ranks), 0);
  any_changed_ = false;
  held_.assign(at(shape_.ranks) * at(shape_.experts), 0);
  had_ = held_;
  ranks_of_.resize(at(shape_.experts));
  for (auto& ranks : ranks_of_) ranks.clear();
  for (std::int32_t slot = 0; slot < shape_.slots; ++slot) {
    const std::int32_t rank = shape_.rank_of_slot(slot), expert = map_[at(slot)];
    held_[cell(rank, expert)] = 1;
    had_[cell(rank, before[at(slot)])] = 1;
    if (before[at(slot)] != expert) changed_[at(rank)] = 1, any_changed_ = true;
    ranks_of_[at(expert)].push_back(rank);
  }
  measure();
}

/// Levels afresh from the map: rounding does not add up, and it is cheap beside the search.
void PeakSearch::measure() {
  share_.resize(loads_.size());
  next_share_.resize(loads_.size());
  for (std::size_t expert = 0; expert < loads_.size(); ++expert) {
    share_[expert] = loads_[expert] / copies_[expert];
    next_share_[expert] = loads_[expert] / (copies_[expert] + 1);
  }
  slot_load_.resize(map_.size());
  level_.assign(at(shape_.ranks), 0.0);
  power_.resize(level_.size());
  spare_.clear();
  for (std::int32_t slot = 0; slot < shape_.slots; ++slot) {
    const std::int32_t expert = map_[at(slot)];
    level_[at(shape_.rank_of_slot(slot))] += share(expert);
    slot_load_[at(slot)] = static_cast<float>(share(expert));
    if (copies_[at(expert)] > 1) spare_.push_back(slot);
  }
  sum_ = 0;
  for (std::size_t rank = 0; rank < level_.size(); ++rank) {
    power_[rank] = power(level_[rank]);
    sum_ += power_[rank];
  }
  peak_ = root(sum_);
}

/// What each expert's next copy would relieve, and losing one would burden, on the ranks that hold it.
void PeakSearch::prepare() {
  relief_.assign(loads_.size(), 0.0);
  burden_.assign(loads_.size(), 0.0);
  for (std::int32_t expert = 0; expert < shape_.experts; ++expert) {
    const double more = next_share_[at(expert)] - share(expert);
    for (const std::int32_t rank : ranks_of_[at(expert)])
      relief_[at(expert)] += power(level_[at(rank)] + more) - power_[at(rank)];
    if (copies_[at(expert)] < 2) continue;
    const double less = loads_[at(expert)] / (copies_[at(expert)] - 1) - share(expert);
    for (const std::int32_t rank : ranks_of_[at(expert)])
      burden_[at(expert)] += power(level_[at(rank)] + less) - power_[at(rank)];
  }
  slot_room_.resize(map_.size());
  slot_sum_.resize(map_.size());
  for (const std::int32_t slot : spare_) {
    const std::int32_t gone = map_[at(slot)];
    const double level = level_[at(shape_.rank_of_slot(slot))];
    const double less = loads_[at(gone)] / (copies_[at(gone)] - 1) - share(gone);
    slot_room_[at(slot)] = level - share(gone);
    slot_sum_[at(slot)] = sum_ + burden_[at(gone)] - power(level + less);
  }
}

void PeakSearch::set_limits() {
  for (std::int32_t received = -2; received <= 2; ++received) {
    const double goal = peak_ - price_ * received - std::max(best_.score, kLeastScore);
    limit_[received + 2] = received <= moves_left_ && goal > 0 ? power(goal) : 0.0;
  }
}

void PeakSearch::offer(double sum_after, std::int32_t received, Change change) {
  if (!(sum_after < limit_[received + 2])) return;
  change.received = received;
  change.score = peak_ - root(sum_after) - price_ * received;
  if (change.score <= best_.score) return;
  best_ = change;
  set_limits();
}

void PeakSearch::look_pair(std::int32_t hot, std::int32_t cool) {
  const double half = (level_[at(hot)] - level_[at(cool)]) / 2;
  const double middle = level_[at(hot)] - half;
  const double rest = sum_ - power_[at(hot)] - power_[at(cool)];
  // Ranks that hold what they held before can undo nothing: both copies would be received.
  const std::int32_t undone = (changed_[at(hot)] != 0 ? 2 : 0) + (changed_[at(cool)] != 0 ? 2 : 0);
  if (rest + 2 * power(middle) >= limit_[4 - undone]) return;
  // What an exchange makes of the two ranks is symmetric about their middle: at each number of copies
  // received the exchange that comes nearest to it is best.
  const auto wanted = static_cast<float>(half);
  float nearest[5];
  std::int32_t slot_of[5], partner_of[5];
  std::fill_n(nearest, 5, wanted);
  std::fill_n(slot_of, 5, -1);
  float farthest = wanted;
  const std::int32_t width = shape_.slots_per_rank(), first = cool * width;
  for (std::int32_t slot = hot * width; slot < (hot + 1) * width; ++slot) {
    const std::int32_t a = map_[at(slot)];
    if (held_[cell(cool, a)] != 0) continue;
    const float load = slot_load_[at(slot)] - wanted;
    const std::int32_t kind_of_a = price_of(cool, a) - price_of(hot, a) + 2;
    for (std::int32_t partner = first; partner < first + width; ++partner) {
      const float miss = std::abs(load - slot_load_[at(partner)]);
      if (!(miss < farthest)) continue;
      const std::int32_t b = map_[at(partner)];
      if (held_[cell(hot, b)] != 0) continue;
      const std::int32_t kind = kind_of_a + price_of(hot, b) - price_of(cool, b);
      if (!(miss < nearest[kind])) continue;
      nearest[kind] = miss;
      slot_of[kind] = slot;
      partner_of[kind] = partner;
      farthest = *std::max_element(nearest, nearest + 5);
    }
  }
  for (std::int32_t kind = 0; kind < 5; ++kind) {
    if (slot_of[kind] < 0) continue;
    const double miss = static_cast<double>(nearest[kind]);
    Change change;
    change.slot = slot_of[kind];
    change.partner = partner_of[kind];
    offer(rest + power(middle - miss) + power(middle + miss), kind - 2, change);
  }
}

double PeakSearch::sum_after_replace(std::int32_t slot, std::int32_t expert) const {
  const std::int32_t gone = map_[at(slot)], here = shape_.rank_of_slot(slot);
  const double less = loads_[at(gone)] / (copies_[at(gone)] - 1) - share(gone);
  const double more = next_share_[at(expert)] - share(expert);
  double sum = sum_ - power_[at(here)] + power(level_[at(here)] - share(gone) + next_share_[at(expert)]);
  for (const std::int32_t rank : ranks_of_[at(expert)]) {
    const double other = held_[cell(rank, gone)] != 0 ? less : 0.0;
    sum += power(level_[at(rank)] + more + other) - power_[at(rank)];
  }
  for (const std::int32_t rank : ranks_of_[at(gone)]) {
    if (rank == here || held_[cell(rank, expert)] != 0) continue;
    sum += power(level_[at(rank)] + less) - power_[at(rank)];
  }
  return sum;
}

/// First as if the two experts shared no rank, which is nearly always so; then exactly.
void PeakSearch::judge_replace(std::int32_t slot, std::int32_t expert) {
  const double others = slot_sum_[at(slot)] + relief_[at(expert)];
  const std::int32_t here = shape_.rank_of_slot(slot);
  const double limit = changed_[at(here)] == 0 ? limit_[3] : limit_[1];
  if (others >= limit || others + power(slot_room_[at(slot)] + next_share_[at(expert)]) >= limit) return;
  if (held_[cell(here, expert)] != 0) return;
  Change change;
  change.slot = slot;
  change.expert = expert;
  offer(sum_after_replace(slot, expert), price_of(here, expert) - price_of(here, map_[at(slot)]), change);
}

void PeakSearch::look_copy_of_hot(std::int32_t expert) {
  if (sum_ + relief_[at(expert)] >= limit_[any_changed_ ? 1 : 3]) return;
  for (const std::int32_t slot : spare_) judge_replace(slot, expert);
}

void PeakSearch::look_slots_of(std::int32_t hot) {
  const std::int32_t width = shape_.slots_per_rank();
  for (std::int32_t slot = hot * width; slot < (hot + 1) * width; ++slot) {
    const std::int32_t gone = map_[at(slot)];
    if (copies_[at(gone)] < 2) continue;
    for (std::int32_t expert = 0; expert < shape_.experts; ++expert) {
      if (next_share_[at(expert)] < share(gone)) judge_replace(slot, expert);
    }
  }
}

void PeakSearch::apply(const Change& change, PeakResult& result) {
  moves_left_ -= change.received;
  any_changed_ = true;
  changed_[at(shape_.rank_of_slot(change.slot))] = 1;
  if (change.partner >= 0) changed_[at(shape_.rank_of_slot(change.partner))] = 1;
  const std::int32_t here = shape_.rank_of_slot(change.slot), gone = map_[at(change.slot)];
  const auto leave = [&](std::int32_t rank, std::int32_t expert) {
    held_[cell(rank, expert)] = 0;
    auto& ranks = ranks_of_[at(expert)];
    ranks.erase(std::ranges::find(ranks, rank));
  };
  const auto join = [&](std::int32_t rank, std::int32_t expert) {
    held_[cell(rank, expert)] = 1;
    ranks_of_[at(expert)].push_back(rank);
  };
  if (change.partner >= 0) {
    const std::int32_t there = shape_.rank_of_slot(change.partner), back = map_[at(change.partner)];
    leave(here, gone), leave(there, back);
    join(here, back), join(there, gone);
    std::swap(map_[at(change.slot)], map_[at(change.partner)]);
    ++result.swaps;
  } else {
    leave(here, gone), join(here, change.expert);
    map_[at(change.slot)] = change.expert;
    --copies_[at(gone)];
    ++copies_[at(change.expert)];
    ++result.replacements;
  }
}

PeakResult PeakSearch::run(const Shape& shape, std::span<const float> loads,
                           std::span<const std::int32_t> before, const PeakOptions& options, SlotMap& map) {
  shape_ = shape;
  map_.swap(map);
  doublings_ = shape.ranks < kManyRanks ? 5 : 4;
  price_ = options.move_price;
  moves_left_ = options.moves_max < 0 ? shape.slots : options.moves_max;
  start(loads, before);
  PeakResult result;
  std::vector<std::int32_t> by_level(at(shape.ranks));
  std::iota(by_level.begin(), by_level.end(), 0);
  for (std::int32_t round = 0; round < 4 * shape.slots; ++round) {
    std::ranges::stable_sort(by_level,
                             [&](std::int32_t a, std::int32_t b) { return level_[at(a)] > level_[at(b)]; });
    best_ = {};
    set_limits();
    prepare();
    for (std::size_t hot = 0; hot < by_level.size(); ++hot) {
      // Whatever relieves only this rank and cooler ones cannot gain more than all of its part.
      if (sum_ - power_[at(by_level[hot])] >= limit_[2]) break;
      if (sum_ - power_[at(by_level[hot])] < limit_[changed_[at(by_level[hot])] == 0 ? 3 : 1])
        look_slots_of(by_level[hot]);
      for (std::size_t cool = by_level.size() - 1; cool > hot; --cool)
        look_pair(by_level[hot], by_level[cool]);
    }
    for (std::int32_t expert = 0; expert < shape.experts; ++expert) look_copy_of_hot(expert);
    if (best_.slot < 0) break;
    apply(best_, result);
    measure();
  }
  map_.swap(map);
  return result;
}

}  // namespace trimtab::experts
