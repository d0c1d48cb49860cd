#include "shadow/decode_replay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trimtab::shadow {
namespace {

using base::Nanos;
using cluster::RankId;
using cluster::Record;
using cluster::RequestId;
using cluster::TokenCount;
using model::EngineId;

policy::DecodeConfig by(std::string name) {
  policy::DecodeConfig config;
  config.policy = std::move(name);
  return config;
}

const policy::DecodeCapacity kCapacity{TokenCount{1 << 20}, 64};

/// Four ranks, and 40 requests that were all placed on rank 0 or 1 in turn; each runs for a second.
std::vector<Record> lopsided() {
  std::vector<Record> log;
  for (std::uint32_t r = 0; r < 4; ++r) {
    log.push_back({RequestId{0}, Nanos{0},
                   cluster::MembershipRecord{{model::Role::kDecode, EngineId{0}, r}, true, "joined"}});
  }
  for (std::uint64_t i = 1; i <= 40; ++i) {
    const Nanos at{static_cast<std::int64_t>(i) * 100'000'000};
    const RankId rank{EngineId{0}, static_cast<std::uint32_t>(i % 2)};
    cluster::DecodeRecord decision;
    decision.winner = cluster::RankLoad{rank, 0, TokenCount{0}};
    decision.request_kv = TokenCount{1'000};
    log.push_back({RequestId{i}, at, decision});
    log.push_back({RequestId{i}, at, cluster::DecodeStartRecord{rank, TokenCount{1'001}, TokenCount{100}}});
    if (i > 10) log.push_back({RequestId{i - 10}, at, cluster::FinishedRecord{}});
  }
  return log;
}

DecodeReplayReport replay(const std::string& policy, const std::vector<Record>& log) {
  DecodeReplay run = DecodeReplay::make(by(policy), kCapacity).value();
  for (const Record& record : log) run.record(record);
  return run.report();
}

TEST(DecodeReplay, ABetterPolicyWouldHaveBeenMoreEven) {
  const DecodeReplayReport report = replay("waterline", lopsided());
  EXPECT_EQ(report.decisions, 40U);
  EXPECT_GT(report.changed, 15U);
  EXPECT_EQ(report.held, 0U);
  EXPECT_GT(report.recorded.running_peak_over_mean, 1.9);
  EXPECT_LT(report.replayed.running_peak_over_mean, 1.4);
  ASSERT_FALSE(report.changes.empty());
  EXPECT_THAT(report.changes[0].reason, testing::HasSubstr("rank"));
  EXPECT_EQ(report.span, Nanos{4'000'000'000});
}

TEST(DecodeReplay, TheSamePolicyOnItsOwnLogChangesNothing) {
  // What round robin itself would place: turns over four ranks.
  std::vector<Record> log = lopsided();
  std::uint32_t turn = 0;
  for (Record& record : log) {
    if (auto* decision = std::get_if<cluster::DecodeRecord>(&record.body)) {
      decision->winner->rank.rank = turn++ % 4;
    } else if (auto* start = std::get_if<cluster::DecodeStartRecord>(&record.body)) {
      start->rank.rank = (turn + 3) % 4;
    }
  }
  const DecodeReplayReport report = replay("round_robin", log);
  EXPECT_EQ(report.changed, 0U);
  EXPECT_EQ(report.recorded.kv_peak_over_mean, report.replayed.kv_peak_over_mean);
}

TEST(DecodeReplay, TokensGrowWhatRunsAndNothingElse) {
  DecodeReplay run = DecodeReplay::make(by("waterline"), kCapacity).value();
  for (const Record& record : lopsided()) run.record(record);
  const double before = run.report().recorded.kv_peak_over_mean;
  for (std::int64_t i = 0; i < 5'000; ++i) run.token(RequestId{40}, Nanos{4'000'000'000 + i * 1'000'000});
  run.token(RequestId{1}, Nanos{10'000'000'000});  // it ended long ago
  EXPECT_GT(run.report().recorded.kv_peak_over_mean, before);
}

Record member(std::uint32_t group, std::uint32_t rank, bool serving, std::string reason,
              std::int64_t at = 0) {
  return {
      RequestId{0}, Nanos{at},
      cluster::MembershipRecord{{model::Role::kDecode, EngineId{group}, rank}, serving, std::move(reason)}};
}

void place(DecodeReplay& run, std::uint64_t id, RankId rank, std::int64_t at) {
  cluster::DecodeRecord decision;
  decision.winner = cluster::RankLoad{rank, 0, TokenCount{0}};
  decision.request_kv = TokenCount{1'000};
  run.record({RequestId{id}, Nanos{at}, decision});
  run.record({RequestId{id}, Nanos{at}, cluster::DecodeStartRecord{rank, TokenCount{1'001}, TokenCount{9}}});
}

/// The cluster names only the rank that completes a group; its peers joined before, quietly.
TEST(DecodeReplay, AGroupIsKnownOnceItIsWhole) {
  DecodeReplay run = DecodeReplay::make(by("total_requests"), kCapacity).value();
  for (std::uint32_t r = 0; r < 4; ++r) run.record(member(0, r, r == 3, "joined"));
  for (std::uint64_t i = 1; i <= 4; ++i) place(run, i, {EngineId{0}, 3}, static_cast<std::int64_t>(i));
  run.record({RequestId{9}, Nanos{1'000'000'000}, cluster::FinishedRecord{}});
  const DecodeReplayReport report = run.report();
  EXPECT_EQ(report.changed, 3U) << "all four on rank 3; one each would have been even";
  EXPECT_NEAR(report.recorded.running_peak_over_mean, 4, 0.01);
  EXPECT_NEAR(report.replayed.running_peak_over_mean, 1, 0.01);
}

TEST(DecodeReplay, ALostGroupIsNotChosenAndWhoRunsElsewhereRunsOn) {
  DecodeReplay run = DecodeReplay::make(by("total_requests"), kCapacity).value();
  for (std::uint32_t g = 0; g < 2; ++g)
    for (std::uint32_t r = 0; r < 2; ++r) run.record(member(g, r, r == 1, "joined"));
  for (std::uint64_t i = 1; i <= 4; ++i) place(run, i, {EngineId{1}, 0}, static_cast<std::int64_t>(i));
  EXPECT_EQ(run.report().changed, 3U);
  run.record(member(0, 1, false, "lost; its group is out until every rank has joined again", 10));
  for (std::uint64_t i = 5; i <= 8; ++i) place(run, i, {EngineId{1}, 0}, static_cast<std::int64_t>(10 + i));
  for (const auto& change : run.report().changes) {
    if (change.at > Nanos{10}) {
      EXPECT_EQ(change.replayed.engine, EngineId{1});
    }
  }
  EXPECT_EQ(run.report().decisions, 8U);
  for (std::uint64_t i = 1; i <= 8; ++i) run.record({RequestId{i}, Nanos{100}, cluster::FinishedRecord{}});
  run.record(member(0, 0, false, "joined", 200));
  run.record(member(0, 1, true, "joined", 200));
  place(run, 9, {EngineId{1}, 0}, 300);
  place(run, 10, {EngineId{1}, 0}, 300);
  EXPECT_EQ(run.report().changes.back().replayed.engine, EngineId{0}) << "it takes requests again";
}

TEST(DecodeReplay, ADrainingGroupIsNotChosen) {
  DecodeReplay run = DecodeReplay::make(by("total_requests"), kCapacity).value();
  for (std::uint32_t g = 0; g < 2; ++g) run.record(member(g, 0, true, "joined"));
  run.record(member(0, 0, true, "draining: no new work", 1));
  for (std::uint64_t i = 1; i <= 3; ++i) place(run, i, {EngineId{1}, 0}, static_cast<std::int64_t>(1 + i));
  EXPECT_EQ(run.report().changed, 0U);
  run.record(member(0, 0, true, "takes work again", 5));
  place(run, 4, {EngineId{1}, 0}, 6);
  EXPECT_EQ(run.report().changed, 1U);
}

TEST(DecodeReplay, UnknownPoliciesAreRefused) {
  EXPECT_THAT(DecodeReplay::make(by("waterlin"), kCapacity).error().message, testing::HasSubstr("waterline"));
}

}  // namespace
}  // namespace trimtab::shadow
