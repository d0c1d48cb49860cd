#include "policy/experts/plan/single_step.h"

#include <algorithm>
#include <numeric>
#include <queue>
#include <set>
#include <tuple>
#include <vector>

#include "base/check.h"
#include "base/prng.h"

namespace trimtab::experts {
namespace {

std::size_t at(std::int32_t index) { return static_cast<std::size_t>(index); }

/// Copies that leave the least load per copy at the top; equal experts get as many.
std::vector<std::int32_t> count_copies(const Shape& shape, std::span<const double> totals) {
  using Entry =
      std::tuple<double, std::int32_t, std::int32_t>;  // load per copy, -copies, -expert: highest first
  std::vector<std::int32_t> copies(at(shape.experts), 1);
  std::priority_queue<Entry> queue;
  for (std::int32_t expert = 0; expert < shape.experts; ++expert) {
    if (shape.ranks > 1) queue.emplace(totals[at(expert)], -1, -expert);
  }
  for (std::int32_t slot = shape.experts; slot < shape.slots; ++slot) {
    const std::int32_t expert = -std::get<2>(queue.top());
    queue.pop();
    const std::int32_t now = ++copies[at(expert)];
    if (now < shape.copies_max()) queue.emplace(totals[at(expert)] / now, -now, -expert);
  }
  return copies;
}

class Search {
 public:
  Search(const Shape& shape, std::span<const double> totals, std::uint64_t seed, std::uint64_t stream)
      : shape_(shape), totals_(totals), width_(shape.slots_per_rank()), prng_(seed, stream) {
    copies_ = count_copies(shape, totals);
    for (std::int32_t slot = 0; slot < shape.slots; ++slot) rank_of_.push_back(slot / width_);
    divide();
    place_falling();
    recount();
    keep_if_best();
  }

  void run(std::int64_t proposals) {
    if (mean_ <= 0 || shape_.ranks == 1) return;
    accept_below_threshold(proposals / 2);
    return_to_best();
    steep_ = true;
    accept_below_threshold(proposals / 2);
    return_to_best();
    while (lower_busiest()) continue;
    keep_if_best();
  }

  const SlotMap& best() const { return best_; }
  double best_peak() const { return best_peak_; }
  bool good_enough() const { return best_peak_ <= mean_ * (1 + kGoodEnough); }

 private:
  static constexpr std::int64_t kCheckEvery = 1024;
  static constexpr std::int64_t kTransferEvery = 8;  // the others are swaps
  // The first thresholds, for slots of a whole rank's load; they fall with the square of the slots of a rank.
  static constexpr double kStartFlat = 0.1, kStartSteep = 20;
  static constexpr double kGoodEnough = 1e-5;  // of the mean above the mean

  double per_copy(std::int32_t expert) const { return per_copy_[at(expert)]; }
  std::int32_t rank_of(std::int32_t slot) const { return rank_of_[at(slot)]; }
  /// Two divisions a proposal would be half of its cost: the quotients are kept.
  void divide(std::int32_t expert) { per_copy_[at(expert)] = totals_[at(expert)] / copies_[at(expert)]; }
  void divide() {
    per_copy_.resize(at(shape_.experts));
    for (std::int32_t expert = 0; expert < shape_.experts; ++expert) divide(expert);
  }
  bool holds(std::int32_t rank, std::int32_t expert) const {
    const auto first = map_.begin() + static_cast<std::ptrdiff_t>(rank) * width_;
    return std::find(first, first + width_, expert) != first + width_;
  }

  /// Copies by falling load, each to the least loaded rank that has room and lacks the expert.
  void place_falling() {
    std::vector<std::int32_t> items;
    for (std::int32_t expert = 0; expert < shape_.experts; ++expert) {
      items.insert(items.end(), at(copies_[at(expert)]), expert);
    }
    std::ranges::stable_sort(items, std::greater(), [&](std::int32_t expert) { return per_copy(expert); });
    map_.assign(at(shape_.slots), -1);
    std::vector<std::int32_t> filled(at(shape_.ranks));
    std::set<std::pair<double, std::int32_t>> open;  // load, rank
    for (std::int32_t rank = 0; rank < shape_.ranks; ++rank) open.emplace(0.0, rank);
    for (const std::int32_t expert : items) {
      const auto fit =
          std::ranges::find_if(open, [&](const auto& entry) { return !holds(entry.second, expert); });
      std::int32_t slot = -1;
      std::pair<double, std::int32_t> grown;
      if (fit != open.end()) {
        grown = *fit;
        open.erase(fit);
        slot = grown.second * width_ + filled[at(grown.second)];
        grown.first += per_copy(expert);
      } else {
        // Only ranks that hold the expert have room: one of them takes a copy from a full rank, which takes
        // this one.
        grown = *open.begin();
        open.erase(open.begin());
        slot = free_by_exchange(grown.second, filled[at(grown.second)], expert);
        grown.first += per_copy(map_[at(grown.second * width_ + filled[at(grown.second)])]);
      }
      map_[at(slot)] = expert;
      if (++filled[at(grown.second)] < width_) open.insert(grown);
    }
  }

