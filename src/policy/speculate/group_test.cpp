#include "policy/speculate/group.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <numeric>

#include "policy/speculate/batch_model.h"
#include "policy/speculate/queue_key.h"

namespace trimtab::policy {
namespace {

using testing::Batch;
using testing::draw_batch;
using testing::draw_curve;
using testing::straight_curve;

constexpr GroupConfig kPlain{.gain_min_ratio = 0, .gap_limit = Nanos{0}, .explore_every = 0};

/// Requests with one round of rates for both queues.
Batch even_batch(const std::vector<std::vector<float>>& rates) {
  Batch batch;
  for (const auto& of_request : rates) batch.owned.push_back({of_request, of_request});
  for (const Batch::Owned& owned : batch.owned) {
    const auto drafts = static_cast<std::int32_t>(owned.rates.size());
    batch.views.push_back({drafts, owned.rates, owned.previous, true, 3, 3, INT32_MAX});
  }
  return batch;
}

VerifySummary summary_of(const StepCurve& curve, const Batch& batch, std::int64_t kv_tokens = 0) {
  GroupVerifier verifier(curve);
  return verifier.summarize(batch.views, kv_tokens, Nanos{0});
}

TEST(Group, TheSummarySaysWhatEachGraphWouldBring) {
  const StepCurve curve = straight_curve(8, 1'000, 100);  // 1, 2, 4, 8
  const VerifySummary summary = summary_of(curve, even_batch({{0.75F, 0.5F}, {0.25F}}), 123);
  const std::int64_t one = kExpectedUnit;
  EXPECT_EQ(summary.expected,
            (std::vector<std::int64_t>{2 * one, 2 * one, 2 * one + one * 5 / 4, 2 * one + one * 3 / 2}));
  EXPECT_EQ(summary.requests_max, 2);
  EXPECT_EQ(summary.rows_max, 5);
  EXPECT_EQ(summary.drafts, 3);
  EXPECT_EQ(summary.kv_tokens_max, 123);
}

TEST(Group, RanksBelowFillUpForFreeAndTheSlowestSetsTheStep) {
  // Alone, the unsure rank would verify nothing (4 rows), the sure one everything (16).
  const StepCurve curve = straight_curve(16, 1'000, 100);
  const std::vector<float> sure{0.99F, 0.98F, 0.97F}, unsure{0.2F, 0.1F, 0.05F};
  const Batch a = even_batch({sure, sure, sure, sure}), b = even_batch({unsure, unsure, unsure, unsure});
  const GroupTimeModel time(curve);
  const auto alone = [&](const Batch& batch) {
    return decide_group(curve, kPlain, summary_of(curve, batch), time, 1).graph_tokens;
  };
  EXPECT_EQ(alone(a), 16);
  EXPECT_EQ(alone(b), 4);
  VerifySummary group = summary_of(curve, a);
  merge(group, summary_of(curve, b));
  const GroupDecision decision = decide_group(curve, kPlain, group, time, 1);
  EXPECT_EQ(decision.graph_tokens, 16);
  GroupVerifier verifier(curve);
  EXPECT_EQ(verifier.fill(b.views, decision).total_tokens, 16) << "the step takes as long anyway";
  // Three unsure ranks to one sure one: now the sure rank would hold all others up.
  for (int i = 0; i < 6; ++i) merge(group, summary_of(curve, b));
  EXPECT_LT(decide_group(curve, kPlain, group, time, 1).graph_tokens, 16);
}

RC_GTEST_PROP(Group, TheReductionHasNoOrder, ()) {
  base::Prng prng(*rc::gen::arbitrary<std::uint64_t>());
  const StepCurve curve = draw_curve(prng, 64);
  std::vector<VerifySummary> ranks;
  for (std::uint64_t i = 0; i < 1 + prng.below(6); ++i)
    ranks.push_back(
        summary_of(curve, draw_batch(prng, prng.below(10), 5), static_cast<std::int64_t>(prng.below(99))));
  VerifySummary forward, pairs;
  for (const VerifySummary& rank : ranks) merge(forward, rank);
  prng.shuffle(std::span(ranks));
  const std::size_t cut = prng.below(ranks.size() + 1);
  VerifySummary left, right;
  for (std::size_t i = 0; i < ranks.size(); ++i) merge(i < cut ? left : right, ranks[i]);
  merge(pairs, right);
  merge(pairs, left);
  RC_ASSERT(forward == pairs);
}

/// All totals of all ranks, each shared out best: none beats the agreed graph.
RC_GTEST_PROP(Group, NoChoiceOfTotalsIsBetter, ()) {
  base::Prng prng(*rc::gen::arbitrary<std::uint64_t>());
  const StepCurve curve = draw_curve(prng, 24);
  std::vector<std::vector<double>> expected;  // of each rank by drafts verified
  std::vector<std::int64_t> requests;
  VerifySummary group;
  for (std::uint64_t rank = 0; rank < 2 + prng.below(2); ++rank) {
    std::vector<std::vector<float>> rates(1 + prng.below(3));
    for (auto& of_request : rates)
      of_request = testing::draw_rates(prng, static_cast<std::int32_t>(prng.below(5)));
    const Batch batch = even_batch(rates);
    merge(group, summary_of(curve, batch));
    std::vector<double> sorted;
    for (const auto& of_request : rates) sorted.insert(sorted.end(), of_request.begin(), of_request.end());
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    requests.push_back(static_cast<std::int64_t>(rates.size()));
    expected.push_back({static_cast<double>(rates.size())});
    for (const double rate : sorted) expected.back().push_back(expected.back().back() + rate);
  }
  const GroupDecision decision = decide_group(curve, kPlain, group, GroupTimeModel(curve), 1);
  std::vector<std::size_t> drafts(expected.size(), 0);
  double best = 0;
  for (bool more = true; more;) {
    double tokens = 0;
    std::int64_t rows = 0;
    for (std::size_t rank = 0; rank < drafts.size(); ++rank) {
      tokens += expected[rank][drafts[rank]];
      rows = std::max(rows, requests[rank] + static_cast<std::int64_t>(drafts[rank]));
    }
    best = std::max(best, tokens / static_cast<double>(curve.points()[curve.index_for(rows)].base.value));
    more = false;
    for (std::size_t rank = 0; rank < drafts.size() && !more; ++rank) {
      more = drafts[rank] + 1 < expected[rank].size();
      drafts[rank] = more ? drafts[rank] + 1 : 0;
    }
  }
  const double rounding = 0.5 / static_cast<double>(kExpectedUnit) * static_cast<double>(group.drafts);
  RC_ASSERT(decision.expected_tokens / decision.step_ns >= best - rounding / decision.step_ns);
}

RC_GTEST_PROP(Group, EveryRankStaysWithinTheGraphAndFillsIt, ()) {
  base::Prng prng(*rc::gen::arbitrary<std::uint64_t>());
  const StepCurve curve = draw_curve(prng, 96);
  std::vector<Batch> ranks;
  VerifySummary group;
  GroupVerifier verifier(curve);
  for (std::uint64_t i = 0; i < 1 + prng.below(5); ++i) {
    ranks.push_back(draw_batch(prng, prng.below(12), 6));
    for (DraftView& view : ranks.back().views)
      view.tokens_left = static_cast<std::int32_t>(1 + prng.below(5));
    merge(group, verifier.summarize(ranks.back().views, 0, Nanos{0}));
  }
  GroupConfig config;
  config.explore_every = 2;
  const GroupDecision decision =
      decide_group(curve, config, group, GroupTimeModel(curve), static_cast<std::int64_t>(prng.below(8)));
  RC_ASSERT(decision.rule != VerifyRule::kNoGraph);
  for (const Batch& batch : ranks) {
    const VerifyPlan& plan = verifier.fill(batch.views, decision);
    std::int64_t sum = 0, likely = 0;
    for (std::size_t i = 0; i < batch.views.size(); ++i) {
      const DraftView& view = batch.views[i];
      const std::int32_t usable = std::min(view.drafts, view.tokens_left - 1);
      RC_ASSERT(plan.query_tokens[i] >= 1 && plan.query_tokens[i] <= 1 + usable);
      sum += plan.query_tokens[i];
      const queue_key::Rates rates = queue_key::rates_of(view, false);
      for (std::int32_t j = 0; j < usable; ++j) likely += rates[static_cast<std::size_t>(j)] > 0;
    }
    RC_ASSERT(sum == plan.total_tokens);
    RC_ASSERT(sum == std::min(decision.graph_tokens, static_cast<std::int64_t>(batch.views.size()) + likely));
  }
}

TEST(Group, DraftsBeyondMaxTokensAreNotVerified) {
  const StepCurve curve = straight_curve(16, 1'000, 1);
  Batch batch = even_batch({{1.0F, 1.0F, 1.0F}, {1.0F, 1.0F, 1.0F}});
  batch.views[0].tokens_left = 1;  // the next token is its last
  batch.views[1].tokens_left = 3;
  GroupVerifier verifier(curve);
  const VerifySummary summary = verifier.summarize(batch.views, 0, Nanos{0});
  EXPECT_EQ(summary.drafts, 2);
  const GroupDecision decision = decide_group(curve, kPlain, summary, GroupTimeModel(curve), 1);
  EXPECT_EQ(verifier.fill(batch.views, decision).query_tokens, (std::vector<std::int32_t>{1, 3}));
}

TEST(Group, TheLimitOnTheGapCutsTheSize) {
  const StepCurve curve = straight_curve(32, 1'000'000, 10'000);
  const std::vector<float> sure(7, 0.95F);
  const VerifySummary group = summary_of(curve, even_batch({sure, sure, sure, sure}));
  GroupConfig config = kPlain;
  const GroupTimeModel time(curve);
  EXPECT_EQ(decide_group(curve, config, group, time, 1).graph_tokens, 32);
  config.gap_limit = Nanos{1'170'000};
  const GroupDecision cut = decide_group(curve, config, group, time, 1);
  EXPECT_EQ(cut.graph_tokens, 16);
  EXPECT_EQ(cut.rule, VerifyRule::kGapLimit);
  config.gap_limit = Nanos{1};
  EXPECT_EQ(decide_group(curve, config, group, time, 1).graph_tokens, 4) << "one row a request must run";
  config.gap_limit = Nanos{2'000'000};
  EXPECT_EQ(decide_group(curve, config, group, time, 1).graph_tokens, 32);
  EXPECT_NE(decide_group(curve, config, group, time, 1).rule, VerifyRule::kGapLimit);
}

TEST(Group, VerifiesAllWhereTheGainIsWithinTheModelsError) {
  // The last draft costs 0.5 % of the step and brings 0.4 %.
  const auto curve = *StepCurve::make({{2, Nanos{1'000'000}}, {4, Nanos{1'010'000}}});
  const VerifySummary group = summary_of(curve, even_batch({{0.9F, 0.01F, 0.005F}}));
  GroupConfig config = kPlain;
  EXPECT_EQ(decide_group(curve, config, group, GroupTimeModel(curve), 1).graph_tokens, 2);
  config.gain_min_ratio = 0.01;
  const GroupDecision decision = decide_group(curve, config, group, GroupTimeModel(curve), 1);
  EXPECT_EQ(decision.graph_tokens, 4);
  EXPECT_EQ(decision.rule, VerifyRule::kVerifyAll);
}

TEST(Group, ExploresBothSidesInTurn) {
  const StepCurve curve = straight_curve(256, 1'000'000, 4'000);
  std::vector<std::vector<float>> rates(32, {0.9F, 0.6F, 0.4F, 0.2F, 0.1F, 0.05F});
  const VerifySummary group = summary_of(curve, even_batch(rates));
  GroupConfig config;
  config.gain_min_ratio = 0;
  const GroupTimeModel time(curve);
  const auto rows = [&](std::int64_t round) {
    return decide_group(curve, config, group, time, round).graph_tokens;
  };
  const std::int64_t usual = rows(1);
  EXPECT_GT(usual, 64);
  EXPECT_LT(usual, 224);
  for (std::int64_t round = 2; round < 8; ++round) EXPECT_EQ(rows(round), usual);
  EXPECT_LT(rows(8), usual);
  EXPECT_GT(rows(16), usual);
  EXPECT_GE(rows(8), usual * 85 / 100);
  EXPECT_LE(rows(16), usual * 115 / 100);
  EXPECT_EQ(decide_group(curve, config, group, time, 8).rule, VerifyRule::kExplore);
}

TEST(Group, EmptyGroupsAndRanksWithoutAGraph) {
  const StepCurve curve = straight_curve(8, 1'000, 1);
  const GroupTimeModel time(curve);
  GroupVerifier verifier(curve);
  const GroupDecision idle = decide_group(curve, {}, verifier.summarize({}, 0, Nanos{0}), time, 0);
  EXPECT_EQ(idle.graph_tokens, 1);
  EXPECT_EQ(verifier.fill({}, idle).total_tokens, 0);
  EXPECT_EQ(decide_group(curve, {}, {}, time, 0).rule, VerifyRule::kNoGraph) << "nobody said anything";
  const Batch wide = even_batch(std::vector<std::vector<float>>(9, {0.5F}));
  const GroupDecision none = decide_group(curve, {}, summary_of(curve, wide), time, 0);
  EXPECT_EQ(none.rule, VerifyRule::kNoGraph);
  EXPECT_EQ(verifier.fill(wide.views, none).total_tokens, 9);
}

TEST(GroupTime, TellsRowsFromContexts) {
  const StepCurve curve = straight_curve(512, 10'000'000, 5'000);
  GroupTimeModel time(curve);
  base::Prng prng(1);
  for (int step = 0; step < 400; ++step) {
    const std::size_t graph = 30 + prng.below(12);
    const auto kv = static_cast<std::int64_t>(800'000 + prng.below(100'000));
    const CurvePoint& point = curve.points()[graph];
    const double ns = static_cast<double>(point.base.value) + 2e6 +
                      7'000.0 * static_cast<double>(point.graph_tokens) + 3.0 * static_cast<double>(kv);
    time.observe(graph, kv, Nanos{static_cast<std::int64_t>(ns * (1 + 0.005 * prng.normal()))});
  }
  EXPECT_NEAR(time.row_ns(), 7'000, 500);
  EXPECT_NEAR(time.context_ns(), 3.0, 0.4);
  // One suspended process: bounded, not believed.
  const double before = time.predict_ns(40, 850'000);
  time.observe(40, 850'000, Nanos{60'000'000'000});
  EXPECT_NEAR(time.predict_ns(40, 850'000), before, 0.01 * before);
}

TEST(GroupTime, WithoutVariationNothingIsBlamedOnRows) {
  const StepCurve curve = straight_curve(512, 10'000'000, 5'000);
  GroupTimeModel time(curve);
  EXPECT_EQ(time.predict_ns(40, 1'000'000), static_cast<double>(curve.points()[40].base.value));
  for (int step = 0; step < 100; ++step) time.observe(40, 1'000'000, Nanos{20'000'000});
  EXPECT_NEAR(time.predict_ns(40, 1'000'000), 20e6, 1e3);
  EXPECT_NEAR(time.row_ns(), 0, 1e-3);
  EXPECT_NEAR(time.context_ns(), 0, 1e-3);
  EXPECT_GT(time.predict_ns(60, 1'000'000), time.predict_ns(40, 1'000'000)) << "the curve still counts rows";
}

RC_GTEST_PROP(GroupTime, SlopesAreNeverNegativeAndTimesPositive, ()) {
  base::Prng prng(*rc::gen::arbitrary<std::uint64_t>());
  const StepCurve curve = draw_curve(prng, 128);
  GroupTimeModel time(curve);
  for (int step = 0; step < 60; ++step)
    time.observe(prng.below(curve.size()), static_cast<std::int64_t>(prng.below(1 << 20)),
                 Nanos{static_cast<std::int64_t>(prng.below(1'000'000))});
  RC_ASSERT(time.row_ns() >= 0 && time.context_ns() >= 0);
  for (std::size_t graph = 0; graph < curve.size(); ++graph) RC_ASSERT(time.predict_ns(graph, 0) >= 1);
}

}  // namespace
}  // namespace trimtab::policy
