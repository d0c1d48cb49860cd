#include "policy/cost/cost_model.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <vector>

#include "config/profile.h"

namespace trimtab::policy {
namespace {

using base::Nanos;
using base::TokenCount;
using model::ImageSpan;
using model::QuotaScope;

TokenCount operator""_t(unsigned long long v) { return TokenCount{static_cast<std::int64_t>(v)}; }

CostModel shipped(const std::string& name, QuotaScope scope = QuotaScope::kAttention) {
  const auto profile = config::load_profile(name, "profiles");
  if (!profile) ADD_FAILURE() << base::to_string(profile.error());
  return CostModel(profile->cost, scope);
}

ImageSpan image(std::uint32_t position, std::uint32_t tokens) {
  ImageSpan span;
  span.position = position;
  span.tokens = tokens;
  return span;
}

// The worked example (system facts, section 15): 100,000 tokens, 757 blocks hit, 3,104 to compute.

TEST(WorkedExample, CostOfTheThirdTurn) {
  const CostModel model = shipped("quadratic-example");
  EXPECT_EQ(757 * model::kBlockTokens, 96'896);
  EXPECT_EQ(model.cost(3104_t, 96896_t, 100000_t), Nanos{3104 * (96'896 + 1'552) / 2});
  EXPECT_EQ(model.request(96896_t, 100000_t), model.cost(3104_t, 96896_t, 100000_t));
  // One block more when the window's snapshot is missing.
  EXPECT_EQ(100'000 - 756 * model::kBlockTokens, 3'232);
  EXPECT_GT(model.request(96768_t, 100000_t), model.request(96896_t, 100000_t));
}

TEST(WorkedExample, FarMoreThanANewSessionUnderTheQuadraticAndHardlyUnderV41) {
  const auto ratio = [](const CostModel& model) {
    return static_cast<double>(model.cost(3104_t, 96896_t, 100000_t).value) /
           static_cast<double>(model.cost(3104_t, 0_t, 3104_t).value);
  };
  EXPECT_NEAR(ratio(shipped("quadratic-example")), 63.4, 0.1);
  auto profile = config::load_profile("deepseek-v4.1-flash", "profiles");
  std::get<model::FlopsCost>(profile->cost).compact = false;
  EXPECT_NEAR(ratio(CostModel(profile->cost, QuotaScope::kAttention)), 1.12, 0.005);
}

TEST(WorkedExample, OneChunkWithinBudgetTwoWhenItIsMostlySpent) {
  const CostModel model = shipped("quadratic-example");
  ChunkLimits limits;
  limits.empty_step = true;
  const auto whole = model.solve(Nanos{300'000'000}, 96896_t, 100000_t, limits);
  EXPECT_EQ(whole.tokens, 3104_t);
  EXPECT_EQ(whole.reason, ChunkReason::kEndOfPrompt);
  EXPECT_EQ(whole.cost, Nanos{152'791'296});

  limits.empty_step = false;
  const auto first = model.solve(Nanos{100'000'000}, 96896_t, 100000_t, limits);
  EXPECT_EQ(first.reason, ChunkReason::kBudget);
  EXPECT_GT(first.tokens, 0_t);
  EXPECT_LT(first.tokens, 3104_t);
  EXPECT_LE(model.cost(first.tokens, 96896_t, 100000_t), Nanos{100'000'000});
  EXPECT_GT(model.cost(first.tokens + 1_t, 96896_t, 100000_t), Nanos{100'000'000});
  limits.empty_step = true;
  const auto second = model.solve(Nanos{300'000'000}, 96896_t + first.tokens, 100000_t, limits);
  EXPECT_EQ(first.tokens + second.tokens, 3104_t);
  EXPECT_EQ(second.reason, ChunkReason::kEndOfPrompt);
}

TEST(CostModel, ScopeDecidesWhatCounts) {
  const CostModel attention = shipped("quadratic-example");
  const CostModel whole = shipped("quadratic-example", QuotaScope::kWholeStep);
  EXPECT_EQ(attention.fixed(), Nanos{0});
  EXPECT_EQ(whole.fixed(), Nanos{5'000'000});
  EXPECT_EQ(attention.step_fixed(), whole.step_fixed());
  EXPECT_EQ(whole.cost(100_t, 0_t, 100_t) - attention.cost(100_t, 0_t, 100_t), Nanos{100 * 10'000});
  EXPECT_EQ(attention.whole(100_t, 7_t, 107_t), whole.cost(100_t, 7_t, 107_t));
  EXPECT_EQ(whole.attention(100_t, 7_t, 107_t), attention.cost(100_t, 7_t, 107_t));
  EXPECT_EQ(attention.cost(0_t, 7_t, 107_t), Nanos{0});
}

TEST(Solve, AtMostTheTokensOfAStep) {
  const CostModel model = shipped("quadratic-example");
  const auto chunk = model.solve(base::kForever, 0_t, 100000_t, {});
  EXPECT_EQ(chunk.tokens, 32768_t);
  EXPECT_EQ(chunk.reason, ChunkReason::kTokensMax);
}

TEST(Solve, AnEmptyStepTakesItsMinimumWhateverTheBudget) {
  const CostModel model = shipped("quadratic-example");
  ChunkLimits limits;
  EXPECT_EQ(model.solve(Nanos{0}, 900000_t, 1000000_t, limits).tokens, 0_t);
  limits.empty_step = true;
  const auto chunk = model.solve(Nanos{0}, 900000_t, 1000000_t, limits);
  EXPECT_EQ(chunk.tokens, 128_t);
  EXPECT_EQ(chunk.reason, ChunkReason::kMinimum);
  EXPECT_EQ(chunk.cost, model.cost(128_t, 900000_t, 1000000_t));
  EXPECT_EQ(model.solve(Nanos{-1}, 999990_t, 1000000_t, limits).tokens, 10_t) << "or the rest";
}

TEST(Solve, NeverInsideAnImage) {
  const CostModel model = shipped("quadratic-example");
  const std::vector<ImageSpan> images = {image(1000, 500), image(3000, 40'000)};
  ChunkLimits limits;
  limits.images = images;
  // The budget ends inside the first image: cut back to its begin.
  const Nanos inside = model.cost(1200_t, 0_t, 50000_t);
  auto chunk = model.solve(inside, 0_t, 50000_t, limits);
  EXPECT_EQ(chunk.tokens, 1000_t);
  EXPECT_EQ(chunk.budget_tokens, 1200_t);
  EXPECT_EQ(chunk.reason, ChunkReason::kImageBoundary);
  // Its begin and its end are legal.
  EXPECT_EQ(model.solve(model.cost(1500_t, 0_t, 50000_t), 0_t, 50000_t, limits).tokens, 1500_t);
  // From its begin on a part of it does not fit: nothing, unless the step is empty: then all of it.
  EXPECT_EQ(model.solve(model.cost(200_t, 1000_t, 50000_t), 1000_t, 50000_t, limits).tokens, 0_t);
  limits.empty_step = true;
  chunk = model.solve(model.cost(200_t, 1000_t, 50000_t), 1000_t, 50000_t, limits);
  EXPECT_EQ(chunk.tokens, 500_t);
  EXPECT_EQ(chunk.reason, ChunkReason::kMinimum);
  // Even an image larger than a step's tokens, or it would wait for ever.
  EXPECT_EQ(model.solve(base::kForever, 3000_t, 50000_t, limits).tokens, 40000_t);
  // A hit may end inside an image; its rest is taken whole.
  EXPECT_EQ(model.solve(Nanos{0}, 1024_t, 50000_t, limits).tokens, 476_t);
}

TEST(Solve, StopsWhereEmbeddingsAreMissing) {
  const CostModel model = shipped("quadratic-example");
  const std::vector<ImageSpan> images = {image(1000, 500)};
  ChunkLimits limits;
  limits.images = images;
  limits.empty_step = true;
  limits.end = 1000_t;
  auto chunk = model.solve(base::kForever, 0_t, 5000_t, limits);
  EXPECT_EQ(chunk.tokens, 1000_t);
  EXPECT_EQ(chunk.reason, ChunkReason::kNotReady);
  chunk = model.solve(base::kForever, 1000_t, 5000_t, limits);
  EXPECT_EQ(chunk.tokens, 0_t);
  EXPECT_EQ(chunk.reason, ChunkReason::kNotReady);
  EXPECT_EQ(model.solve(Nanos{0}, 990_t, 5000_t, limits).tokens, 10_t) << "the minimum ends there too";
}

/// What the solver promises, said without it: among the legal ends the last whose cost fits; when an empty
/// step would get less than its minimum, the first legal end that gives the minimum.
std::int64_t reference(const CostModel& model, std::int64_t budget, std::int64_t c, std::int64_t prompt,
                       const ChunkLimits& limits) {
  const std::int64_t end = std::min(prompt, limits.end.value);
  const auto legal = [&](std::int64_t at) {
    for (const ImageSpan& span : limits.images) {
      if (at > span.position && at < std::int64_t{span.position} + span.tokens) return false;
    }
    return true;
  };
  std::int64_t best = 0;
  for (std::int64_t q = 1; c + q <= end && q <= limits.tokens_max.value; ++q) {
    if (legal(c + q) && model.cost(TokenCount{q}, TokenCount{c}, TokenCount{prompt}).value <= budget)
      best = q;
  }
  const std::int64_t least = std::min(limits.tokens_min.value, end - c);
  if (!limits.empty_step || best >= least) return best;
  std::int64_t q = least;
  while (c + q < end && !legal(c + q)) ++q;
  return std::max<std::int64_t>(q, 0);
}

TEST(Solve, EverySmallCase) {
  const CostModel quadratic(model::QuadraticCost{1, 1000, 2000}, QuotaScope::kWholeStep);
  model::FlopsCost flops;
  flops.flops_per_second = 1e9;
  flops.compact = true;
  flops.keep = 2;
  flops.attention_row_producer = 1;
  flops.attention_row_consumer = 3;
  flops.consumer_terms = {{"scan", 2, 2, 3, true, false}, {"window", 1, 1, 2, false, true}};
  const CostModel exact(flops, QuotaScope::kAttention);
  constexpr std::int64_t kPrompt = 9;
  std::int64_t cases = 0;
  for (const CostModel* model : {&quadratic, &exact}) {
    for (std::int64_t c = 0; c < kPrompt; ++c) {
      for (std::uint32_t first = 0; first < 6; ++first) {
        for (std::uint32_t length = 0; length <= 4 && first + length <= kPrompt; ++length) {
          std::vector<ImageSpan> images;
          if (length > 0) images.push_back(image(first, length));
          if (first + length + 3 <= kPrompt) images.push_back(image(first + length + 1, 2));
          for (const std::int64_t tokens_max : {2, 4, 9}) {
            for (const std::int64_t tokens_min : {1, 2}) {
              for (const bool empty : {false, true}) {
                for (std::int64_t budget = 0; budget <= 130; budget += 3) {
                  const ChunkLimits limits{TokenCount{tokens_max}, TokenCount{tokens_min},
                                           TokenCount{INT64_MAX}, images, empty};
                  const auto chunk = model->solve(Nanos{budget}, TokenCount{c}, TokenCount{kPrompt}, limits);
                  ASSERT_EQ(chunk.tokens.value, reference(*model, budget, c, kPrompt, limits))
                      << "c=" << c << " image=" << first << '+' << length << " max=" << tokens_max
                      << " min=" << tokens_min << " empty=" << empty << " budget=" << budget;
                  ++cases;
                }
              }
            }
          }
        }
      }
    }
  }
  EXPECT_GT(cases, 200'000);
}

RC_GTEST_PROP(Solve, ChunksAddUpToThePrompt, ()) {
  const auto name = *rc::gen::element<std::string>("quadratic-example", "deepseek-v4.1-flash");
  const auto scope = *rc::gen::element(QuotaScope::kAttention, QuotaScope::kWholeStep);
  const CostModel model = shipped(name, scope);
  const auto prompt = *rc::gen::inRange<std::int64_t>(1, 200'000);
  const auto budget = *rc::gen::inRange<std::int64_t>(1'000'000, 500'000'000);
  std::int64_t c = *rc::gen::inRange<std::int64_t>(0, prompt);
  ChunkLimits limits;
  limits.empty_step = true;
  for (int steps = 0; c < prompt; ++steps) {
    const auto chunk = model.solve(Nanos{budget}, TokenCount{c}, TokenCount{prompt}, limits);
    RC_ASSERT(chunk.tokens > TokenCount{0});
    RC_ASSERT(chunk.tokens <= limits.tokens_max);
    RC_ASSERT(chunk.cost <= Nanos{budget} || chunk.reason == ChunkReason::kMinimum);
    c += chunk.tokens.value;
  }
  RC_ASSERT(c == prompt);
}

}  // namespace
}  // namespace trimtab::policy