  /// Moves a copy from a full rank that lacks `expert` to the open rank's next slot; gives the slot that is
  /// free now. There is one: the open rank holds fewer copies than the full one, and `expert` besides.
  std::int32_t free_by_exchange(std::int32_t open_rank, std::int32_t next, std::int32_t expert) {
    for (std::int32_t rank = 0; rank < shape_.ranks; ++rank) {
      if (rank == open_rank || map_[at((rank + 1) * width_ - 1)] < 0 || holds(rank, expert)) continue;
      for (std::int32_t slot = rank * width_; slot < (rank + 1) * width_; ++slot) {
        if (holds(open_rank, map_[at(slot)])) continue;
        map_[at(open_rank * width_ + next)] = map_[at(slot)];
        return slot;
      }
    }
    TRIMTAB_CHECK(false, "no rank lacks an expert that has fewer copies than ranks");
    return -1;
  }

  /// Loads and hosts anew, in the order of slots: rounding errors of the search do not pile up.
  void recount() {
    hosts_.assign(at(shape_.experts), {});
    load_.assign(at(shape_.ranks), 0.0);
    for (std::int32_t slot = 0; slot < shape_.slots; ++slot) {
      hosts_[at(map_[at(slot)])].push_back(slot);
      load_[at(rank_of(slot))] += per_copy(map_[at(slot)]);
    }
    mean_ = std::accumulate(totals_.begin(), totals_.end(), 0.0) / shape_.ranks;
  }

  void keep_if_best() {
    const double peak = *std::ranges::max_element(load_);
    if (best_.empty() || peak < best_peak_) best_ = map_, best_peak_ = peak;
  }

  void return_to_best() {
    map_ = best_;
    copies_ = copies_of(shape_, map_);
    divide();
    recount();
  }

  /// What a rank's load costs, in units of the mean: the square at first, whose slope leads everywhere; then
  /// the eighth power, which is nearly the maximum but has no plateaus.
  double cost(double load) const {
    const double x = load / mean_, square = x * x;
    if (!steep_) return square;
    const double fourth = square * square;
    return fourth * fourth;
  }

  /// Threshold accepting (Dueck and Scheuer, 1990): a change is taken when it raises the cost by no more than
  /// a threshold that falls to zero. It needs no exponential, whose last bit differs between machines.
  void accept_below_threshold(std::int64_t proposals) {
    const double start = (steep_ ? kStartSteep : kStartFlat) / (static_cast<double>(width_) * width_);
    for (std::int64_t i = 0; i < proposals; ++i) {
      if (i % kCheckEvery == 0) {
        recount();
        keep_if_best();
        if (good_enough()) return;
      }
      const double left = 1 - static_cast<double>(i) / static_cast<double>(proposals);
      const double threshold = start * left * left * left;
      const auto first = static_cast<std::int32_t>(prng_.below(static_cast<std::uint64_t>(shape_.slots)));
      const auto second = static_cast<std::int32_t>(prng_.below(static_cast<std::uint64_t>(shape_.slots)));
      if (i % kTransferEvery == 0) {
        try_transfer(first, map_[at(second)], threshold);
      } else {
        try_swap(first, second, threshold);
      }
    }
    recount();
    keep_if_best();
  }

  void try_swap(std::int32_t slot_a, std::int32_t slot_b, double threshold) {
    const std::int32_t i = rank_of(slot_a), j = rank_of(slot_b), a = map_[at(slot_a)], b = map_[at(slot_b)];
    const double moved = per_copy(a) - per_copy(b);
    if (i == j || moved == 0) return;
    const double li = load_[at(i)], lj = load_[at(j)];
    if (cost(li - moved) + cost(lj + moved) - cost(li) - cost(lj) > threshold) return;
    if (holds(i, b) || holds(j, a)) return;
    swap_slots(slot_a, slot_b);
  }

  void swap_slots(std::int32_t slot_a, std::int32_t slot_b) {
    const std::int32_t a = map_[at(slot_a)], b = map_[at(slot_b)];
    const double moved = per_copy(a) - per_copy(b);
    load_[at(rank_of(slot_a))] -= moved;
    load_[at(rank_of(slot_b))] += moved;
    std::swap(map_[at(slot_a)], map_[at(slot_b)]);
    std::ranges::replace(hosts_[at(a)], slot_a, slot_b);
    std::ranges::replace(hosts_[at(b)], slot_b, slot_a);
  }

