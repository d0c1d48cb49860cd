#include "policy/prefill/context_parallel.h"

#include <gtest/gtest.h>

namespace trimtab::policy {
namespace {

using base::Nanos;
using base::TokenCount;
using model::RequestId;

model::PrefillConfig config(std::int64_t quotas) {
  model::PrefillConfig config;
  config.step_budget_ms = 300;
  config.context_parallel_quotas = quotas;
  config.quota_scope = model::QuotaScope::kWholeStep;
  return config;
}

CostModel millisecond_a_token() {
  return CostModel(model::QuadraticCost{20'000'000, 1'000'000'000, 0}, model::QuotaScope::kWholeStep);
}

RankRequest request(std::uint64_t id, std::int64_t prompt) {
  RankRequest out;
  out.id = RequestId{id};
  out.prompt = TokenCount{prompt};
  return out;
}

TEST(ContextParallel, OnlyWorkBeyondTheThreshold) {
  EXPECT_FALSE(context_parallel(config(0), Nanos{INT64_MAX}));
  EXPECT_FALSE(context_parallel(config(8), Nanos{2'400'000'000}));
  EXPECT_TRUE(context_parallel(config(8), Nanos{2'400'000'001}));
}

TEST(ContextParallel, AChunkTakesItsPartOnEveryRank) {
  ContextParallelQueue queue(config(1), 8, millisecond_a_token());
  EXPECT_EQ(queue.part(Nanos{300'000'000}, false), Nanos{0}) << "nothing waits";
  queue.add(request(1, 10'000));
  queue.add(request(2, 500));
  EXPECT_EQ(queue.part(Nanos{300'000'000}, false), Nanos{300'000'000});
  EXPECT_EQ(queue.part(Nanos{300'000'000}, true), Nanos{150'000'000});
  const StepPlan half = queue.plan(Nanos{150'000'000});
  ASSERT_EQ(half.chunks.size(), 1U);
  EXPECT_EQ(half.chunks[0].tokens, TokenCount{(150 - 20) * 8}) << "the fixed part is paid once a step";
  EXPECT_TRUE(queue.done(half).empty());
  std::int64_t computed = half.chunks[0].tokens.value;
  std::vector<RequestId> order;
  while (queue.waiting() > 0) {
    const StepPlan plan = queue.plan(Nanos{300'000'000});
    for (const PlannedChunk& chunk : plan.chunks) computed += chunk.tokens.value;
    for (const RequestId id : queue.done(plan)) order.push_back(id);
  }
  EXPECT_EQ(computed, 10'500) << "every token once";
  EXPECT_EQ(order, (std::vector<RequestId>{RequestId{1}, RequestId{2}})) << "first come, first served";
}

TEST(ContextParallel, APartBelowTheFixedTimeStillMoves) {
  ContextParallelQueue queue(config(1), 2, millisecond_a_token());
  queue.add(request(1, 10'000));
  EXPECT_EQ(queue.plan(Nanos{10'000'000}).chunks.at(0).tokens, TokenCount{128});
  EXPECT_TRUE(queue.remove(RequestId{1}));
  EXPECT_EQ(queue.waiting(), 0U);
}

}  // namespace
}  // namespace trimtab::policy
