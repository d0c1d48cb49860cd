#include "agents/drift_audits.h"

#include <gtest/gtest.h>

#include <cmath>

namespace trimtab::agents {
namespace {

using base::Nanos;
using base::operator""_s;
using model::EngineId;
using model::RankId;
using model::RequestId;

const std::vector<float> kTruth = {1, 3, 1, 3};    // standard deviation 1
const std::vector<float> kDrifted = {1, 3, 3, 3};  // off by 1, at most 2
const std::vector<float> kOther = {3, 1, 1, 1};    // another most likely token

class DriftAuditsTest : public ::testing::Test {
 protected:
  /// Two engines of two ranks, with these requests at each rank.
  cluster::ClusterStatus cluster(std::vector<std::uint32_t> requests = {0, 0, 0, 0}) const {
    cluster::ClusterStatus status;
    for (std::uint32_t e = 0; e < 2; ++e) {
      cluster::EngineStatus engine;
      engine.engine = EngineId{e};
      engine.serving = true;
      for (std::uint32_t r = 0; r < 2; ++r) {
        cluster::RankStatus rank;
        rank.place = {model::Role::kPrefill, EngineId{e}, r};
        rank.heard = true;
        rank.blocks_total = 16;
        rank.requests = requests[2 * e + r];
        engine.ranks.push_back(rank);
      }
      status.engines.push_back(engine);
    }
    return status;
  }
  static DriftAudit audit(std::uint64_t of, std::vector<float> logits = kDrifted, std::size_t tokens = 1000) {
    DriftAudit made;
    made.of = RequestId{of};
    made.tokens.resize(tokens);
    made.blocks = 7;
    made.logits = std::move(logits);
    return made;
  }
  static Report done(RequestId id, std::vector<float> logits = kTruth, std::uint32_t blocks = 7) {
    Report report;
    report.event = cluster::PrefillDone{
        {EngineId{0}, 0},          id, false, base::TokenCount{384}, base::TokenCount{616},
        model::FinishReason::kNone};
    report.logits = std::move(logits);
    report.fetched_blocks = blocks;
    return report;
  }
  std::uint64_t dropped(DriftAudits::Drop why) const {
    return audits.totals().dropped[static_cast<std::size_t>(why)];
  }
  /// The next one runs and is answered so.
  void answer(std::vector<float> truth, std::uint32_t blocks = 7) {
    const RequestId id{++runs};
    ASSERT_TRUE(audits.next(cluster(), 1_s, id));
    audits.on_done(done(id, std::move(truth), blocks), 2_s);
    EXPECT_FALSE(audits.running());
  }