  /// The slot's copy gives way to one more copy of `to`: every other copy of its expert carries more, every
  /// copy of `to` less.
  void try_transfer(std::int32_t slot, std::int32_t to, double threshold) {
    const std::int32_t from = map_[at(slot)], rank = rank_of(slot);
    if (from == to || copies_[at(from)] < 2 || copies_[at(to)] >= shape_.copies_max() || holds(rank, to))
      return;
    const double more = totals_[at(from)] / (copies_[at(from)] - 1) - per_copy(from);
    const double after = totals_[at(to)] / (copies_[at(to)] + 1), less = per_copy(to) - after;
    changed_.clear();
    for (const std::int32_t host : hosts_[at(from)]) {
      if (host != slot) changed_.emplace_back(rank_of(host), more);
    }
    for (const std::int32_t host : hosts_[at(to)]) {
      const auto both =
          std::ranges::find(changed_, rank_of(host), [](const auto& entry) { return entry.first; });
      if (both != changed_.end()) {
        both->second -= less;
      } else {
        changed_.emplace_back(rank_of(host), -less);
      }
    }
    changed_.emplace_back(rank, after - per_copy(from));
    double worse = 0;
    for (const auto& [at_rank, by] : changed_) {
      worse += cost(load_[at(at_rank)] + by) - cost(load_[at(at_rank)]);
    }
    if (worse > threshold) return;
    for (const auto& [at_rank, by] : changed_) load_[at(at_rank)] += by;
    --copies_[at(from)], ++copies_[at(to)];
    divide(from), divide(to);
    map_[at(slot)] = to;
    std::erase(hosts_[at(from)], slot);
    hosts_[at(to)].push_back(slot);
  }

  /// The swap of a copy of the busiest rank that leaves the least maximum of the two ranks, if it is lower.
  bool lower_busiest() {
    const auto busiest = static_cast<std::int32_t>(std::ranges::max_element(load_) - load_.begin());
    const double peak = load_[at(busiest)];
    double best = peak * (1 - 1e-12);  // a gain that rounding cannot fake, so that this ends
    std::pair<std::int32_t, std::int32_t> choice{-1, -1};
    for (std::int32_t slot_a = busiest * width_; slot_a < (busiest + 1) * width_; ++slot_a) {
      for (std::int32_t slot_b = 0; slot_b < shape_.slots; ++slot_b) {
        const std::int32_t j = rank_of(slot_b), a = map_[at(slot_a)], b = map_[at(slot_b)];
        const double moved = per_copy(a) - per_copy(b);
        const double higher = std::max(peak - moved, load_[at(j)] + moved);
        if (j == busiest || moved <= 0 || higher >= best || holds(busiest, b) || holds(j, a)) continue;
        best = higher, choice = {slot_a, slot_b};
      }
    }
    if (choice.first < 0) return false;
    swap_slots(choice.first, choice.second);
    return true;
  }

  const Shape shape_;
  const std::span<const double> totals_;
  const std::int32_t width_;
  base::Prng prng_;
  SlotMap map_, best_;
  std::vector<std::int32_t> copies_, rank_of_;
  std::vector<double> per_copy_;
  std::vector<std::vector<std::int32_t>> hosts_;  // slots of each expert
  std::vector<double> load_;                      // of each rank
  std::vector<std::pair<std::int32_t, double>> changed_;
  double mean_ = 0, best_peak_ = 0;
  bool steep_ = false;
};

/// Several short searches reach lower than one long one: where a search ends depends mostly on where it went
/// early.
struct Budget {
  std::int64_t searches = 1, proposals_per_slot = 60;
};

Budget budget_of(Effort effort) {
  if (effort == Effort::kFast) return {1, 60};
  if (effort == Effort::kDefault) return {4, 60};
  return {24, 200};
}

constexpr std::int64_t kProposalsMin = 8192, kProposalsMax = 1'000'000;

}  // namespace

SlotMap plan_single_step(const Shape& shape, std::span<const double> totals, Effort effort,
                         std::uint64_t seed) {
  TRIMTAB_CHECK(totals.size() == at(shape.experts));
  const Budget budget = budget_of(effort);
  const std::int64_t proposals =
      std::clamp(budget.proposals_per_slot * shape.slots, kProposalsMin, kProposalsMax);
  // A small layer (a node of a hierarchical plan) has fewer ways to be even, and its searches are cheap.
  const std::int64_t searches = budget.searches * std::clamp(320 / shape.slots, 1, 4);
  SlotMap best;
  double best_peak = 0;
  for (std::int64_t i = 0; i < searches; ++i) {
    Search search(shape, totals, seed, static_cast<std::uint64_t>(i));
    search.run(proposals);
    if (best.empty() || search.best_peak() < best_peak) best = search.best(), best_peak = search.best_peak();
    if (search.good_enough()) break;
  }
  return best;
}

}  // namespace trimtab::experts
