#include "policy/overlap/phases.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>

#include "base/prng.h"

namespace trimtab::policy {
namespace {

double uniform(base::Prng& prng, double low, double high) { return low + (high - low) * prng.uniform(); }

LayerTimes draw_times(base::Prng& prng) {
  return {uniform(prng, 1, 100), uniform(prng, 1, 100), uniform(prng, 1, 100), uniform(prng, 1, 100)};
}

TEST(Pipeline, PerfectWhereEachTransferHidesBehindEachStage) {
  // Compute 2 x (10 + 8), transfers shorter than either stage: the network never delays anybody.
  const LayerTimes even{10, 8, 7, 6};
  EXPECT_NEAR(best_pipeline(even, even, PipelineForm::kFourStages).period_s, 36, 1e-6);
  EXPECT_NEAR(period_bound(even, even), 36, 1e-12);
}

TEST(Pipeline, ALongTransferBeforeAShortStageCannotHideUnlessAttentionIsCut) {
  // Dispatch, MoE and combine take as long as the other's attention, but a MoE can only run when that
  // attention is over: 2 x (30 + 14). Cut in the middle, attention lets it in, and computing never pauses: 2
  // x (30 + 2).
  const LayerTimes uneven{30, 2, 14, 14};
  EXPECT_NEAR(best_pipeline(uneven, uneven, PipelineForm::kFourStages).period_s, 88, 1e-6);
  const PipelinePlan five = best_pipeline(uneven, uneven, PipelineForm::kFiveStages);
  EXPECT_NEAR(five.period_s, 64, 1e-6);
  EXPECT_EQ(five.attention_first, 0.5);
}

RC_GTEST_PROP(Pipeline, BetweenTheBoundAndNothingOverlapped, ()) {
  base::Prng prng(*rc::gen::arbitrary<std::uint64_t>());
  const LayerTimes a = draw_times(prng), b = prng.below(2) == 0 ? a : draw_times(prng);
  const double serial = a.compute() + a.communication() + b.compute() + b.communication();
  const double four = best_pipeline(a, b, PipelineForm::kFourStages).period_s;
  const double dependent = best_pipeline(a, b, PipelineForm::kFourStages, true).period_s;
  RC_ASSERT(four >= period_bound(a, b) * (1 - 1e-6));
  RC_ASSERT(four <= serial * (1 + 1e-9));
  RC_ASSERT(dependent >= four * (1 - 1e-6));
  RC_ASSERT(dependent <= serial * (1 + 1e-9));
  // Four slots with a barrier after each are one of the schedules.
  const double slots = std::max(a.attention, b.combine) + std::max(b.attention, a.dispatch) +
                       std::max(a.moe, b.dispatch) + std::max(b.moe, a.combine);
  RC_ASSERT(four <= slots * (1 + 1e-6));
}

TEST(Pipeline, CuttingAttentionNeverHurts) {
  base::Prng prng(5);
  for (int i = 0; i < 12; ++i) {
    const LayerTimes a = draw_times(prng);
    EXPECT_LE(best_pipeline(a, a, PipelineForm::kFiveStages).period_s,
              best_pipeline(a, a, PipelineForm::kFourStages).period_s * (1 + 1e-6));
  }
}

TEST(DecodeOverlap, TheEstimateIsABoundThatDependencesDoNotReach) {
  constexpr OverlapCosts kFree{0, 0, 0};
  for (const std::int64_t batch : {32, 64, 128, 256}) {
    const PhaseDecision decision = decide_decode_overlap({}, batch, kFree);
    const OverlapTimes estimate = overlap_times({}, batch);
    EXPECT_NEAR(decision.bound_s, estimate.overlapped_s, 1e-12) << batch;
    EXPECT_GE(decision.overlapped_s, estimate.overlapped_s * (1 - 1e-9));
    EXPECT_EQ(decision.first_tokens, batch / 2);
  }
  // At 64 requests the estimate is 281 us; attention in two parts reaches 301.
  EXPECT_NEAR(decide_decode_overlap({}, 64, kFree).overlapped_s * 1e6, 301.3, 0.5);
}

TEST(DecodeOverlap, WorthItFromABatchOn) {
  const std::int64_t from = decode_overlap_from({}, 256);
  EXPECT_GT(from, 24);
  EXPECT_LE(from, 64);
  EXPECT_TRUE(decide_decode_overlap({}, from).worth);
  EXPECT_FALSE(decide_decode_overlap({}, from - 8).worth);
  EXPECT_FALSE(decide_decode_overlap({}, 1).worth);
  EXPECT_FALSE(decide_decode_overlap({}, 0).worth);
  OverlapModel fast;
  fast.network_bytes_per_s = 1e15;
  EXPECT_EQ(decode_overlap_from(fast, 256), 257) << "nothing to hide";
  // A launch that costs more than the transfers.
  EXPECT_FALSE(decide_decode_overlap({}, 64, {200e-6, 0, 0.02}).worth);
}

TEST(PrefillOverlap, PaysForLongStepsAndNotForShortOnes) {
  const PrefillModel model;
  const PrefillChunk long_step[] = {{4096, 0}, {4096, 0}};
  const PhaseDecision decision = decide_prefill_overlap(model, long_step);
  EXPECT_TRUE(decision.worth);
  EXPECT_GT(decision.speed_up(), 1.2);
  EXPECT_EQ(decision.first_tokens, 4096) << "the border between two equal sequences";
  const PrefillChunk short_step[] = {{32, 0}, {32, 0}};
  EXPECT_FALSE(decide_prefill_overlap(model, short_step).worth) << "weights read twice to hide little";
  EXPECT_FALSE(decide_prefill_overlap(model, {}).worth);
  const PrefillChunk one[] = {{1, 1000}};
  EXPECT_FALSE(decide_prefill_overlap(model, one).worth);
  EXPECT_EQ(describe(decision).substr(0, 8), "overlap:");
}

TEST(PrefillOverlap, OneLongChunkIsCutInsideByWorkNotByTokens) {
  const PrefillModel model;
  const PrefillChunk chunk[] = {{16'384, 0}};
  const PhaseDecision decision = decide_prefill_overlap(model, chunk);
  EXPECT_TRUE(decision.worth);
  EXPECT_EQ(decision.first_tokens % 128, 0);
  EXPECT_GT(decision.first_tokens, 8'192) << "later tokens see more context";
  EXPECT_LT(decision.first_tokens, 12'288);
}

TEST(PrefillOverlap, TwiceTheContentionCanMakeItNotWorthIt) {
  PrefillModel model;
  model.network_bytes_per_s = 400e9;  // transfers are short
  const PrefillChunk step[] = {{4096, 30'000}, {4096, 30'000}};
  EXPECT_TRUE(decide_prefill_overlap(model, step, {0, 0, 0}).worth);
  EXPECT_FALSE(decide_prefill_overlap(model, step, {0, 0.2, 0.02}).worth);
}

RC_GTEST_PROP(PrefillOverlap, TheCutPartsAddUpAndTheDecisionIsItsFigures, ()) {
  base::Prng prng(*rc::gen::arbitrary<std::uint64_t>());
  std::vector<PrefillChunk> chunks;
  std::int64_t tokens = 0;
  for (std::uint64_t i = 0; i < 1 + prng.below(5); ++i) {
    chunks.push_back(
        {static_cast<std::int64_t>(1 + prng.below(6'000)), static_cast<std::int64_t>(prng.below(50'000))});
    tokens += chunks.back().tokens;
  }
  const PhaseDecision decision = decide_prefill_overlap({}, chunks);
  RC_ASSERT(decision.first_tokens >= 0 && decision.first_tokens <= tokens);
  RC_ASSERT(decision.worth ==
            (decision.overlapped_s < decision.serial_s * (1 - kPrefillCosts.gain_min_ratio)));
  RC_ASSERT(decision.overlapped_s >= decision.bound_s * (1 - 1e-6) || !decision.worth);
}

}  // namespace
}  // namespace trimtab::policy
