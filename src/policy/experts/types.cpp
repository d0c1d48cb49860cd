#include "policy/experts/types.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace trimtab::experts {
namespace {

tl::unexpected<base::Error> bad(std::string message) {
  return base::fail(base::Code::kInvalidArgument, std::move(message), "policy/experts");
}

constexpr std::int64_t kSlotsMax = 1 << 20;

base::Status check_slots(const Shape& shape) {
  const std::int64_t experts = shape.experts, slots = shape.slots, ranks = shape.ranks;
  if (slots < experts) {
    return bad(
        fmt::format("{} physical slots cannot hold {} experts: every expert needs one; use at least {}",
                    slots, experts, physical_slots(experts, 0, ranks)));
  }
  if (slots % ranks != 0) {
    return bad(fmt::format("{} physical slots do not divide evenly over {} ranks: use {} ({} redundant)",
                           slots, ranks, physical_slots(0, slots, ranks),
                           physical_slots(0, slots, ranks) - experts));
  }
  if (slots > experts * ranks) {
    return bad(fmt::format(
        "{} physical slots are more than {} experts x {} ranks: a second copy on a rank is useless; "
        "use at most {}",
        slots, experts, ranks, experts * ranks));
  }
  if (slots > kSlotsMax) return bad(fmt::format("{} physical slots are more than {}", slots, kSlotsMax));
  return {};
}

}  // namespace

base::Status check(const Shape& shape) {
  if (shape.experts < 1) return bad(fmt::format("{} experts: a layer has at least one", shape.experts));
  if (shape.ranks < 1) return bad(fmt::format("{} ranks: an EP group has at least one", shape.ranks));
  if (shape.nodes < 1) return bad(fmt::format("{} nodes: there is at least one", shape.nodes));
  if (shape.groups < 1) {
    return bad(fmt::format("{} expert groups: a model without groups has 1", shape.groups));
  }
  TRIMTAB_TRY(check_slots(shape));
  if (shape.ranks % shape.nodes != 0) {
    return bad(fmt::format("{} ranks do not divide evenly over {} nodes", shape.ranks, shape.nodes));
  }
  if (shape.experts % shape.groups != 0) {
    return bad(fmt::format("{} experts do not divide evenly into {} groups", shape.experts, shape.groups));
  }
  return {};
}

std::int64_t physical_slots(std::int64_t experts, std::int64_t redundant, std::int64_t ranks) {
  TRIMTAB_CHECK(ranks > 0 && experts >= 0 && redundant >= 0);
  return (experts + redundant + ranks - 1) / ranks * ranks;
}

base::Status check(const Shape& shape, std::span<const std::int32_t> map, bool distinct) {
  TRIMTAB_TRY(check(shape));
  if (map.size() != static_cast<std::size_t>(shape.slots)) {
    return bad(fmt::format("the map has {} slots, the shape {}", map.size(), shape.slots));
  }
  std::vector<std::int32_t> copies(static_cast<std::size_t>(shape.experts));
  std::vector<std::int32_t> last_rank(copies.size(), -1);
  for (std::int32_t slot = 0; slot < shape.slots; ++slot) {
    const std::int32_t expert = map[static_cast<std::size_t>(slot)];
    if (expert < 0 || expert >= shape.experts) {
      return bad(fmt::format("slot {} of the map holds expert {}, which is not one of 0 to {}", slot, expert,
                             shape.experts - 1));
    }
    const auto at = static_cast<std::size_t>(expert);
    const std::int32_t rank = shape.rank_of_slot(slot);
    if (distinct && last_rank[at] == rank) {
      return bad(fmt::format("rank {} holds expert {} twice (again in slot {})", rank, expert, slot));
    }
    last_rank[at] = rank;
    ++copies[at];
  }
  const auto missing = std::ranges::find(copies, 0);
  if (missing != copies.end()) {
    return bad(fmt::format("expert {} has no slot in the map", missing - copies.begin()));
  }
  return {};
}

SlotMap initial_map(const Shape& shape) {
  TRIMTAB_CHECK(check(shape).has_value());
  const std::int32_t width = shape.slots_per_rank();
  SlotMap map(static_cast<std::size_t>(shape.slots));
  for (std::int32_t slot = 0; slot < shape.slots; ++slot) {
    map[static_cast<std::size_t>(slot)] = slot % shape.experts;
  }
  // Slot i and slot i + experts share a rank only when a rank is wider than the experts between them: then
  // the rank's later slots take the next expert that it lacks and that has fewest copies.
  std::vector<std::int32_t> copies(static_cast<std::size_t>(shape.experts));
  for (std::int32_t rank = 0; rank < shape.ranks; ++rank) {
    std::vector<bool> held(copies.size());
    for (std::int32_t slot = rank * width; slot < (rank + 1) * width; ++slot) {
      auto expert = static_cast<std::size_t>(map[static_cast<std::size_t>(slot)]);
      if (held[expert]) {
        std::size_t best = copies.size();
        for (std::size_t other = 0; other < copies.size(); ++other) {
          if (!held[other] && (best == copies.size() || copies[other] < copies[best])) best = other;
        }
        expert = best;
        map[static_cast<std::size_t>(slot)] = static_cast<std::int32_t>(expert);
      }
      held[expert] = true;
      ++copies[expert];
    }
  }
  return map;
}

std::vector<std::int32_t> copies_of(const Shape& shape, std::span<const std::int32_t> map) {
  std::vector<std::int32_t> copies(static_cast<std::size_t>(shape.experts));
  for (const std::int32_t expert : map) ++copies[static_cast<std::size_t>(expert)];
  return copies;
}

std::int64_t received_copies(const Shape& shape, std::span<const std::int32_t> before,
                             std::span<const std::int32_t> after) {
  TRIMTAB_CHECK(before.size() % static_cast<std::size_t>(shape.ranks) == 0);
  const std::size_t old_width = before.size() / static_cast<std::size_t>(shape.ranks);
  const auto width = static_cast<std::size_t>(shape.slots_per_rank());
  std::int64_t received = 0;
  std::vector<std::int32_t> held_by(static_cast<std::size_t>(shape.experts), -1);
  for (std::int32_t rank = 0; rank < shape.ranks; ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    for (std::size_t i = 0; i < old_width; ++i)
      held_by[static_cast<std::size_t>(before[at * old_width + i])] = rank;
    for (std::size_t i = 0; i < width; ++i) {
      std::int32_t& holder = held_by[static_cast<std::size_t>(after[at * width + i])];
      if (holder != rank) ++received;
      holder = rank;  // a second copy on the rank is not received again
    }
  }
  return received;
}

std::int64_t duplicate_copies(const Shape& shape, std::span<const std::int32_t> map) {
  std::vector<std::int32_t> last_rank(static_cast<std::size_t>(shape.experts), -1);
  std::int64_t duplicates = 0;
  for (std::int32_t slot = 0; slot < shape.slots; ++slot) {
    std::int32_t& last = last_rank[static_cast<std::size_t>(map[static_cast<std::size_t>(slot)])];
    const std::int32_t rank = shape.rank_of_slot(slot);
    if (last == rank) ++duplicates;
    last = rank;
  }
  return duplicates;
}

}  // namespace trimtab::experts
