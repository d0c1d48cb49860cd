#include "text/bpe.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>

#include "base/prng.h"

namespace trimtab::text {
namespace {

using Pairs = std::map<std::pair<std::int32_t, std::int32_t>, MergeTable::Merge>;

/// The definition: while any pair merges, merge the leftmost of lowest rank.
std::vector<std::int32_t> merged_by_definition(const Pairs& pairs, std::vector<std::int32_t> symbols) {
  while (true) {
    std::size_t best = symbols.size();
    std::uint32_t rank = UINT32_MAX;
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto found = pairs.find({symbols[i], symbols[i + 1]});
      if (found != pairs.end() && found->second.rank < rank) {
        best = i;
        rank = found->second.rank;
      }
    }
    if (best == symbols.size()) return symbols;
    symbols[best] = pairs.at({symbols[best], symbols[best + 1]}).merged;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

/// A random vocabulary over `letters` symbols: each merge joins two tokens that exist already.
Pairs random_merges(base::Prng& prng, int letters, int merges) {
  Pairs pairs;
  std::int32_t next = letters;
  for (std::uint32_t rank = 0; rank < static_cast<std::uint32_t>(merges); ++rank) {
    const auto left = static_cast<std::int32_t>(prng.below(static_cast<std::uint64_t>(next)));
    const auto right = static_cast<std::int32_t>(prng.below(static_cast<std::uint64_t>(next)));
    if (pairs.emplace(std::pair{left, right}, MergeTable::Merge{rank, next}).second) ++next;
  }
  return pairs;
}

std::vector<std::int32_t> merged(const Pairs& pairs, std::vector<std::int32_t> symbols) {
  MergeTable table(pairs.size());
  for (const auto& [pair, merge] : pairs) table.add(pair.first, pair.second, merge);
  symbols.resize(merge_word(table, symbols));
  return symbols;
}

RC_GTEST_PROP(MergeWord, EqualsTheDefinitionForShortAndLongWords, (std::uint64_t seed)) {
  base::Prng prng(seed);
  const int letters = 1 + static_cast<int>(prng.below(4));  // few letters: many pairs merge
  const Pairs pairs = random_merges(prng, letters, 60);
  const std::size_t size = prng.below(4 * kLongWord);
  std::vector<std::int32_t> word(size);
  for (auto& symbol : word) {
    symbol =
        prng.below(20) == 0 ? -1 : static_cast<std::int32_t>(prng.below(static_cast<std::uint64_t>(letters)));
  }
  RC_ASSERT(merged(pairs, word) == merged_by_definition(pairs, word));
}

TEST(MergeWord, LowestRankFirstThenLeftmost) {
  // a=0 b=1 c=2; "bc" ranks before "ab": abc becomes a+bc, aab... has only ab.
  const Pairs pairs{{{1, 2}, {0, 10}}, {{0, 1}, {1, 11}}, {{0, 0}, {2, 12}}};
  EXPECT_EQ(merged(pairs, {0, 1, 2}), (std::vector<std::int32_t>{0, 10}));
  EXPECT_EQ(merged(pairs, {0, 0, 1}), (std::vector<std::int32_t>{0, 11}));
  EXPECT_EQ(merged(pairs, {0, 0, 0}), (std::vector<std::int32_t>{12, 0}));
}

TEST(MergeWord, BytesWithoutATokenKeepTheirNeighboursApart) {
  const Pairs pairs{{{0, 0}, {0, 1}}};
  EXPECT_EQ(merged(pairs, {0, -1, 0, 0}), (std::vector<std::int32_t>{0, -1, 1}));
  EXPECT_EQ(merged(pairs, {-1, -1, -1}), (std::vector<std::int32_t>{-1, -1, -1}));
  EXPECT_EQ(merged(pairs, {}), (std::vector<std::int32_t>{}));
}

TEST(MergeTable, TheFirstRankOfAPairCounts) {
  MergeTable table(4);
  table.add(1, 2, {5, 7});
  table.add(1, 2, {6, 8});
  EXPECT_EQ(table.find(1, 2).merged, 7);
  EXPECT_EQ(table.find(2, 1).rank, UINT32_MAX);
}

}  // namespace
}  // namespace trimtab::text
