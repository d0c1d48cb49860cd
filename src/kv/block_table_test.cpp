#include "kv/block_table.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <set>

#include "base/prng.h"

namespace trimtab::kv {
namespace {

RequestId id(std::uint64_t n) { return RequestId{n}; }

TEST(BlockAllocator, AllOrNothingLowestFirst) {
  BlockAllocator allocator(130);
  EXPECT_EQ(*allocator.allocate(3), (std::vector<std::uint32_t>{0, 1, 2}));
  EXPECT_FALSE(allocator.allocate(128));
  EXPECT_EQ(allocator.free(), 127U);
  EXPECT_TRUE(allocator.release(1));
  EXPECT_EQ(*allocator.allocate(2), (std::vector<std::uint32_t>{1, 3}));
  EXPECT_EQ(allocator.allocate(126)->back(), 129U);
  EXPECT_EQ(allocator.free(), 0U);
  EXPECT_TRUE(allocator.allocate(0)->empty());
}

// A transfer holds its blocks: a request that ends meanwhile must not have them given away (vllm#46951).
TEST(BlockAllocator, ABlockUnderTransferIsNotGivenOut) {
  BlockTables tables(2);
  ASSERT_TRUE(tables.create(id(1), 256));
  const std::uint32_t block = tables.blocks(id(1))[0];
  tables.allocator().retain(block);
  tables.free(id(1));
  EXPECT_EQ(tables.allocator().free(), 1U);
  ASSERT_TRUE(tables.create(id(2), 100));
  EXPECT_NE(tables.blocks(id(2))[0], block);
  EXPECT_FALSE(tables.create(id(3), 100));
  EXPECT_TRUE(tables.allocator().release(block));
  EXPECT_TRUE(tables.create(id(3), 100));
}

TEST(BlockAllocatorDeathTest, DoubleFreeAndUseAfterFreeAreCaught) {
  BlockAllocator allocator(2);
  allocator.allocate(1);
  allocator.release(0);
  EXPECT_DEATH(allocator.release(0), "freed twice");
  EXPECT_DEATH(allocator.retain(0), "cannot be shared");
}

TEST(BlockTables, GrowTakesNothingWhenItFails) {
  BlockTables tables(3);
  ASSERT_TRUE(tables.create(id(1), 200));
  ASSERT_TRUE(tables.grow(id(1), 256));
  EXPECT_EQ(tables.blocks(id(1)).size(), 2U);
  const auto refused = tables.grow(id(1), 128 * 4);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, base::Code::kResourceExhausted);
  EXPECT_EQ(refused.error().message, "needs 2 KV blocks, 1 of 3 are free");
  EXPECT_EQ(tables.allocator().free(), 1U);
  EXPECT_TRUE(tables.grow(id(1), 128 * 3));
}

TEST(BlockTables, SharedBlocksAreCopiedBeforeTheyAreWritten) {
  BlockTables tables(4);
  ASSERT_TRUE(tables.create(id(1), 256));
  const std::vector<std::uint32_t> first(tables.blocks(id(1)).begin(), tables.blocks(id(1)).end());
  ASSERT_TRUE(tables.create(id(2), 256, first));
  EXPECT_EQ(tables.allocator().free(), 2U);
  const auto copy = tables.make_writable(id(2), 255);
  ASSERT_TRUE(copy && *copy);
  EXPECT_EQ((*copy)->from, first[1]);
  EXPECT_EQ(tables.blocks(id(2))[1], (*copy)->to);
  EXPECT_EQ(tables.blocks(id(1))[1], first[1]);
  EXPECT_FALSE(*tables.make_writable(id(2), 255)) << "its own now";
  EXPECT_FALSE(*tables.make_writable(id(1), 255)) << "and the other's too";
  EXPECT_TRUE(*tables.make_writable(id(1), 0));
}

// Whatever requests do, no block is lost, none is in two hands unless shared, nothing shared is written.
RC_GTEST_PROP(BlockTablesProperty, NoLeakNoDoubleUseNoSharedWrite, ()) {
  base::Prng prng(*rc::gen::arbitrary<std::uint64_t>());
  const auto total = static_cast<std::uint32_t>(1 + prng.below(100));
  BlockTables tables(total);
  std::map<std::uint64_t, std::int64_t> tokens;  // live requests
  std::multiset<std::uint32_t> transfers;
  const auto any_live = [&] {
    auto it = tokens.begin();
    std::advance(it, static_cast<std::ptrdiff_t>(prng.below(tokens.size())));
    return it->first;
  };
  for (std::uint64_t i = 0; i < 200; ++i) {
    const std::uint64_t what = tokens.empty() ? 0 : prng.below(6);
    const auto want = static_cast<std::int64_t>(1 + prng.below(1'500));
    if (what <= 1) {
      std::vector<std::uint32_t> shared;
      if (!tokens.empty() && prng.below(2) == 0) {
        const auto of = tables.blocks(id(any_live()));
        shared.assign(of.begin(), of.begin() + static_cast<std::ptrdiff_t>(prng.below(
                                                   std::min<std::size_t>(of.size(), blocks_for(want)) + 1)));
      }
      const bool fits = blocks_for(want) - shared.size() <= tables.allocator().free();
      RC_ASSERT(tables.create(id(i), want, shared).has_value() == fits);
      if (fits) tokens[i] = want;
    } else if (what == 2) {
      const std::uint64_t who = any_live();
      if (tables.grow(id(who), tokens[who] + want)) tokens[who] += want;
    } else if (what == 3) {
      const std::uint64_t who = any_live();
      tables.free(id(who));
      tokens.erase(who);
    } else if (what == 4) {
      const std::uint64_t who = any_live();
      const auto position = static_cast<std::int64_t>(prng.below(static_cast<std::uint64_t>(tokens[who])));
      if (tables.make_writable(id(who), position)) {
        RC_ASSERT(
            tables.allocator().writable(tables.blocks(id(who))[static_cast<std::size_t>(position / 128)]));
      }
    } else if (!transfers.empty() && prng.below(2) == 0) {
      tables.allocator().release(*transfers.begin());
      transfers.erase(transfers.begin());
    } else {
      const std::uint32_t block = tables.blocks(id(any_live()))[0];
      tables.allocator().retain(block);
      transfers.insert(block);
    }
    std::vector<std::uint32_t> expected(total, 0);
    for (const auto& [who, count] : tokens) {
      RC_ASSERT(tables.blocks(id(who)).size() == blocks_for(count));
      for (const std::uint32_t block : tables.blocks(id(who))) ++expected[block];
    }
    for (const std::uint32_t block : transfers) ++expected[block];
    std::uint32_t free = 0;
    for (std::uint32_t block = 0; block < total; ++block) {
      RC_ASSERT(tables.allocator().references(block) == expected[block]);
      if (expected[block] == 0) ++free;
    }
    RC_ASSERT(tables.allocator().free() == free);
  }
}

// Requests fork, write and end in any order: each reads back what it wrote or inherited, never another's
// writes, and blocks are shared until somebody writes.
RC_GTEST_PROP(BlockTablesProperty, ForksReadTheirOwnHistory, ()) {
  base::Prng prng(*rc::gen::arbitrary<std::uint64_t>());
  const auto total = static_cast<std::uint32_t>(4 + prng.below(40));
  BlockTables tables(total);
  std::vector<std::uint64_t> arena(std::size_t{total} * 128, 0);
  std::map<std::uint64_t, std::vector<std::uint64_t>> history;  // live request -> what each position holds
  const auto row = [&](std::uint64_t who, std::size_t position) {
    return std::size_t{tables.blocks(id(who))[position / 128]} * 128 + position % 128;
  };
  const auto write = [&](std::uint64_t who, std::size_t position, std::uint64_t value) {
    const auto copy = tables.make_writable(id(who), static_cast<std::int64_t>(position));
    if (!copy) return;  // no block for the copy: nothing was written
    if (*copy) {
      std::copy_n(arena.begin() + (*copy)->from * 128L, 128, arena.begin() + (*copy)->to * 128L);
    }
    arena[row(who, position)] = history[who][position] = value;
  };
  for (std::uint64_t i = 1; i <= 200; ++i) {
    const std::uint64_t what = history.empty() ? 0 : prng.below(5);
    auto chosen = history.begin();
    if (!history.empty()) std::advance(chosen, static_cast<std::ptrdiff_t>(prng.below(history.size())));
    if (what == 0) {
      if (!tables.create(id(i), static_cast<std::int64_t>(1 + prng.below(300)))) continue;
      history[i].resize(1);
      write(i, 0, i);
    } else if (what == 1) {
      const std::size_t kept = prng.below(chosen->second.size() + 1);
      tables.fork(id(chosen->first), id(i), static_cast<std::int64_t>(kept));
      history[i].assign(chosen->second.begin(), chosen->second.begin() + static_cast<std::ptrdiff_t>(kept));
    } else if (what <= 3) {
      const std::size_t position = prng.below(chosen->second.size() + 1);
      const auto needed = static_cast<std::int64_t>(position + 1);
      if (!tables.grow(id(chosen->first), needed)) continue;
      if (position == chosen->second.size()) chosen->second.push_back(arena[row(chosen->first, position)]);
      write(chosen->first, position, i);
    } else {
      tables.free(id(chosen->first));
      history.erase(chosen);
    }
    for (const auto& [who, values] : history)
      for (std::size_t p = 0; p < values.size(); ++p) RC_ASSERT(arena[row(who, p)] == values[p]);
  }
  while (!history.empty()) {
    tables.free(id(history.begin()->first));
    history.erase(history.begin());
  }
  RC_ASSERT(tables.allocator().free() == total);
}

}  // namespace
}  // namespace trimtab::kv