  obs::Registry registry;
  DriftAudits audits{1000, registry};
  std::uint64_t runs = 100;
};

TEST_F(DriftAuditsTest, TheShareIsDrawnByIdAndAlwaysTheSame) {
  const DriftAudits tenth(100, registry), none(0, registry);
  std::vector<std::uint64_t> taken;
  for (std::uint64_t id = 1; id <= 10'000; ++id) {
    EXPECT_TRUE(audits.chosen(RequestId{id}));
    EXPECT_FALSE(none.chosen(RequestId{id}));
    if (tenth.chosen(RequestId{id})) taken.push_back(id);
  }
  EXPECT_NEAR(static_cast<double>(taken.size()), 1000, 120);  // four standard deviations of 30
  for (const std::uint64_t id : taken) EXPECT_TRUE(DriftAudits(100, registry).chosen(RequestId{id}));
}

TEST_F(DriftAuditsTest, FiguresAreThoseOfTheTwoRows) {
  audits.add(audit(1), {});
  audits.add(audit(2, kOther), {});
  const auto start = audits.next(cluster(), 1_s, RequestId{100});
  ASSERT_TRUE(start);
  EXPECT_EQ(start->audit.of, RequestId{1});
  EXPECT_FALSE(audits.next(cluster(), 1_s, RequestId{101})) << "one at a time";
  const auto entry = audits.on_done(done(RequestId{100}), 3_s);
  ASSERT_TRUE(entry);
  EXPECT_EQ(entry->request, RequestId{1});
  EXPECT_EQ(entry->at, 3_s);
  EXPECT_DOUBLE_EQ(entry->relative, 1);
  EXPECT_DOUBLE_EQ(entry->largest, 2);
  EXPECT_EQ(entry->same_token, 1);
  EXPECT_EQ(entry->computed_tokens, 616U);
  answer(kTruth);
  const auto& totals = audits.totals();
  EXPECT_EQ(totals.done, 2U);
  EXPECT_EQ(totals.same_token, 1U);
  EXPECT_DOUBLE_EQ(totals.relative_max, std::sqrt(3));  // off by 2, 2, 0, 2
  EXPECT_DOUBLE_EQ(totals.relative_sum, 1 + std::sqrt(3));
  EXPECT_DOUBLE_EQ(totals.largest_max, 2);
  EXPECT_EQ(totals.computed_tokens, 2 * 616U);
  EXPECT_EQ(registry.value("trimtab_window_drift_audits_total", {{"same_token", "yes"}}), 1);
  EXPECT_EQ(registry.value("trimtab_window_drift_audits_total", {{"same_token", "no"}}), 1);
  EXPECT_EQ(registry.value("trimtab_window_drift_tokens_total"), 2 * 616);
  EXPECT_DOUBLE_EQ(registry.value("trimtab_window_drift_ratio_max"), std::sqrt(3));
}

TEST_F(DriftAuditsTest, RunsWhereNobodyWaits) {
  audits.add(audit(1), {});
  cluster::ClusterStatus busy = cluster();
  busy.queued = 1;
  EXPECT_FALSE(audits.next(busy, 1_s, RequestId{100}));
  busy.queued = 0;
  busy.matching = 1;
  EXPECT_FALSE(audits.next(busy, 1_s, RequestId{100}));
  EXPECT_FALSE(audits.next(cluster({0, 1, 1, 0}), 1_s, RequestId{100})) << "an engine's ranks step together";
  cluster::ClusterStatus gone = cluster({1, 0, 0, 0});
  gone.engines[1].serving = false;
  EXPECT_FALSE(audits.next(gone, 1_s, RequestId{100}));
  const auto start = audits.next(cluster({1, 0, 0, 0}), 1_s, RequestId{100});
  ASSERT_TRUE(start);
  EXPECT_EQ(start->rank, (RankId{EngineId{1}, 0}));
}

TEST_F(DriftAuditsTest, APromptThatDoesNotFitIsNotSent) {
  audits.add(audit(1, kDrifted, 16 * 128 + 1), {});
  EXPECT_FALSE(audits.next(cluster(), 1_s, RequestId{100}));
  audits.add(audit(2, kDrifted, 16 * 128), {});
  EXPECT_FALSE(audits.next(cluster(), 1_s, RequestId{101})) << "its turn comes when the first is too old";
  const Nanos later = DriftAudits::kAgeMax + 1_s;
  audits.add(audit(3), later);
  ASSERT_TRUE(audits.next(cluster(), later, RequestId{102}));
  EXPECT_EQ(dropped(DriftAudits::Drop::kOld), 2U);
}

TEST_F(DriftAuditsTest, YieldsToARequestOfItsEngineAndRunsAgain) {
  audits.add(audit(1), {});
  ASSERT_TRUE(audits.next(cluster(), 1_s, RequestId{100}));
  const cluster::Place place{model::Role::kPrefill, EngineId{0}, 0};
  EXPECT_TRUE(audits.owns(RequestId{100}, place));
  EXPECT_FALSE(audits.owns(RequestId{100}, {model::Role::kPrefill, EngineId{0}, 1}));
  EXPECT_FALSE(audits.owns(RequestId{1}, place)) << "the request itself is not the audit's";
  EXPECT_FALSE(audits.yield(EngineId{1}, 1_s)) << "another engine's ranks do not step with it";
  EXPECT_FALSE(audits.yield(std::nullopt, 1_s));
  const auto run = audits.yield(EngineId{0}, 1_s);
  ASSERT_TRUE(run);
  EXPECT_EQ(run->id, RequestId{100});
  EXPECT_FALSE(audits.yield(EngineId{0}, 1_s)) << "aborted once";
  audits.on_failed();  // said before the abort arrived
  EXPECT_TRUE(audits.running());
  audits.on_released();
  EXPECT_EQ(audits.waiting(), 1U);
  answer(kTruth);
  EXPECT_EQ(audits.totals().done, 1U);
}

TEST_F(DriftAuditsTest, AnAnswerThatCrossesTheAbortCountsOnce) {
  audits.add(audit(1), {});
  ASSERT_TRUE(audits.next(cluster(), 1_s, RequestId{100}));
  ASSERT_TRUE(audits.yield(EngineId{0}, 1_s));
  EXPECT_TRUE(audits.on_done(done(RequestId{100}), 2_s));
  EXPECT_FALSE(audits.on_done(done(RequestId{100}), 2_s)) << "a rank that says it twice";
  EXPECT_TRUE(audits.running()) << "what it answers to the abort is still the audit's";
  audits.on_released();
  EXPECT_FALSE(audits.running());
  EXPECT_EQ(audits.waiting(), 0U);
  EXPECT_EQ(audits.totals().done, 1U);
}

TEST_F(DriftAuditsTest, BoundedInNumberAgeAndTries) {
  for (std::uint64_t id = 1; id <= DriftAudits::kHeldMax; ++id) audits.add(audit(id), {});
  ASSERT_TRUE(audits.next(cluster(), 1_s, RequestId{100}));
  audits.add(audit(50), {});
  EXPECT_EQ(dropped(DriftAudits::Drop::kFull), 1U) << "what runs counts too";
  for (std::uint32_t tries = 1; tries < DriftAudits::kTriesMax; ++tries) {
    if (tries == 1) audits.on_failed();
    if (tries > 1) audits.on_lost({EngineId{0}, 0});
    const auto again = audits.next(cluster(), 1_s, RequestId{100 + tries});
    ASSERT_TRUE(again);
    EXPECT_EQ(again->audit.of, RequestId{1}) << "first in line";
  }
  audits.on_lost({EngineId{1}, 0});
  EXPECT_TRUE(audits.running()) << "another rank's end";
  audits.on_failed();
  EXPECT_EQ(dropped(DriftAudits::Drop::kFailed), 1U);
  EXPECT_EQ(audits.waiting(), DriftAudits::kHeldMax - 1);
  // A rank that is silent is aborted, and what waited with it is too old by then.
  ASSERT_TRUE(audits.next(cluster(), 1_s, RequestId{200}));
  const Nanos late = DriftAudits::kAgeMax + 1_s;
  ASSERT_TRUE(audits.yield(std::nullopt, late));
  audits.on_released();
  EXPECT_FALSE(audits.next(cluster(), late, RequestId{201}));
  EXPECT_EQ(dropped(DriftAudits::Drop::kOld), DriftAudits::kHeldMax - 1);
  EXPECT_EQ(audits.waiting(), 0U);
  EXPECT_EQ(registry.value("trimtab_window_drift_dropped_total", {{"why", "old"}}),
            DriftAudits::kHeldMax - 1);
}

TEST_F(DriftAuditsTest, WhatCannotBeComparedGivesNoFigure) {
  audits.add(audit(1, {}), {});
  EXPECT_EQ(dropped(DriftAudits::Drop::kFailed), 1U) << "the rank said no row";
  audits.add(audit(2), {});
  answer(kTruth, 6);  // a block is gone: the exact run was of another hit
  audits.add(audit(3), {});
  answer({1, 2});
  EXPECT_EQ(dropped(DriftAudits::Drop::kFailed), 3U);
  EXPECT_EQ(audits.totals().done, 0U);
}

}  // namespace
}  // namespace trimtab::agents
