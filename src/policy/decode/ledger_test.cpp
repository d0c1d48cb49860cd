#include "policy/decode/ledger.h"

#include <gtest/gtest.h>

namespace trimtab::policy {
namespace {

constexpr DecodeCapacity kCapacity{TokenCount{10'000}, 4, 1000};
constexpr RankId kRank{model::EngineId{1}, 0};
constexpr RankId kOther{model::EngineId{1}, 1};

RequestId id(std::uint64_t value) { return RequestId{value}; }
TokenCount tokens(std::int64_t value) { return TokenCount{value}; }
Nanos at(std::int64_t value) { return Nanos{value}; }

class DecodeLedgerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ledger.add_rank(kRank, kCapacity);
    ledger.add_rank(kOther, kCapacity);
  }
  void run(std::uint64_t request, std::int64_t length, std::int64_t now) {
    ledger.admitted(id(request), kRank, tokens(length), at(now));
    ledger.grew(id(request), 0, at(now));  // the rank has shown a sign of it
  }
  void expect_load(std::int64_t running, std::int64_t kv) {
    EXPECT_EQ(ledger.load(kRank), (DecodeLoad{kRank, running, tokens(kv)}));
    EXPECT_EQ(ledger.totals().running, running);
    EXPECT_EQ(ledger.totals().kv, kv);
  }
  DecodeReport sums(std::int64_t running, std::int64_t kv, std::int64_t as_of) {
    DecodeReport report;
    report.rank = kRank;
    report.running = running;
    report.kv = tokens(kv);
    report.as_of = at(as_of);
    return report;
  }
  DecodeReport list(std::vector<DecodeReport::Running> requests, std::int64_t as_of) {
    DecodeReport report = sums(0, 0, as_of);
    report.listed = true;
    report.requests = std::move(requests);
    return report;
  }
  DecodeLedger ledger{DecodeLedger::Scope::kFleet, 128, Nanos{1'000}};
};

TEST_F(DecodeLedgerTest, CountsReservationsAtOnceAndForgetsThemWhole) {
  ledger.reserve(id(1), kRank, tokens(1'000), at(0), 0);
  expect_load(1, 1'000);
  EXPECT_EQ(ledger.free_blocks(kRank), 78 - 8);
  ledger.admitted(id(1), kRank, tokens(1'001), at(1));  // one token more than was reserved
  expect_load(1, 1'001);
  ledger.grew(id(1), 23, at(2));
  expect_load(1, 1'024);
  EXPECT_EQ(ledger.free_blocks(kRank), 78 - 8);
  ledger.grew(id(1), 1, at(3));
  EXPECT_EQ(ledger.free_blocks(kRank), 78 - 9);
  EXPECT_TRUE(ledger.ended(id(1), at(4)));
  EXPECT_FALSE(ledger.ended(id(1), at(4)));
  expect_load(0, 0);
  EXPECT_EQ(ledger.free_blocks(kRank), 78);
  EXPECT_EQ(ledger.requests_known(), 0u);
}

TEST_F(DecodeLedgerTest, AReservationElsewhereIsGivenUpWhenTheKvArrivesHere) {
  ledger.reserve(id(1), kOther, tokens(1'000), at(0), 0);
  ledger.admitted(id(1), kRank, tokens(1'000), at(1));
  EXPECT_EQ(ledger.load(kOther).running, 0);
  EXPECT_EQ(ledger.where(id(1)), kRank);
}

TEST_F(DecodeLedgerTest, ALostRankGivesItsRequestsBackByIdAndLeavesNothing) {
  for (const std::uint64_t request : {7, 3, 5}) run(request, 100, 0);
  EXPECT_EQ(ledger.remove_rank(kRank), (std::vector{id(3), id(5), id(7)}));
  EXPECT_EQ(ledger.totals().kv, 0);
  EXPECT_EQ(ledger.requests_known(), 0u);
  EXPECT_FALSE(ledger.ended(id(3), at(1)));
  ledger.report(sums(3, 300, 2));  // a late word of the lost rank
  ledger.add_rank(kRank, kCapacity);
  expect_load(0, 0);
}

TEST_F(DecodeLedgerTest, AClosedRankKeepsItsRequestsButLeavesTheTotals) {
  run(1, 500, 0);
  ledger.set_open(kRank, false);
  EXPECT_EQ(ledger.totals().ranks, 1);
  EXPECT_EQ(ledger.totals().kv, 0);
  EXPECT_FALSE(ledger.has_room(kRank, tokens(1)));
  ledger.grew(id(1), 10, at(1));
  EXPECT_EQ(ledger.load(kRank).kv, tokens(510));
  ledger.set_open(kRank, true);
  expect_load(1, 510);
}

TEST_F(DecodeLedgerTest, RoomKeepsTheHeadroomOfEveryRequestFree) {
  // 10,000 - 3 * 128 = 9,616 for three requests.
  run(1, 3'000, 0);
  run(2, 3'000, 0);
  EXPECT_TRUE(ledger.has_room(kRank, tokens(3'616)));
  EXPECT_FALSE(ledger.has_room(kRank, tokens(3'617)));
  run(3, 10, 0);
  run(4, 10, 0);
  EXPECT_FALSE(ledger.has_room(kRank, tokens(1))) << "four run, which is max_running";
  EXPECT_TRUE(ledger.could_ever_fit(tokens(9'872)));
  EXPECT_FALSE(ledger.could_ever_fit(tokens(9'873)));
}

TEST_F(DecodeLedgerTest, AStaleReportTakesNothingBackThatHappenedSince) {
  run(1, 1'000, 10);
  run(2, 2'000, 20);
  ledger.reserve(id(3), kRank, tokens(500), at(25), 0);
  EXPECT_TRUE(ledger.ended(id(1), at(30)));
  // True at 15: the rank ran request 1 alone. Both sums agree with what was known then, so nothing changes.
  ledger.report(sums(1, 1'000, 15));
  expect_load(2, 2'500);
  // True at 22: both ran, request 3 had no token yet.
  ledger.report(sums(2, 3'000, 22));
  expect_load(2, 2'500);
  // An older one that arrives late changes nothing either, whatever it says.
  ledger.report(sums(9, 9'000, 21));
  expect_load(2, 2'500);
}

TEST_F(DecodeLedgerTest, SumsRevealTheLoadOfOthersAndItGoesWithTheNextReport) {
  run(1, 1'000, 10);
  ledger.report(sums(3, 4'000, 20));
  expect_load(3, 4'000);
  EXPECT_TRUE(ledger.ended(id(1), at(25)));
  expect_load(2, 3'000);
  ledger.report(sums(0, 0, 30));
  expect_load(0, 0);
}

TEST_F(DecodeLedgerTest, SumsBelowOurOwnNeverMakeALoadNegative) {
  run(1, 1'000, 10);
  ledger.report(sums(0, 0, 20));
  expect_load(0, 0);
  EXPECT_TRUE(ledger.ended(id(1), at(30)));
  expect_load(0, 0);
  ledger.report(sums(0, 0, 40));
  ledger.reserve(id(2), kRank, tokens(70), at(50), 0);
  expect_load(1, 70);
}

TEST_F(DecodeLedgerTest, AListDropsMissedEndsAddsMissedTokensAndShowsOthers) {
  run(1, 1'000, 10);
  run(2, 2'000, 10);
  ledger.reserve(id(3), kRank, tokens(300), at(15), 0);
  ledger.report(list({{id(2), tokens(2'050)}, {id(77), tokens(600)}}, 20));
  EXPECT_EQ(ledger.ends_missed(), 1);
  EXPECT_FALSE(ledger.where(id(1)));
  expect_load(3, 2'050 + 300 + 600);  // request 3 is only reserved: its absence proves nothing
  ledger.grew(id(2), 10, at(25));
  ledger.report(list({{id(2), tokens(2'055)}}, 30));  // older tokens than ours: ours stand
  expect_load(2, 2'060 + 300);
}

TEST_F(DecodeLedgerTest, AListThatStillNamesAnEndedRequestDoesNotReviveIt) {
  run(1, 1'000, 10);
  EXPECT_TRUE(ledger.ended(id(1), at(30)));
  ledger.report(list({{id(1), tokens(990)}}, 20));
  expect_load(0, 0);
  // Younger than the end, the rank insists: then something runs there that is not ours any more.
  ledger.report(list({{id(1), tokens(1'010)}}, 40));
  expect_load(1, 1'010);
}

TEST_F(DecodeLedgerTest, WhatASilentRankOnceSaidIsForgotten) {
  run(1, 1'000, 10);
  ledger.report(sums(3, 4'000, 20));
  ledger.expire(at(1'019));
  expect_load(3, 4'000);
  ledger.report(sums(2, 3'500, 600));  // younger: it counts from here
  ledger.expire(at(1'020));
  expect_load(2, 3'500);
  ledger.expire(at(1'600));
  expect_load(1, 1'000);
  ledger.report(sums(2, 1'500, 1'700));
  EXPECT_EQ(ledger.remove_rank(kRank).size(), 1u);
  ledger.expire(at(9'000));  // and nothing is left of a rank that went
  EXPECT_EQ(ledger.totals().kv, 0);
}

TEST_F(DecodeLedgerTest, ProgrammerErrorsAreCaught) {
  run(1, 100, 0);
  EXPECT_DEATH(ledger.reserve(id(1), kRank, tokens(5), at(0), 0), "request 1 has a decode place already");
  EXPECT_DEATH(ledger.admitted(id(1), kRank, tokens(100), at(1)), "admitted twice");
  EXPECT_DEATH(ledger.reserve(id(2), kRank, tokens(0), at(0), 0), "KV of request 2: 0");
  EXPECT_DEATH(ledger.add_rank(kRank, kCapacity), "added twice");
  EXPECT_DEATH(ledger.load(RankId{model::EngineId{9}, 9}), "is not known");
  EXPECT_DEATH(ledger.add_rank(RankId{}, {TokenCount{0}, 4, 1000}), "capacity of decode rank");
}

}  // namespace
}  // namespace trimtab::policy
