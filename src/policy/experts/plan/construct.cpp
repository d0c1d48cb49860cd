#include "policy/experts/plan/construct.h"

#include <algorithm>
#include <vector>

#include "base/check.h"

namespace trimtab::experts {
namespace {

struct Copy {
  float square;
  std::int32_t expert;
};

std::vector<Copy> copies_by_size(const Shape& shape, const Placement& placement) {
  std::vector<Copy> copies;
  copies.reserve(static_cast<std::size_t>(shape.slots));
  for (std::int32_t expert = 0; expert < shape.experts; ++expert) {
    const float share = placement.share(expert);
    for (std::int32_t n = 0; n < placement.copies(expert); ++n)
      copies.push_back({placement.gram(expert, expert) * share * share, expert});
  }
  std::ranges::stable_sort(copies, [](const Copy& a, const Copy& b) { return a.square > b.square; });
  return copies;
}

/// A full rank that lacks `expert` gives one of its copies, which some rank with room lacks, to that rank:
/// the exchange that costs least. One exists: ranks with room have fewer experts than full ones.
void make_room(const Shape& shape, Placement& placement, std::int32_t expert) {
  std::int32_t best_slot = -1, best_rank = -1;
  float best = 0;
  for (std::int32_t slot = 0; slot < shape.slots; ++slot) {
    const std::int32_t full = shape.rank_of_slot(slot);
    const std::int32_t held = placement.map()[static_cast<std::size_t>(slot)];
    if (placement.free_slots(full) > 0 || placement.holds(full, expert)) continue;
    for (std::int32_t rank = 0; rank < shape.ranks; ++rank) {
      if (placement.free_slots(rank) == 0 || placement.holds(rank, held)) continue;
      const float cost =
          placement.share(held) * (placement.product(rank, held) - placement.product(full, held)) +
          placement.share(expert) * placement.product(full, expert);
      if (best_slot < 0 || cost < best) {
        best = cost;
        best_slot = slot;
        best_rank = rank;
      }
    }
  }
  TRIMTAB_CHECK(best_slot >= 0);
  const std::int32_t full = shape.rank_of_slot(best_slot);
  placement.move(best_slot, best_rank);
  placement.add(full, expert);
}

}  // namespace

void construct(const Shape& shape, Placement& placement) {
  for (const Copy& copy : copies_by_size(shape, placement)) {
    std::int32_t best = -1;
    for (std::int32_t rank = 0; rank < shape.ranks; ++rank) {
      if (placement.free_slots(rank) == 0 || placement.holds(rank, copy.expert)) continue;
      if (best < 0 || placement.product(rank, copy.expert) < placement.product(best, copy.expert))
        best = rank;
    }
    if (best >= 0)
      placement.add(best, copy.expert);
    else
      make_room(shape, placement, copy.expert);
  }
}

}  // namespace trimtab::experts
