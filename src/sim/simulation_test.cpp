#include "sim/simulation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/prng.h"
#include "policy/prefill/assignment.h"
#include "sim/capacity.h"
#include "sim/test_workloads.h"

namespace trimtab::sim {
namespace {

using testing::arrivals;
using testing::simulate;
using testing::small_fleet;

class BothSpeeds : public ::testing::TestWithParam<SimulationSpeed> {};
INSTANTIATE_TEST_SUITE_P(Simulation, BothSpeeds,
                         ::testing::Values(SimulationSpeed::kExact, SimulationSpeed::kFast));

TEST_P(BothSpeeds, EveryRequestEndsAndEveryTokenIsCountedOnce) {
  model::Scenario scenario = small_fleet();
  scenario.speed = GetParam();
  const model::Trace trace = arrivals(400, 2.0, 7);
  const Result result = simulate(scenario, trace);
  EXPECT_EQ(result.finished, 400U);
  EXPECT_EQ(result.failed + result.unfinished, 0U);
  std::int64_t prompts = 0, outputs = 0;
  for (const model::TraceRequest& request : trace.requests) {
    prompts += request.prompt_tokens;
    outputs += request.output_tokens;
  }
  EXPECT_EQ(result.prompt_tokens, prompts);
  EXPECT_EQ(result.output_tokens, outputs);
  EXPECT_EQ(result.hit_tokens + result.computed_tokens, prompts) << "each prompt token is hit or computed";
  EXPECT_GT(result.hit_tokens, 0);
}

TEST_P(BothSpeeds, TwiceTheSame) {
  model::Scenario scenario = small_fleet();
  scenario.speed = GetParam();
  scenario.decode.tokens_per_step = 2.6;
  const model::Trace trace = arrivals(200, 3.0, 9);
  const Result once = simulate(scenario, trace), again = simulate(scenario, trace);
  EXPECT_EQ(once.event_hash, again.event_hash);
  EXPECT_EQ(once.events, again.events);
  EXPECT_EQ(once.all.ttft.quantile_s(0.99), again.all.ttft.quantile_s(0.99));
}

// Two prompts that take a step each: the first one's token waits for the second one's step where ranks speak
// between steps only, and the second one's, behind which nothing is computed, is not later for it.
TEST_P(BothSpeeds, ARankThatSpeaksBetweenStepsKeepsTheFirstTokenForOneStep) {
  model::Scenario scenario = small_fleet(1, 1);
  scenario.speed = GetParam();
  scenario.cluster.prefill.ranks = 1;
  scenario.cluster.prefill.step_budget_ms = 3'000;
  model::Trace trace;
  trace.requests.push_back({Nanos{0}, {}, 8'000, 5, 0, 0, 0, 0});
  trace.requests.push_back({Nanos{10'000'000}, {}, 8'000, 5, 1, 0, 0, 0});
  trace.conversations = 2;
  const auto first_tokens = [&] {
    const Result result = simulate(scenario, trace);
    std::vector<Nanos> at(2);
    for (const RequestTimes& request : result.requests) at[request.request] = request.first_token;
    return at;
  };
  const std::vector<Nanos> at_once = first_tokens();
  scenario.prefill.speaks_between_steps = true;
  const std::vector<Nanos> between = first_tokens();
  EXPECT_EQ(between[1], at_once[1]);
  EXPECT_GT(at_once[1] - at_once[0], Nanos{100'000'000});
  EXPECT_LT(between[1] - between[0], Nanos{5'000'000});
  EXPECT_GT(between[1], between[0]);
}

// The blocks that an answer fills are in the pool as those of a prompt are, once the trace has ids for them.
TEST_P(BothSpeeds, ASecondTurnHitsTheAnswerOfTheFirst) {
  model::Scenario scenario = small_fleet();
  scenario.speed = GetParam();
  model::Trace trace;
  trace.block_tokens = 128;
  // 100 + 414 tokens: the last one is drawn and not computed, and the first 513 fill four blocks.
  trace.requests.push_back({Nanos{0}, {}, 100, 414, 0, 0, 0, 1});
  trace.requests.push_back({Nanos{600'000'000'000}, {}, 700, 5, 1, 0, 1, 2});
  trace.runs = {{1, 4}, {1, 4}, {100, 1}};
  const Result known = simulate(scenario, trace);
  ASSERT_EQ(known.requests.size(), 2U);
  EXPECT_EQ(known.requests[1].hit, 512) << "prompt and answer";
  trace.requests[0].output_tokens = 412;  // the token that would fill the fourth is the last one
  EXPECT_EQ(simulate(scenario, trace).requests[1].hit, 384);
  trace.runs[0].count = 1;  // the trace has no ids for the answer
  EXPECT_EQ(simulate(scenario, trace).requests[1].hit, 128);
}

TEST_P(BothSpeeds, StepsWaitForTheSlowRank) {
  model::Scenario scenario = small_fleet(2, 1);
  scenario.speed = GetParam();
  scenario.cluster.decode.policy = "round_robin";
  scenario.profile.decode_step.attention_ns_per_kv_token = 100;
  scenario.profile.decode_step.dispatch_ns_per_request = 100'000;
  const model::Trace trace = arrivals(300, 4.0, 5);
  const Result even = simulate(scenario, trace);
  const std::size_t ranks = scenario.cluster.decode.ranks;
  scenario.cluster.decode.speeds_permille.assign(ranks, 1'000);
  EXPECT_EQ(simulate(scenario, trace).event_hash, even.event_hash);
  scenario.cluster.decode.speeds_permille.assign(ranks, 500);
  const Result half = simulate(scenario, trace);
  scenario.cluster.decode.speeds_permille.assign(ranks, 1'000);
  scenario.cluster.decode.speeds_permille[1] = 500;
  const Result one = simulate(scenario, trace);
  EXPECT_GT(one.all.tpot.mean_s(), even.all.tpot.mean_s() * 1.02);
  EXPECT_LT(one.all.tpot.mean_s(), half.all.tpot.mean_s());
  EXPECT_LT(one.decode_times.share(), even.decode_times.share()) << "what is lost to waiting grows";
  // A placement that knows the speeds gives the slow rank less.
  scenario.cluster.decode.policy = "waterline_hold";
  const Result knows = simulate(scenario, trace);
  EXPECT_LT(knows.all.tpot.mean_s(), one.all.tpot.mean_s());
}

TEST_P(BothSpeeds, PreemptedRequestsComeBackAndLoseNothing) {
  model::Scenario scenario = small_fleet(2, 1);
  scenario.speed = GetParam();
  scenario.cluster.decode.kv_blocks = 60;
  scenario.cluster.decode.headroom_tokens = 128;
  model::Trace trace = arrivals(120, 20.0, 3, 500);
  for (model::TraceRequest& request : trace.requests) {
    request.prompt_tokens = std::min<std::int64_t>(request.prompt_tokens, 2'000);
    request.output_tokens *= 5;
  }
  const Result result = simulate(scenario, trace);
  EXPECT_GT(result.preemptions, 0U);
  EXPECT_EQ(result.finished + result.failed, 120U);
  EXPECT_EQ(result.unfinished, 0U);
  std::int64_t outputs = 0;
  for (const model::TraceRequest& request : trace.requests) outputs += request.output_tokens;
  if (result.failed == 0) {
    EXPECT_EQ(result.output_tokens, outputs);
  }
}

TEST_P(BothSpeeds, ClosedLoopsStartTheNextTurnAfterTheLastHasEnded) {
  model::Scenario scenario = small_fleet();
  scenario.speed = GetParam();
  model::Trace trace;
  trace.closed_loop = true;
  const Nanos think{2'000'000'000};
  for (std::uint32_t c = 0; c < 20; ++c) {
    for (std::uint32_t turn = 0; turn < 5; ++turn) {
      trace.requests.push_back({Nanos{0}, turn == 0 ? Nanos{0} : think, 1'000 * (turn + 1), 50, c, turn});
    }
  }
  WorkloadOptions options;
  options.start_span = Nanos{10'000'000'000};
  const Result result = simulate(scenario, trace, options);
  ASSERT_EQ(result.requests.size(), 100U);
  std::vector<RequestTimes> times(100);
  for (const RequestTimes& one : result.requests) times[one.request] = one;
  for (std::size_t i = 0; i < times.size(); ++i) {
    if (trace.requests[i].turn == 0) continue;
    EXPECT_EQ(times[i].submitted, times[i - 1].ended + think);
  }
}

TEST_P(BothSpeeds, OneRequestTakesWhatItsPartsTake) {
  model::Scenario scenario = small_fleet(1, 1);
  scenario.speed = GetParam();
  model::Trace trace;
  trace.requests.push_back({Nanos{0}, {}, 1'200, 11, 0, 0});
  const Result result = simulate(scenario, trace);
  ASSERT_EQ(result.requests.size(), 1U);
  const RequestTimes& times = result.requests[0];
  const policy::CostModel cost(scenario.profile.cost, scenario.cluster.prefill.quota_scope);
  const Nanos compute = cost.step_fixed() + cost.whole(TokenCount{1'200}, TokenCount{0}, TokenCount{1'200});
  // Message to the rank, the step, and the way to the decode rank: the last chunk's KV and a message.
  const double kv_ns = 1'200.0 * 891 / scenario.network.hand_over_bytes_per_s * 1e9;
  const Nanos expected =
      compute + scenario.network.message + scenario.network.message + Nanos{static_cast<std::int64_t>(kv_ns)};
  EXPECT_NEAR(base::to_seconds(times.first_token - times.submitted), base::to_seconds(expected), 1e-6);
  double decode_ns = 0;
  for (std::int64_t i = 0; i < 10; ++i) {
    decode_ns += 15e6 + 21.0 * static_cast<double>(1'201 + i) + 70'000 + 70'000 / 4.0;
  }
  EXPECT_NEAR(base::to_seconds(times.ended - times.first_token), decode_ns * 1e-9, 1e-6);
}

double difference(double one, double other) { return std::abs(one - other) / other; }

TEST(Simulation, FastIsWithinOnePercentOfExact) {
  model::Trace trace = arrivals(6'000, 4.0, 21);
  // Answers of a few tokens would make the 99th percentile a lottery of which step they just missed.
  for (model::TraceRequest& request : trace.requests) request.output_tokens += 30;
  for (const double tokens_per_step : {1.0, 2.7}) {
    model::Scenario scenario = small_fleet(4, 2);
    scenario.decode.tokens_per_step = tokens_per_step;
    scenario.speed = SimulationSpeed::kExact;
    const Result exact = simulate(scenario, trace);
    scenario.speed = SimulationSpeed::kFast;
    const Result fast = simulate(scenario, trace);
    ASSERT_LT(exact.prefill_busy, 0.9);
    EXPECT_LT(fast.events * 3, exact.events) << "the closed form is what saves the events";
    EXPECT_LT(difference(fast.all.ttft.mean_s(), exact.all.ttft.mean_s()), 0.01);
    EXPECT_LT(difference(fast.all.ttft.quantile_s(0.99), exact.all.ttft.quantile_s(0.99)), 0.01);
    EXPECT_LT(difference(fast.all.tpot.mean_s(), exact.all.tpot.mean_s()), 0.01);
    EXPECT_LT(difference(fast.all.tpot.quantile_s(0.99), exact.all.tpot.quantile_s(0.99)), 0.01);
  }
}

TEST_P(BothSpeeds, LossesAddUpToTheBusyTime) {
  model::Scenario scenario = small_fleet();
  scenario.speed = GetParam();
  scenario.profile.decode_step.graph_sizes = {1, 2, 4, 8, 16, 24, 32};
  scenario.decode.expert_balance = 1.2;
  const Result result = simulate(scenario, arrivals(300, 3.0, 5));
  const double span = base::to_seconds(result.span);
  EXPECT_NEAR(result.decode_times.sum() * 1e-9, result.decode_busy * span * 2, 1e-3 * span);
  EXPECT_NEAR(result.prefill_times.sum() * 1e-9, result.prefill_busy * span * 2, 1e-3 * span);
  for (const double part :
       {result.decode_times.attention_wait, result.decode_times.batch_wait, result.decode_times.padding,
        result.decode_times.expert_imbalance, result.prefill_times.attention_wait}) {
    EXPECT_GT(part, 0);
  }
  EXPECT_LT(result.decode_times.share(), 1.0);
}

TEST(Simulation, MoreEnginesAreNotSlowerInTheMean) {
  double few = 0, many = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const model::Trace trace = arrivals(150, 4.0, seed);
    few += simulate(small_fleet(2, 1), trace).all.ttft.mean_s();
    many += simulate(small_fleet(4, 2), trace).all.ttft.mean_s();
  }
  EXPECT_LT(many, few);
}

TEST(Capacity, IsWhereATierStopsBeingServedWell) {
  const model::Trace trace = arrivals(300, 1.0, 13);
  const model::Scenario scenario = small_fleet(1, 1);
  const Capacity capacity = find_capacity(scenario, trace, {}, {}).value();
  ASSERT_GT(capacity.rate, 0);
  const auto share = [&](double rate) {
    WorkloadOptions options;
    options.rate = rate;
    double least = 1;
    const Result result = simulate(scenario, trace, options);
    for (const Latencies& tier : result.tiers) least = std::min(least, tier.share_served_well());
    return least;
  };
  EXPECT_GE(share(capacity.rate), 0.9);
  EXPECT_LT(share(capacity.rate * 1.02), 0.9);
  const Capacity twice = find_capacity(small_fleet(2, 2), trace, {}, {}).value();
  EXPECT_GT(twice.rate, 1.5 * capacity.rate);
}

TEST(Capacity, PullIsAheadOfPushingAtRandom) {
  const model::Trace trace = arrivals(400, 2.0, 17);
  model::Scenario scenario = small_fleet(2, 1);
  const double pull = find_capacity(scenario, trace, {}, {}).value().rate;
  scenario.cluster.prefill.assignment = "random";
  const double random = find_capacity(scenario, trace, {}, {}).value().rate;
  EXPECT_GT(pull, 1.3 * random);
}

TEST(Simulation, EveryAssignmentServesEverything) {
  const model::Trace trace = arrivals(150, 3.0, 4);
  for (const std::string_view name : policy::prefill_assignment_names()) {
    model::Scenario scenario = small_fleet();
    scenario.cluster.prefill.assignment = name;
    const Result result = simulate(scenario, trace);
    EXPECT_EQ(result.finished, 150U) << name;
  }
}

TEST(Simulation, RefusesNumbersThatAreNone) {
  const model::Trace trace = arrivals(1, 1.0, 1);
  model::Scenario scenario = small_fleet();
  scenario.decode.tokens_per_step = 0;
  const auto refused = Simulation::make(scenario, Workload::make(trace, {}).value());
  EXPECT_THAT(refused.error().message, ::testing::HasSubstr("decode.tokens_per_step is 0"));
  scenario = small_fleet();
  scenario.cluster.decode.policy = "waterlin";
  EXPECT_THAT(Simulation::make(scenario, Workload::make(trace, {}).value()).error().message,
              ::testing::HasSubstr("waterline"));
}

TEST(Simulation, ARequestThatNobodyCanTakeFailsInWords) {
  model::Trace trace;
  trace.requests.push_back({Nanos{0}, {}, 900'000, 11, 0, 0});
  const Result result = simulate(small_fleet(), trace);
  EXPECT_EQ(result.failed, 1U);
  ASSERT_EQ(result.failures.size(), 1U);
  EXPECT_THAT(result.failures[0], ::testing::HasSubstr("900000"));
}

}  // namespace
}  // namespace trimtab::sim
