#include "kv_target/file/extent_allocator.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <vector>

namespace trimtab::kv_target::file {
namespace {

TEST(ExtentAllocator, ErasedNeighboursMakeRoomForSomethingLarger) {
  ExtentAllocator room(64);
  room.give(0, 64);
  std::vector<std::uint64_t> taken;
  while (const auto first = room.take(3)) taken.push_back(*first);
  ASSERT_EQ(taken.size(), 21U);
  for (std::size_t i = 0; i + 1 < taken.size(); i += 4) {  // every other pair
    room.give(taken[i], 3);
    room.give(taken[i + 1], 3);
  }
  int larger = 0;
  while (room.take(6)) ++larger;
  EXPECT_EQ(larger, 5);
  EXPECT_EQ(room.free_units(), 1U);
}

TEST(ExtentAllocator, NothingSpansTwoFiles) {
  ExtentAllocator room(10);
  room.give(0, 10);
  room.give(10, 10);
  EXPECT_EQ(room.holes(), 2U);
  EXPECT_EQ(room.take(11), std::nullopt);
  ASSERT_EQ(room.take(6), 0U);
  EXPECT_EQ(room.take(5), 10U);
  EXPECT_EQ(room.take(4), 6U) << "the hole that fits exactly";
}

/// Against a map of single units.
RC_GTEST_PROP(ExtentAllocatorProperty, GivesEachUnitOnceAndAllOfThem, ()) {
  constexpr std::uint64_t kUnits = 48, kFile = 16;
  ExtentAllocator room(kFile);
  std::vector<bool> used(kUnits, false);
  for (std::uint64_t file = 0; file < kUnits / kFile; ++file) room.give(file * kFile, kFile);
  std::vector<std::pair<std::uint64_t, std::uint64_t>> taken;
  const auto largest = [&] {
    std::uint64_t most = 0, run = 0;
    for (std::uint64_t u = 0; u < kUnits; ++u) {
      run = used[u] ? 0 : (u % kFile == 0 ? 1 : run + 1);
      most = std::max(most, run);
    }
    return most;
  };
  const auto mark = [&](std::uint64_t first, std::uint64_t units, bool as) {
    for (std::uint64_t u = first; u < first + units; ++u) {
      RC_ASSERT(used[u] != as);
      used[u] = as;
    }
  };
  for (const auto& [what, which] : *rc::gen::container<std::vector<std::pair<std::uint64_t, std::uint64_t>>>(
           rc::gen::pair(rc::gen::inRange<std::uint64_t>(0, 9), rc::gen::arbitrary<std::uint64_t>()))) {
    if (what == 0 && !taken.empty()) {
      std::swap(taken[which % taken.size()], taken.back());
      mark(taken.back().first, taken.back().second, false);
      room.give(taken.back().first, taken.back().second);
      taken.pop_back();
    } else if (what == 8) {
      const std::uint64_t first = which % kUnits, units = 1 + which / kUnits % 3;
      bool free = first / kFile == (first + units - 1) / kFile;
      for (std::uint64_t u = first; u < std::min(kUnits, first + units); ++u) free = free && !used[u];
      if (first + units > kUnits || first / kFile != (first + units - 1) / kFile) continue;
      RC_ASSERT(room.take_at(first, units) == free);
      if (free) mark(first, units, true), taken.emplace_back(first, units);
    } else {
      const std::uint64_t units = 1 + what;
      const bool fits = largest() >= units;
      const auto first = room.take(units);
      RC_ASSERT(first.has_value() == fits);
      if (first) mark(*first, units, true), taken.emplace_back(*first, units);
    }
    RC_ASSERT(room.largest() == largest());
  }
  for (const auto& [first, units] : taken) room.give(first, units);
  RC_ASSERT(room.free_units() == kUnits);
  RC_ASSERT(room.holes() == kUnits / kFile);
}

}  // namespace
}  // namespace trimtab::kv_target::file
