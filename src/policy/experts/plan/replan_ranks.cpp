#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "policy/experts/plan/planner.h"

namespace trimtab::experts {
namespace {

std::size_t at(std::int32_t index) { return static_cast<std::size_t>(index); }

tl::unexpected<base::Error> bad(std::string message) {
  return base::fail(base::Code::kInvalidArgument, std::move(message), "policy/experts");
}

base::Status check_survivors(const Shape& old_shape, const Shape& shape,
                             std::span<const std::int32_t> survivors) {
  if (old_shape.experts != shape.experts) {
    return bad(fmt::format("{} experts before and {} now: ranks come and go, experts stay", old_shape.experts,
                           shape.experts));
  }
  if (survivors.size() != at(shape.ranks)) {
    return bad(fmt::format("{} survivors for {} ranks: name the old rank of each, or -1 for a new one",
                           survivors.size(), shape.ranks));
  }
  std::vector<std::int32_t> now(at(old_shape.ranks), -1);
  for (std::int32_t rank = 0; rank < shape.ranks; ++rank) {
    const std::int32_t old = survivors[at(rank)];
    if (old < -1 || old >= old_shape.ranks) {
      return bad(
          fmt::format("rank {} is said to be old rank {}, which is not one of 0 to {} (-1: a new rank)", rank,
                      old, old_shape.ranks - 1));
    }
    if (old < 0) continue;
    if (now[at(old)] >= 0)
      return bad(fmt::format("old rank {} is both rank {} and {}", old, now[at(old)], rank));
    now[at(old)] = rank;
  }
  return {};
}

/// What the survivors hold, made into a legal map with as few copies received as that needs.
class Mender {
 public:
  Mender(const Shape& old_shape, std::span<const std::int32_t> before, const Shape& shape,
         std::span<const std::int32_t> survivors, std::span<const double> totals)
      : shape_(shape),
        width_(shape.slots_per_rank()),
        totals_(totals),
        map_(at(shape.slots), -1),
        copies_(at(shape.experts)) {
    held_.resize(at(shape.ranks));
    for (std::int32_t rank = 0; rank < shape.ranks; ++rank) {
      const std::int32_t old = survivors[at(rank)];
      if (old < 0) continue;
      std::vector<std::int32_t> kept(at(old_shape.slots_per_rank()), -1);
      for (std::int32_t i = 0; i < old_shape.slots_per_rank(); ++i) {
        const std::int32_t expert = before[at(old * old_shape.slots_per_rank() + i)];
        if (!held_[at(rank)].insert(expert).second) continue;
        kept[at(i)] = expert;
        ++copies_[at(expert)];
      }
      kept_.push_back({rank, std::move(kept)});
    }
  }

  SlotMap run() {
    for (auto& [rank, kept] : kept_) keep(rank, kept);
    for (const std::int32_t expert : missing()) place(expert);
    for (std::int32_t slot = free_slot(); slot >= 0; slot = free_slot()) fill(slot);
    return map_;
  }

  /// Copies that the ranks of `map` do not hold already, dropped ones included.
  std::int64_t received(std::span<const std::int32_t> map) const {
    std::int64_t count = 0;
    for (std::int32_t slot = 0; slot < shape_.slots; ++slot) {
      count += held_[at(slot / width_)].contains(map[at(slot)]) ? 0 : 1;
    }
    return count;
  }

 private:
  double per_copy(std::int32_t expert, std::int32_t more) const {
    return totals_[at(expert)] / std::max(1, copies_[at(expert)] + more);
  }

  /// Drops what the rank has no room for: copies of experts that have most, then of those that need them
  /// least.
  void keep(std::int32_t rank, std::vector<std::int32_t>& kept) {
    for (auto left = std::ssize(kept) - std::ranges::count(kept, -1); left > width_; --left) {
      std::size_t drop = kept.size();
      for (std::size_t i = 0; i < kept.size(); ++i) {
        if (kept[i] < 0) continue;
        const auto key = [&](std::size_t j) {
          return std::pair(-copies_[at(kept[j])], per_copy(kept[j], -1));
        };
        if (drop == kept.size() || key(i) < key(drop)) drop = i;
      }
      --copies_[at(kept[drop])];
      kept[drop] = -1;
    }
    // In their old slots as far as those are there, so that nothing moves inside the rank.
    const auto slots = std::span(map_).subspan(at(rank * width_), at(width_));
    for (std::size_t i = 0; i < std::min(slots.size(), kept.size()); ++i) slots[i] = kept[i];
    std::size_t next = 0;
    for (std::size_t i = slots.size(); i < kept.size(); ++i) {
      if (kept[i] < 0) continue;
      while (slots[next] >= 0) ++next;
      slots[next] = kept[i];
    }
  }

