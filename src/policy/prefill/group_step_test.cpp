#include "policy/prefill/group_step.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>

namespace trimtab::policy {
namespace {

using base::Nanos;
using base::TokenCount;
using model::RequestId;

constexpr Nanos kBudget{320'000'000};

/// 20 ms fixed, 12,000 tokens/s, as much attention as rest at 65,536 tokens of context.
CostModel v3_like() {
  return CostModel(model::QuadraticCost{20'000'000, 83'333'000, 1'272}, model::QuotaScope::kWholeStep);
}

RankScheduler scheduler() {
  RankConfig config;
  config.step_budget = kBudget;
  return RankScheduler(config, v3_like());
}

RankRequest request(std::uint64_t id, std::int64_t prompt, std::int64_t computed = 0) {
  RankRequest out;
  out.id = RequestId{id};
  out.prompt = TokenCount{prompt};
  out.computed = TokenCount{computed};
  return out;
}

std::vector<const RankScheduler*> pointers(const std::vector<RankScheduler>& ranks) {
  std::vector<const RankScheduler*> out;
  for (const RankScheduler& rank : ranks) out.push_back(&rank);
  return out;
}

struct Load {
  Nanos attention, rest;
};

Load load_of(const StepPlan& plan) {
  if (plan.chunks.empty()) return {};
  return {plan.predicted_attention, plan.predicted_whole - plan.predicted_attention - v3_like().step_fixed()};
}

/// Work over ranks x the step's time, for plans that were made without regard to each other.
double ratio_of(const std::vector<StepPlan>& plans) {
  Nanos attention, rest;
  double work = 0;
  for (const StepPlan& plan : plans) {
    const Load load = load_of(plan);
    attention = std::max(attention, load.attention);
    rest = std::max(rest, load.rest);
    work += static_cast<double>((load.attention + load.rest).value);
  }
  return work / static_cast<double>(plans.size()) /
         static_cast<double>((v3_like().step_fixed() + attention + rest).value);
}

TEST(GroupStep, ALongContextLeavesTheRestOfItsRankToAFreshPrompt) {
  // On rank 0 a turn at 260,000 tokens of context comes before fresh prompts; rank 1 has fresh prompts alone.
  std::vector<RankScheduler> ranks{scheduler(), scheduler()};
  ranks[0].add(request(1, 266'000, 260'000));
  for (std::uint64_t id = 2; id < 12; ++id) ranks[id % 2].add(request(id, 1'500));
  const double one_budget = ratio_of({ranks[0].plan(kBudget), ranks[1].plan(kBudget)});
  const GroupStep step = compose_step(pointers(ranks), {kBudget, 0, 0});
  EXPECT_GT(step.work_ratio, one_budget * 1.05);
  EXPECT_NEAR(step.work_ratio, ratio_of(step.ranks), 1e-6) << "what it says is what its plans take";
  ASSERT_GE(step.ranks[0].chunks.size(), 2U) << "attention from one request, the rest from another";
  EXPECT_EQ(step.ranks[0].chunks[0].id, RequestId{1});
}

TEST(GroupStep, IdlePeersHelpWithALongRequest) {
  std::vector<RankScheduler> ranks{scheduler(), scheduler(), scheduler()};
  RankRequest far = request(1, 60'000);
  far.spreads = true;
  ranks[0].add(far);
  ranks[1].add(request(2, 2'000));
  const GroupStep step = compose_step(pointers(ranks), {kBudget, 20, 0.1});
  ASSERT_EQ(step.helps.size(), 1U);
  const HelpChunk& help = step.helps[0];
  EXPECT_EQ(help.rank, 0U);
  ASSERT_EQ(step.ranks[0].chunks.size(), 1U);
  EXPECT_EQ(help.chunk.computed, step.ranks[0].chunks[0].tokens) << "behind what its own rank computes";
  EXPECT_LT(help.rank_tokens[1] * 2, help.rank_tokens[2]) << "who has work of its own takes less";
  ASSERT_EQ(step.ranks[1].chunks.size(), 1U);
  EXPECT_EQ(step.ranks[1].chunks[0].tokens, TokenCount{2'000});
  EXPECT_GT(step.work_ratio, 0.85);

  far.spreads = false;
  std::vector<RankScheduler> alone{scheduler(), scheduler(), scheduler()};
  alone[0].add(far);
  alone[1].add(request(2, 2'000));
  const GroupStep without = compose_step(pointers(alone), {kBudget, 20, 0.1});
  EXPECT_TRUE(without.helps.empty()) << "nobody takes queries of what does not spread";
  EXPECT_LT(without.work_ratio, 0.6);
}

TEST(GroupStep, NothingWaitsNothingIsPlanned) {
  const std::vector<RankScheduler> ranks{scheduler(), scheduler()};
  const GroupStep step = compose_step(pointers(ranks), {kBudget, 50, 0.1});
  EXPECT_TRUE(step.helps.empty());
  for (const StepPlan& plan : step.ranks) EXPECT_TRUE(plan.chunks.empty());
}

TEST(GroupStep, AnImageIsNotCutByASlice) {
  std::vector<RankScheduler> ranks{scheduler()};
  RankRequest with_image = request(1, 3'000);
  model::ImageSpan image;
  image.position = 100;
  image.tokens = 1'500;
  with_image.images = {image};
  ranks[0].add(with_image);
  const GroupStep step = compose_step(pointers(ranks), {kBudget, 50, 0});
  ASSERT_EQ(step.ranks[0].chunks.size(), 1U);
  EXPECT_GE(step.ranks[0].chunks[0].tokens, TokenCount{1'600});
}

TEST(GroupStep, AStepTooShortForAnythingStillMoves) {
  std::vector<RankScheduler> ranks{scheduler(), scheduler()};
  ranks[1].add(request(1, 900'000, 899'000));
  const GroupStep step = compose_step(pointers(ranks), {Nanos{20'000'010}, 50, 0.1});
  ASSERT_EQ(step.ranks[1].chunks.size(), 1U);
  EXPECT_EQ(step.ranks[1].chunks[0].tokens, TokenCount{128});
  EXPECT_EQ(step.ranks[1].chunks[0].reason, ChunkReason::kMinimum);
}

/// Random ranks, some of whose work spreads; steps until everything is computed.
RC_GTEST_PROP(GroupStepProperty, BudgetsHoldAndEveryTokenIsComputedOnce, ()) {
  const auto count = *rc::gen::inRange<std::size_t>(1, 6);
  const GroupStepConfig config{kBudget, *rc::gen::inRange<std::int64_t>(0, 101), 0.1};
  std::vector<RankScheduler> ranks;
  for (std::size_t r = 0; r < count; ++r) ranks.push_back(scheduler());
  std::map<std::uint64_t, std::int64_t> computed, prompt;
  const auto requests = *rc::gen::inRange<std::uint64_t>(1, 25);
  for (std::uint64_t id = 1; id <= requests; ++id) {
    computed[id] = *rc::gen::inRange<std::int64_t>(0, 150'000);
    prompt[id] = computed[id] + *rc::gen::inRange<std::int64_t>(1, 6'000);
    RankRequest one = request(id, prompt[id], computed[id]);
    one.spreads = *rc::gen::arbitrary<bool>();
    ranks[*rc::gen::inRange<std::size_t>(0, count)].add(one);
  }
  for (int steps = 0; computed != prompt; ++steps) {
    RC_ASSERT(steps < 3'000);
    GroupStep step = compose_step(pointers(ranks), config);
    std::vector<double> attention(count), rest(count);
    bool minimum = false;
    const auto goes_on = [&](const PlannedChunk& chunk) {
      minimum = minimum || chunk.reason == ChunkReason::kMinimum;
      RC_ASSERT(chunk.tokens > TokenCount{0});
      RC_ASSERT(computed.at(chunk.id.value) == chunk.computed.value);
      computed[chunk.id.value] += chunk.tokens.value;
      RC_ASSERT(computed[chunk.id.value] <= prompt[chunk.id.value]);
    };
    for (std::size_t r = 0; r < count; ++r) {
      attention[r] = static_cast<double>(load_of(step.ranks[r]).attention.value);
      rest[r] = static_cast<double>(load_of(step.ranks[r]).rest.value);
      for (const PlannedChunk& chunk : step.ranks[r].chunks) goes_on(chunk);
    }
    for (const HelpChunk& help : step.helps) {
      std::int64_t sum = 0;
      for (std::size_t r = 0; r < count; ++r) {
        RC_ASSERT(help.rank_tokens[r] >= TokenCount{0});
        sum += help.rank_tokens[r].value;
        const double part = (r == help.rank ? 1 : 1.1) * static_cast<double>(help.rank_tokens[r].value) /
                            static_cast<double>(help.chunk.tokens.value);
        attention[r] += part * static_cast<double>(help.attention.value);
        rest[r] += part * static_cast<double>(help.rest.value);
      }
      RC_ASSERT(sum == help.chunk.tokens.value);
      goes_on(help.chunk);
      // As an engine reports it: what peers computed is the rank's own chunk, made longer.
      auto& chunks = step.ranks[help.rank].chunks;
      const auto own = std::ranges::find(chunks, help.chunk.id, &PlannedChunk::id);
      if (own == chunks.end()) {
        chunks.push_back(help.chunk);
      } else {
        own->tokens += help.chunk.tokens;
      }
    }
    // Cutting queries into whole tokens is off by a token or two, each of at most 0.4 ms here.
    const double slack = 1e6 * static_cast<double>(step.helps.size() + 1);
    for (std::size_t r = 0; r < count && !minimum; ++r) {
      RC_ASSERT(attention[r] <= static_cast<double>(step.budget.attention.value) + slack);
      RC_ASSERT(rest[r] <= static_cast<double>(step.budget.rest.value) + slack);
    }
    for (std::size_t r = 0; r < count; ++r) ranks[r].done(step.ranks[r], step.ranks[r].predicted_whole);
  }
}

}  // namespace
}  // namespace trimtab::policy
