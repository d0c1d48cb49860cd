#include "kv_target/shard_table.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>

namespace trimtab::kv_target {
namespace {

/// Few names, so that they are written and erased again; among them many with one home.
ShardName name_of(std::uint32_t n) {
  return {{n % 40 < 20 ? 0 : n % 40, 7}, static_cast<std::uint8_t>(n % 5)};
}

RC_GTEST_PROP(ShardTable, IsAMap, (const std::vector<std::pair<std::uint32_t, bool>>& steps)) {
  ShardTable<int> table;
  std::map<ShardName, int> plain;
  int value = 0;
  for (const auto& [n, erases] : steps) {
    const ShardName name = name_of(n);
    if (erases) {
      RC_ASSERT(table.erase(name) == (plain.erase(name) > 0));
    } else {
      table.add(name) = ++value;
      plain[name] = value;
    }
    RC_ASSERT(table.size() == plain.size());
  }
  for (std::uint32_t n = 0; n < 200; ++n) {
    const int* found = table.find(name_of(n));
    const auto wanted = plain.find(name_of(n));
    RC_ASSERT((found == nullptr ? 0 : *found) == (wanted == plain.end() ? 0 : wanted->second));
  }
}

TEST(ShardTable, KeepsThousandsThroughGrowthAndErasure) {
  ShardTable<std::uint64_t> table;
  const auto of = [](std::uint64_t n) {
    return ShardName{{n / 12, n / 12 * 3}, static_cast<std::uint8_t>(n % 12)};
  };
  for (std::uint64_t n = 0; n < 20'000; ++n) table.add(of(n)) = n;
  for (std::uint64_t n = 0; n < 20'000; n += 3) ASSERT_TRUE(table.erase(of(n)));
  EXPECT_EQ(table.size(), 20'000U - 6'667U);
  for (std::uint64_t n = 0; n < 20'000; ++n) {
    const std::uint64_t* found = table.find(of(n));
    ASSERT_EQ(found != nullptr, n % 3 != 0) << n;
    if (found != nullptr) {
      EXPECT_EQ(*found, n);
    }
  }
}

}  // namespace
}  // namespace trimtab::kv_target