  std::vector<std::int32_t> missing() const {
    std::vector<std::int32_t> out;
    for (std::int32_t expert = 0; expert < shape_.experts; ++expert) {
      if (copies_[at(expert)] == 0) out.push_back(expert);
    }
    std::ranges::stable_sort(out, std::greater(), [&](std::int32_t expert) { return totals_[at(expert)]; });
    return out;
  }

  /// The first free slot of the least loaded rank that has one; -1 when all are taken.
  std::int32_t free_slot() const {
    std::int32_t best = -1;
    double best_load = 0;
    for (std::int32_t rank = 0; rank < shape_.ranks; ++rank) {
      double load = 0;
      std::int32_t open = -1;
      for (std::int32_t slot = (rank + 1) * width_ - 1; slot >= rank * width_; --slot) {
        if (map_[at(slot)] < 0) {
          open = slot;
        } else {
          load += per_copy(map_[at(slot)], 0);
        }
      }
      if (open >= 0 && (best < 0 || load < best_load)) best = open, best_load = load;
    }
    return best;
  }

  /// An expert without a copy: in a free slot, else in place of the copy that is missed least.
  void place(std::int32_t expert) {
    std::int32_t slot = free_slot();
    if (slot < 0) {
      for (std::int32_t other = 0; other < shape_.slots; ++other) {
        if (copies_[at(map_[at(other)])] < 2) continue;
        if (slot < 0 || per_copy(map_[at(other)], -1) < per_copy(map_[at(slot)], -1)) slot = other;
      }
      --copies_[at(map_[at(slot)])];
    }
    map_[at(slot)] = expert;
    ++copies_[at(expert)];
  }

  /// A slot that is left: the expert with the most load per copy that the rank lacks, ties by fewest copies.
  void fill(std::int32_t slot) {
    const auto rank = std::span(map_).subspan(at(slot / width_ * width_), at(width_));
    std::int32_t best = -1;
    for (std::int32_t expert = 0; expert < shape_.experts; ++expert) {
      if (std::ranges::find(rank, expert) != rank.end()) continue;
      const auto key = [&](std::int32_t e) { return std::pair(-per_copy(e, 0), copies_[at(e)]); };
      if (best < 0 || key(expert) < key(best)) best = expert;
    }
    map_[at(slot)] = best;
    ++copies_[at(best)];
  }

  const Shape& shape_;
  const std::int32_t width_;
  std::span<const double> totals_;
  SlotMap map_;  // -1: free
  std::vector<std::int32_t> copies_;
  std::vector<std::set<std::int32_t>> held_;                              // by each rank before
  std::vector<std::pair<std::int32_t, std::vector<std::int32_t>>> kept_;  // rank and its old slots
};

}  // namespace

base::Result<Plan> replan_ranks(const Shape& old_shape, std::span<const std::int32_t> before,
                                const Shape& shape, std::span<const std::int32_t> survivors,
                                const LoadWindow& window, const PlanOptions& options) {
  TRIMTAB_TRY(check(old_shape, before, false));
  TRIMTAB_TRY(check(shape));
  TRIMTAB_TRY(check_survivors(old_shape, shape, survivors));
  if (window.experts() != shape.experts) {
    return bad(fmt::format("the window has {} experts, the shape {}", window.experts(), shape.experts));
  }
  Mender mender(old_shape, before, shape, survivors, window.totals());
  const SlotMap mended = mender.run();
  PlanOptions with = options;
  if (with.moves_max >= 0) {  // what had to be received is received already
    const std::int64_t left = with.moves_max - mender.received(mended);
    with.moves_max = static_cast<std::int32_t>(std::max<std::int64_t>(left, 0));
  }
  auto plan = plan_layer(shape, window, mended, with);
  if (!plan) return plan;
  plan->reason.received = mender.received(plan->map);
  plan->reason.balance_before = balance_of(old_shape, before, window).of_sums;
  return plan;
}

}  // namespace trimtab::experts
