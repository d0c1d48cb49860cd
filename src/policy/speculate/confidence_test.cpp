#include "policy/speculate/confidence.h"

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

DraftView view_of(std::span<const float> rates, std::span<const float> previous) {
  return {static_cast<std::int32_t>(rates.size()), rates, previous, true, 7, 7, INT32_MAX};
}

std::int64_t sum(const std::vector<std::int32_t>& rows) {
  return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
}

/// Expected tokens over time of an allocation, by the rates of one queue.
double ratio_of(const StepCurve& curve, const StepCorrection& correction, std::span<const DraftView> batch,
                const std::vector<std::int32_t>& rows, bool previous) {
  double expected = static_cast<double>(batch.size());
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const queue_key::Rates rates = queue_key::rates_of(batch[i], previous);
    for (std::int32_t j = 0; j + 1 < rows[i]; ++j) expected += rates[static_cast<std::size_t>(j)];
  }
  return expected / step_ns(curve.points()[curve.index_for(sum(rows))], correction);
}

TEST(Confidence, AnExampleByHand) {
  // Two requests; a row costs 100 ns of a step of 1,000, graphs of 1, 2, 4, 8 rows.
  const float sure[] = {0.9F, 0.8F, 0.7F}, unsure[] = {0.5F, 0.1F, 0.05F};
  const DraftView batch[] = {view_of(sure, sure), view_of(unsure, unsure)};
  RankVerifier verifier(straight_curve(8, 1'000, 100));
  // B=2: 2/1200; B=4: (2 + .9 + .8)/1400 = 2.643e-3; B=8: (3.7 + .7 + .5 + .1 + .05)/1800 = 2.806e-3.
  const VerifyPlan& plan = verifier.confidence(batch, {});
  EXPECT_EQ(plan.total_tokens, 8);
  EXPECT_EQ(plan.query_tokens, (std::vector<std::int32_t>{4, 4}));
  EXPECT_NEAR(plan.expected_tokens, 5.05, 1e-6);
  // Rows that cost four times as much: B=4: 3.7/2600 = 1.423e-3, B=8: 5.05/4200 = 1.202e-3.
  RankVerifier dear(straight_curve(8, 1'000, 400));
  EXPECT_EQ(dear.confidence(batch, {}).total_tokens, 4);
  EXPECT_EQ(dear.confidence(batch, {}).query_tokens, (std::vector<std::int32_t>{3, 1}));
  // The same by the slope that steps taught instead of the curve; the sampler shifts the balance back.
  EXPECT_EQ(verifier.confidence(batch, {300, 0}).total_tokens, 4);
  EXPECT_EQ(verifier.confidence(batch, {300, 3'000}).total_tokens, 8);
  EXPECT_EQ(
      describe(verifier.confidence(batch, {300, 0})),
      "verifies 2 drafts of 2 requests in graph 4: 3.7 tokens in 0.00 ms (all: 5.0 in 0.00 ms), best ratio");
}

TEST(Confidence, SizeComesFromRoundNMinus2AndSharesFromNMinus1) {
  const float high[] = {0.95F, 0.9F}, low[] = {0.02F, 0.01F};
  RankVerifier verifier(straight_curve(8, 1'000, 300));
  // Processed rounds: the newest rates are of N-1, those before of N-2.
  DraftView batch[] = {view_of(low, high), view_of(high, low)};
  const VerifyPlan& plan = verifier.confidence(batch, {});
  EXPECT_EQ(plan.total_tokens, 4) << "two drafts were worth it two rounds ago";
  EXPECT_EQ(plan.query_tokens, (std::vector<std::int32_t>{1, 3})) << "but by now they are the other's";
  // A round in flight: the newest rates here are already those of N-2.
  batch[0].processed = 6;
  batch[1].processed = 6;
  batch[0].previous_rates = batch[1].previous_rates = low;
  EXPECT_EQ(verifier.confidence(batch, {}).total_tokens, 4);
}

TEST(Confidence, UnknownRatesAreCertainWithADraftAndHopelessWithout) {
  RankVerifier verifier(straight_curve(8, 10'000, 1));
  DraftView view;
  view.drafts = 3;
  EXPECT_EQ(verifier.confidence({&view, 1}, {}).total_tokens, 1) << "no draft was made";
  view.has_draft = true;
  EXPECT_EQ(verifier.confidence({&view, 1}, {}).total_tokens, 4);
  view.has_draft = false;
  view.scheduled = 1;  // in flight
  EXPECT_EQ(verifier.confidence({&view, 1}, {}).total_tokens, 4);
}

TEST(Confidence, TiesTakeFewerRowsAndTheLowerIndex) {
  // 1 row: 1/1000; 2 rows: 1.5/1500, the same. Strictly better only.
  const auto curve = *StepCurve::make({{1, Nanos{1000}}, {2, Nanos{1500}}});
  const float half[] = {0.5F};
  RankVerifier verifier(curve);
  const DraftView one = view_of(half, half);
  EXPECT_EQ(verifier.confidence({&one, 1}, {}).total_tokens, 1);
  const DraftView same[] = {one, one, one};
  RankVerifier wide(*StepCurve::make({{4, Nanos{1000}}, {8, Nanos{9000}}}));
  EXPECT_EQ(wide.confidence(same, {}).query_tokens, (std::vector<std::int32_t>{2, 1, 1}));
}

TEST(Confidence, NoGraphVerifiesNothingAndSaysSo) {
  const float sure[] = {1.0F};
  const DraftView batch[] = {view_of(sure, sure), view_of(sure, sure), view_of(sure, sure)};
  RankVerifier verifier(straight_curve(2, 1'000, 1));
  const VerifyPlan& plan = verifier.confidence(batch, {});
  EXPECT_EQ(plan.rule, VerifyRule::kNoGraph);
  EXPECT_EQ(plan.query_tokens, (std::vector<std::int32_t>{1, 1, 1}));
  // Only some of the drafts fit the largest graph.
  RankVerifier four(straight_curve(4, 1'000, 1));
  EXPECT_EQ(four.confidence(batch, {}).total_tokens, 4);
}

RC_GTEST_PROP(Confidence, Invariants, ()) {
  base::Prng prng(*rc::gen::arbitrary<std::uint64_t>());
  const Batch batch = draw_batch(prng, 1 + prng.below(12), 6);
  RankVerifier verifier(draw_curve(prng, 96));
  const StepCorrection correction{static_cast<double>(prng.below(300)),
                                  static_cast<double>(prng.below(9'000))};
  const VerifyPlan plan = verifier.confidence(batch.views, correction);
  const auto requests = static_cast<std::int64_t>(batch.views.size());
  RC_ASSERT(sum(plan.query_tokens) == plan.total_tokens);
  double positive = 0;
  for (std::size_t i = 0; i < batch.views.size(); ++i) {
    RC_ASSERT(plan.query_tokens[i] >= 1 && plan.query_tokens[i] <= 1 + batch.views[i].drafts);
    const queue_key::Rates rates = queue_key::rates_of(batch.views[i], true);
    for (std::int32_t j = 0; j < batch.views[i].drafts; ++j)
      positive += rates[static_cast<std::size_t>(j)] > 0;
  }
  // Times that grow: the total fills a graph, or takes nothing, or everything that has a chance.
  RC_ASSERT(plan.total_tokens == plan.graph_tokens || plan.total_tokens == requests ||
            plan.total_tokens == requests + static_cast<std::int64_t>(positive));
  const VerifyPlan again = verifier.confidence(batch.views, correction);
  RC_ASSERT(again.query_tokens == plan.query_tokens);
  // Twice the time of everything changes nothing.
  std::vector<CurvePoint> points(verifier.curve().points().begin(), verifier.curve().points().end());
  for (CurvePoint& point : points) point.base = point.base * 2;
  RankVerifier slower(*StepCurve::make(points));
  const VerifyPlan& slow = slower.confidence(batch.views, {2 * correction.row_ns, 2 * correction.sampler_ns});
  RC_ASSERT(slow.query_tokens == plan.query_tokens);
}

RC_GTEST_PROP(Confidence, TheSizeDoesNotSeeTheNewestRates, ()) {
  base::Prng prng(*rc::gen::arbitrary<std::uint64_t>());
  Batch batch = draw_batch(prng, 1 + prng.below(10), 5);
  for (DraftView& view : batch.views) view.processed = view.scheduled;
  RankVerifier verifier(draw_curve(prng, 64));
  const VerifyPlan before = verifier.confidence(batch.views, {});
  for (std::size_t i = 0; i < batch.views.size(); ++i) {
    batch.owned[i].rates = testing::draw_rates(prng, batch.views[i].drafts);
    batch.views[i].rates = batch.owned[i].rates;
  }
  RC_ASSERT(verifier.confidence(batch.views, {}).total_tokens == before.total_tokens);
}

/// Every allocation of a small batch: none has a better ratio than the prefix that was found.
RC_GTEST_PROP(Confidence, NoAllocationIsBetter, ()) {
  base::Prng prng(*rc::gen::arbitrary<std::uint64_t>());
  Batch batch = draw_batch(prng, 1 + prng.below(4), 4);
  for (DraftView& view : batch.views) {
    view.processed = view.scheduled;
    view.previous_rates = view.rates;  // one queue, so that the shares are judged by the same rates
  }
  RankVerifier verifier(draw_curve(prng, 24));
  const StepCorrection correction{static_cast<double>(prng.below(500)), 0};
  const VerifyPlan plan = verifier.confidence(batch.views, correction);
  const double found = ratio_of(verifier.curve(), correction, batch.views, plan.query_tokens, true);
  std::vector<std::int32_t> rows(batch.views.size(), 1);
  for (bool more = true; more;) {
    const double other = ratio_of(verifier.curve(), correction, batch.views, rows, true);
    RC_ASSERT(other <= found * (1 + 1e-6));
    more = false;
    for (std::size_t i = 0; i < rows.size() && !more; ++i) {
      more = rows[i] <= batch.views[i].drafts;
      rows[i] = more ? rows[i] + 1 : 1;
    }
  }
}

TEST(Greedy, EarlyStopEndsBeforeAJumpThatTheWholeSearchCrosses) {
  // From 4 to 5 rows time jumps; at 8 rows it was worth it.
  const auto curve = *StepCurve::make({{4, Nanos{1000}}, {8, Nanos{1300}}});
  const float sure[] = {0.9F, 0.9F, 0.9F, 0.9F, 0.9F, 0.9F, 0.9F};
  const DraftView one = view_of(sure, {});
  RankVerifier verifier(curve);
  const VerifyPlan stopped = verifier.greedy({&one, 1}, {}, true);
  EXPECT_EQ(stopped.total_tokens, 4);  // 3.7/1000, then 4.6/1300
  EXPECT_EQ(stopped.rule, VerifyRule::kGreedyStopped);
  const VerifyPlan whole = verifier.greedy({&one, 1}, {}, false);
  EXPECT_EQ(whole.total_tokens, 8);  // 7.3/1300
  EXPECT_EQ(whole.rule, VerifyRule::kConfidence);
}

RC_GTEST_PROP(Greedy, TheWholeSearchIsNeverWorseAndOneRoundEqualsTwoEqualOnes, ()) {
  base::Prng prng(*rc::gen::arbitrary<std::uint64_t>());
  Batch batch = draw_batch(prng, 1 + prng.below(10), 5);
  for (DraftView& view : batch.views) view.processed = view.scheduled;
  RankVerifier verifier(draw_curve(prng, 64));
  const VerifyPlan stopped = verifier.greedy(batch.views, {}, true);
  const VerifyPlan whole = verifier.greedy(batch.views, {}, false);
  RC_ASSERT(whole.expected_tokens / whole.step_ns >= stopped.expected_tokens / stopped.step_ns);
  RC_ASSERT(stopped.total_tokens <= whole.total_tokens);
  for (DraftView& view : batch.views) view.previous_rates = view.rates;
  RC_ASSERT(verifier.confidence(batch.views, {}).query_tokens == whole.query_tokens);
}

TEST(Fixed, TheSameForEveryoneAsFarAsThereAreDrafts) {
  const float three[] = {0.5F, 0.4F, 0.3F}, one[] = {0.9F};
  const DraftView batch[] = {view_of(three, three), view_of(one, one), {}};
  RankVerifier verifier(straight_curve(16, 1'000, 10));
  const VerifyPlan& plan = verifier.fixed(batch, 2, {});
  EXPECT_EQ(plan.query_tokens, (std::vector<std::int32_t>{3, 2, 1}));
  EXPECT_EQ(plan.total_tokens, 6);
  EXPECT_EQ(plan.graph_tokens, 8);
  EXPECT_NEAR(plan.expected_tokens, 3 + 0.5 + 0.4 + 0.9, 1e-6);
  EXPECT_EQ(verifier.fixed(batch, 0, {}).total_tokens, 3);
}

TEST(ShareByNewest, CumulativeProductsRankAndUnmatchedComeLast) {
  const float steady[] = {0.9F, 0.9F, 0.9F}, falling[] = {0.95F, 0.1F, 1.0F}, sure[] = {1.0F, 1.0F, 1.0F};
  const FreshDraft batch[] = {{steady, true}, {falling, true}, {sure, false}};
  // .9 .81 .729 | .95 .095 .095 | 0 0 0
  EXPECT_EQ(share_by_newest(batch, 3), (std::vector<std::int32_t>{1, 1, 1}));
  EXPECT_EQ(share_by_newest(batch, 4), (std::vector<std::int32_t>{1, 2, 1}));
  EXPECT_EQ(share_by_newest(batch, 7), (std::vector<std::int32_t>{4, 2, 1}));
  EXPECT_EQ(share_by_newest(batch, 8), (std::vector<std::int32_t>{4, 3, 1}));
  EXPECT_EQ(share_by_newest(batch, 10), (std::vector<std::int32_t>{4, 4, 2}));
  EXPECT_EQ(share_by_newest(batch, 12), (std::vector<std::int32_t>{4, 4, 4}));
}

}  // namespace
}  // namespace trimtab::policy
