#include "policy/experts/dispatch/share_table.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <numeric>

#include "policy/experts/dispatch/made_layers.h"
#include "policy/experts/dispatch/replica.h"
#include "policy/experts/dispatch/tables.h"

namespace trimtab::experts {
namespace {

struct Made {
  Shape shape;
  SlotMap map;
  std::vector<std::int64_t> counts;
  ShareSolver solver;
  ShareTable table;
};

Made draw(std::int32_t parts) {
  const auto ranks = *rc::gen::inRange(1, 17);
  const auto width = *rc::gen::inRange(1, 6);
  const auto experts = *rc::gen::inRange(width, ranks * width + 1);
  const Shape shape{.experts = experts, .slots = ranks * width, .ranks = ranks};
  base::Prng prng(*rc::gen::arbitrary<std::uint64_t>());
  SlotMap map = made::shuffled_map(shape, prng, 60);
  std::vector<std::int64_t> counts = made::counts(prng, made::popularity(prng, experts, 1.5, 4000));
  auto solver = *ShareSolver::make(shape, map);
  RC_ASSERT(solver.solve(std::span<const std::int64_t>(counts)).has_value());
  auto table = *ShareTable::make(shape, map, 0, parts);
  table.set(solver);
  return {shape, map, counts, std::move(solver), std::move(table)};
}

RC_GTEST_PROP(ShareTable, PartsAreWithinOneOfTheSharesAndAddUp, ()) {
  const Made made = draw(*rc::gen::elementOf(std::vector<std::int32_t>{2, 16, 64, 256}));
  for (std::int32_t e = 0; e < made.shape.experts; ++e) {
    const auto row = made.table.parts_of(e);
    RC_ASSERT(std::accumulate(row.begin(), row.end(), 0) == made.table.parts());
    const auto slots = made.table.slots_of(e);
    for (std::size_t k = 0; k < slots.size(); ++k) {
      RC_ASSERT(std::abs(row[k] - made.solver.share(slots[k]) * made.table.parts()) < 1 + 1e-9);
    }
  }
}

// Every token goes somewhere, whatever the count; a rank's parts are its share rounded up or down; the rule
// by token and the rule by count agree.
RC_GTEST_PROP(ShareTable, WholeTokensAreConservedForEveryCount, ()) {
  const Made made = draw(64);
  std::vector<std::int64_t> out(static_cast<std::size_t>(made.table.copies_max()));
  const auto e = *rc::gen::inRange(0, made.shape.experts);
  const auto rank = *rc::gen::inRange(0, made.shape.ranks);
  for (std::int64_t tokens = 0; tokens < 130; ++tokens) {
    made.table.split(e, rank, tokens, out);
    RC_ASSERT(std::accumulate(out.begin(), out.end(), std::int64_t{0}) == tokens);
    const auto slots = made.table.slots_of(e);
    std::vector<std::int64_t> counted(out.size());
    for (std::int64_t i = 0; i < tokens; ++i) {
      const auto at = std::ranges::find(slots, made.table.slot_of(e, rank, i, tokens));
      RC_ASSERT(at != slots.end());
      ++counted[static_cast<std::size_t>(at - slots.begin())];
    }
    RC_ASSERT(counted == out);
    for (std::size_t k = 0; k < out.size(); ++k) {
      const double exact = static_cast<double>(tokens * made.table.parts_of(e)[k]) / made.table.parts();
      RC_ASSERT(std::abs(static_cast<double>(out[k]) - exact) < 1);
    }
  }
  for (const std::int64_t tokens : {std::int64_t{1} << 20, kTokensMax}) {
    made.table.split(e, rank, tokens, out);
    RC_ASSERT(std::accumulate(out.begin(), out.end(), std::int64_t{0}) == tokens);
  }
}

// The bound of the class comment: peak of the shares + per replicated copy (its expert's tokens / parts +
// source ranks).
RC_GTEST_PROP(ShareTable, PeakOfWholeTokensKeepsItsBound, ()) {
  const Made made = draw(64);
  base::Prng prng(*rc::gen::arbitrary<std::uint64_t>());
  std::vector<std::int64_t> carried(static_cast<std::size_t>(made.shape.ranks));
  std::vector<std::int64_t> out(static_cast<std::size_t>(made.table.copies_max()));
  for (std::int32_t e = 0; e < made.shape.experts; ++e) {
    std::vector<std::int64_t> sent(carried.size());
    for (std::int64_t i = 0; i < made.counts[static_cast<std::size_t>(e)]; ++i)
      ++sent[prng.below(sent.size())];
    for (std::int32_t rank = 0; rank < made.shape.ranks; ++rank) {
      made.table.split(e, rank, sent[static_cast<std::size_t>(rank)], out);
      const auto slots = made.table.slots_of(e);
      for (std::size_t k = 0; k < slots.size(); ++k) {
        carried[static_cast<std::size_t>(made.shape.rank_of_slot(slots[k]))] += out[k];
      }
    }
  }
  const ShareFlow& flow = made.solver.flow();
  for (std::int32_t rank = 0; rank < made.shape.ranks; ++rank) {
    double bound = static_cast<double>(flow.peak()) * flow.unit_tokens();
    for (std::int32_t i = 0; i < made.shape.slots_per_rank(); ++i) {
      const std::int32_t e = made.map[static_cast<std::size_t>(rank * made.shape.slots_per_rank() + i)];
      if (flow.hosts(e) > 1) {
        bound += static_cast<double>(made.counts[static_cast<std::size_t>(e)]) / 64 + made.shape.ranks;
      }
    }
    RC_ASSERT(static_cast<double>(carried[static_cast<std::size_t>(rank)]) <= bound + 1e-6);
  }
}

// The phases spread the ranks' roundings: with one token a rank and half shares, half the ranks choose each.
TEST(ShareTable, PhasesSpreadSingleTokens) {
  const Shape shape{.experts = 64, .slots = 128, .ranks = 64};
  SlotMap map;
  for (std::int32_t slot = 0; slot < 128; ++slot) map.push_back(slot % 64);
  const auto table = *ShareTable::make(shape, map);
  for (std::int32_t e = 0; e < 64; ++e) {
    int first = 0;
    for (std::int32_t rank = 0; rank < 64; ++rank) first += table.slot_of(e, rank, 0, 1) == e ? 1 : 0;
    EXPECT_NEAR(first, 32, 2) << "expert " << e;
  }
}

TEST(ShareTable, PhaseIsThePublishedFraction) {
  for (std::int32_t rank : {0, 1, 63, 319}) {
    for (std::int32_t expert : {0, 1, 255, 1023}) {
      const double turn = (rank + 0.5) * 0.61803398874989485 + expert * 0.75487766624669276;
      EXPECT_NEAR(share_phase(rank, expert) / 16777216.0, turn - std::floor(turn), 1e-6);
    }
  }
}

TEST(ShareTable, Refusals) {
  const Shape shape{.experts = 2, .slots = 4, .ranks = 2};
  const SlotMap map = {0, 1, 0, 1};
  EXPECT_NE(ShareTable::make(shape, map, 0, 48).error().message.find("48 parts"), std::string::npos);
  EXPECT_NE(ShareTable::make(shape, map, 1).error().message.find("use at least 2"), std::string::npos);
  EXPECT_NE(ShareTable::make(shape, SlotMap{0, 0, 0, 0}).error().message.find("expert 1"), std::string::npos);
}

TEST(Replica, IsThePublishedFormula) {
  for (std::int64_t rank = 0; rank < 70; ++rank) {
    for (std::int64_t token = 0; token < 300; ++token) {
      for (std::int32_t copies = 1; copies < 9; ++copies) {
        ASSERT_EQ(replica_of(rank, token, copies), (rank + token * 23333) % copies);
      }
    }
  }
  EXPECT_EQ(replica_of(5, std::int64_t{1} << 60, 7),
            static_cast<std::int32_t>((static_cast<__int128>(std::int64_t{1} << 60) * 23333 + 5) % 7));
}

TEST(Tables, ByHand) {
  const Shape shape{.experts = 3, .slots = 4, .ranks = 2};
  const std::vector<std::int32_t> maps = {0, 1, 2, 0, 2, 1, 0, 2};
  const auto tables = *dispatch_tables(shape, maps, TableWidth::kTightest);
  EXPECT_EQ(tables.layers, 2);
  EXPECT_EQ(tables.copies_max, 2);
  EXPECT_EQ(tables.logical_count, (std::vector<std::int32_t>{2, 1, 1, 1, 1, 2}));
  EXPECT_EQ(tables.logical_to_physical, (std::vector<std::int32_t>{0, 3, 1, -1, 2, -1, 2, -1, 1, -1, 0, 3}));
  EXPECT_EQ(tables.physical_to_logical, maps);
  EXPECT_EQ(tables.slots_of(1, 2).size(), 2u);
  EXPECT_EQ(dispatch_tables(shape, maps, TableWidth::kEngine)->copies_max, 2);
  EXPECT_NE(dispatch_tables(shape, std::span(maps).first(7), TableWidth::kEngine).error().message.find("7"),
            std::string::npos);
  std::vector<std::int32_t> wrong = maps;
  wrong[5] = 3;
  EXPECT_NE(dispatch_tables(shape, wrong, TableWidth::kEngine).error().message.find("layer 1: slot 1"),
            std::string::npos);
}

RC_GTEST_PROP(Tables, AreInversesOfEachOther, ()) {
  const auto ranks = *rc::gen::inRange(1, 9), width = *rc::gen::inRange(1, 6);
  const auto experts = *rc::gen::inRange(width, ranks * width + 1);
  const Shape shape{.experts = experts, .slots = ranks * width, .ranks = ranks};
  base::Prng prng(*rc::gen::arbitrary<std::uint64_t>());
  std::vector<std::int32_t> maps;
  for (int layer = 0; layer < 3; ++layer) {
    const SlotMap map = made::shuffled_map(shape, prng, 40);
    maps.insert(maps.end(), map.begin(), map.end());
  }
  const auto tables = *dispatch_tables(shape, maps, TableWidth::kEngine);
  RC_ASSERT(tables.copies_max == shape.redundant() + 1);
  std::int64_t named = 0;
  for (std::int32_t layer = 0; layer < 3; ++layer) {
    for (std::int32_t e = 0; e < experts; ++e) {
      for (const std::int32_t slot : tables.slots_of(layer, e)) {
        RC_ASSERT(maps[static_cast<std::size_t>(layer * shape.slots + slot)] == e);
        ++named;
      }
    }
  }
  RC_ASSERT(named == 3 * shape.slots);
}

}  // namespace
}  // namespace trimtab::experts
