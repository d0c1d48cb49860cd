#include "policy/experts/plan/square_search.h"

#include <algorithm>
#include <vector>

#include "policy/experts/plan/copies.h"

namespace trimtab::experts {
namespace {

constexpr CopyWeights kSteadyCopies{0.3, 0.1};
/// A copy that saves the part p of the peaks is worth 0.064 p of the sum of squares (found by trial); half of
/// it, since exchanges are judged by half their change.
constexpr double kPriceOfSquares = 0.032;

std::size_t at(std::int32_t value) { return static_cast<std::size_t>(value); }

class Improver {
 public:
  Improver(const Shape& shape, std::span<const std::int32_t> targets, double price, std::int32_t moves_max,
           Placement& placement, SwapSearch& search)
      : shape_(shape),
        targets_(targets),
        price_(price),
        moves_left_(moves_max < 0 ? shape.slots : moves_max),
        placement_(placement),
        search_(search) {}

  PeakResult run(double tolerance) {
    PeakResult result;
    while (moves_left_ > 0 && replace_one()) ++result.replacements;
    search_.reset(shape_, placement_);
    swaps_.resize(at(shape_.slots));
    for (std::int32_t slot = 0; slot < shape_.slots; ++slot) swaps_[at(slot)] = look(slot, 0);
    while (result.swaps < 4 * shape_.slots && swap_one(tolerance)) ++result.swaps;
    return result;
  }

 private:
  double variance_gain(std::int32_t gone, std::int32_t expert) const {
    const double less = placement_.copies(gone), more = placement_.copies(expert);
    return static_cast<double>(placement_.gram(expert, expert)) / (more * (more + 1)) -
           static_cast<double>(placement_.gram(gone, gone)) / (less * (less - 1));
  }

  /// Of all slots of experts above target, all experts below it: the replacement that costs Q least.
  bool replace_one() {
    std::int32_t best_slot = -1, best_expert = -1;
    double best = 0;
    for (std::int32_t expert = 0; expert < shape_.experts; ++expert) {
      if (placement_.copies(expert) >= targets_[at(expert)]) continue;
      for (std::int32_t slot = 0; slot < shape_.slots; ++slot) {
        const std::int32_t gone = placement_.map()[at(slot)], rank = shape_.rank_of_slot(slot);
        if (placement_.copies(gone) <= targets_[at(gone)] || placement_.holds(rank, expert)) continue;
        if (variance_gain(gone, expert) <= price_) continue;
        const double delta = placement_.replace_delta(slot, expert) / 2 - variance_gain(gone, expert);
        if (best_slot < 0 || delta < best) {
          best = delta;
          best_slot = slot;
          best_expert = expert;
        }
      }
    }
    if (best_slot < 0) return false;
    placement_.replace(best_slot, best_expert);
    --moves_left_;
    return true;
  }

  Swap look(std::int32_t slot, std::int64_t since) { return search_.best(slot, since); }

  std::int32_t received(std::int32_t slot_a, std::int32_t slot_b) const {
    const std::int32_t a = placement_.map()[at(slot_a)], b = placement_.map()[at(slot_b)];
    const std::int32_t i = shape_.rank_of_slot(slot_a), j = shape_.rank_of_slot(slot_b);
    const auto paid = [&](std::int32_t rank, std::int32_t expert) {
      return placement_.price(rank, expert) > 0 ? 1 : 0;
    };
    return paid(j, a) + paid(i, b) - paid(i, a) - paid(j, b);
  }

  bool swap_one(double tolerance) {
    std::int32_t best = -1;
    for (std::int32_t slot = 0; slot < shape_.slots; ++slot) {
      const Swap& swap = swaps_[at(slot)];
      if (swap.partner < 0 || swap.delta >= -tolerance) continue;
      if (best >= 0 && swap.delta >= swaps_[at(best)].delta) continue;
      if (received(slot, swap.partner) <= moves_left_) best = slot;
    }
    if (best < 0) return false;
    const std::int32_t partner = swaps_[at(best)].partner;
    const std::int32_t i = shape_.rank_of_slot(best), j = shape_.rank_of_slot(partner);
    moves_left_ -= received(best, partner);
    const std::int64_t before = search_.clock();
    search_.apply(best, partner);
    for (std::int32_t slot = 0; slot < shape_.slots; ++slot) {
      Swap& swap = swaps_[at(slot)];
      const std::int32_t rank = shape_.rank_of_slot(slot);
      const std::int32_t other = swap.partner < 0 ? -1 : shape_.rank_of_slot(swap.partner);
      const bool stale = rank == i || rank == j || other == i || other == j;
      const Swap fresh = look(slot, stale ? 0 : before);
      if (stale || fresh.delta < swap.delta) swap = fresh;
    }
    return true;
  }

  const Shape& shape_;
  std::span<const std::int32_t> targets_;
  double price_;
  std::int32_t moves_left_;
  Placement& placement_;
  SwapSearch& search_;
  std::vector<Swap> swaps_;
};

}  // namespace

PeakResult SquareSearch::run(const Shape& shape, const LayerLoads& loads,
                             std::span<const std::int32_t> before, const PeakOptions& options, SlotMap& map) {
  const std::vector<std::int32_t> targets = choose_copies(shape, loads, kSteadyCopies);
  placement_.reset(shape, loads, copies_of(shape, map));
  double whole = 0;
  for (std::int32_t a = 0; a < shape.experts; ++a) {
    for (std::int32_t b = 0; b < shape.experts; ++b) whole += static_cast<double>(loads.gram_row(a)[b]);
  }
  whole /= shape.ranks;
  // A free move is still told from none: its price is too small to weigh, but not 0.
  const double price = std::max(kPriceOfSquares * options.move_price * whole, 1e-30);
  placement_.set_prices(before, static_cast<float>(price));
  placement_.set_map(map);
  const PeakResult result =
      Improver(shape, targets, price, options.moves_max, placement_, swaps_).run(1e-7 * whole);
  map.assign(placement_.map().begin(), placement_.map().end());
  return result;
}

}  // namespace trimtab::experts
