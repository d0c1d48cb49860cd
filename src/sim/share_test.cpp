#include "sim/share.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "base/prng.h"
#include "sim/cost_error.h"
#include "sim/fluid.h"
#include "sim/ideal.h"
#include "sim/simulation.h"
#include "sim/test_workloads.h"

namespace trimtab::sim {
namespace {

model::Scenario small() {
  model::Scenario scenario = testing::small_fleet(2, 1);
  scenario.cluster.prefill.ranks = 4;
  scenario.cluster.decode.max_running = 64;
  scenario.cluster.gateway.requests_queued_max = 1'000'000;
  return scenario;
}

model::Trace synthetic(std::int64_t requests, double per_second, std::uint64_t seed) {
  model::Trace trace;
  base::Prng prng(seed);
  double at = 0;
  for (std::int64_t i = 0; i < requests; ++i) {
    at += prng.exponential(1.0 / per_second);
    model::TraceRequest request;
    request.arrival = Nanos{static_cast<std::int64_t>(at * 1e9)};
    request.prompt_tokens = 1 + static_cast<std::int64_t>(std::min(3'000 * std::exp(prng.normal()), 1e5));
    request.output_tokens = 1 + static_cast<std::int64_t>(prng.exponential(100));
    request.conversation = static_cast<std::uint32_t>(i);
    trace.requests.push_back(request);
  }
  trace.conversations = static_cast<std::uint32_t>(requests);
  return trace;
}

/// 0 or more blocks that everybody shares, then own ones.
void share_prefix(model::Trace& trace, std::uint32_t blocks) {
  trace.block_tokens = 128;
  for (model::TraceRequest& request : trace.requests) {
    request.runs_begin = static_cast<std::uint32_t>(trace.runs.size());
    request.runs_count = 1;
    trace.runs.push_back({1, blocks});
  }
}

using testing::simulate;

TEST(Ideal, CostsAreTheProfilesAndHitsThoseOfWhatCameBefore) {
  model::Trace trace;
  trace.requests = {{.arrival = {}, .think = {}, .prompt_tokens = 1'000, .output_tokens = 11},
                    {.arrival = {}, .think = {}, .prompt_tokens = 1'000, .output_tokens = 1}};
  share_prefix(trace, 5);
  const model::Scenario scenario = small();
  const auto work = trace_work(trace, scenario);
  EXPECT_EQ(work[0].hit, 0);
  EXPECT_EQ(work[1].hit, 640);
  EXPECT_EQ(work[0].work(), Nanos{83'000 * 1'000 + 635'000}) << "1,000 x (83 us + 1.27 ns x 500)";
  WorkSums sums;
  sums.add(work[0], 1.0);
  EXPECT_EQ(sums.request_steps, 10);
  EXPECT_EQ(sums.kv_token_steps, 10 * 1'001 + 45) << "1,001 tokens, one more each step";
}

TEST(Ideal, OfflineIsWorkOverRanksInFullSteps) {
  const model::Scenario scenario = small();
  WorkSums sums;
  sums.rest_ns = 8 * 280e6;  // one full step of each rank: 300 ms, 20 of them fixed
  EXPECT_EQ(offline(sums, scenario).prefill, Nanos{300'000'000});
  EXPECT_NEAR(offline(sums, scenario).prefill_speed, 280.0 / 300, 1e-12);
  sums.request_steps = 4 * 64 * 10;
  sums.kv_token_steps = sums.request_steps * 100;
  const Offline even = offline(sums, scenario);
  EXPECT_EQ(even.decode_batch, 64);
  EXPECT_EQ(even.decode_step, Nanos{15'000'000 + 64 * 140'000 + 6'400 * 21});
  EXPECT_EQ(even.decode, Nanos{10 * even.decode_step.value});
  sums.kv_token_steps = sums.request_steps * 51'200;  // ten of them fill a rank's 512,000 tokens
  EXPECT_EQ(offline(sums, scenario).decode_batch, 10);
}

// Nothing the simulator does may beat a server without waste that takes work in the same order.
TEST(Fluid, BoundsWhatTheSimulatorServesWell) {
  for (const char* order : {"fifo", "edf", "arrival_plus_work"}) {
    model::Scenario scenario = small();
    scenario.cluster.prefill.order = order;
    scenario.cluster.prefill.tier_bounds_tokens.clear();
    const model::Trace trace = synthetic(1'500, 10, 3);
    const auto work = trace_work(trace, scenario);
    const double fluid = ideal_capacity(scenario, trace, work, {}, {}, IdealServer::kFluid).value();
    const double ranks = ideal_capacity(scenario, trace, work, {}, {}, IdealServer::kRanks).value();
    const double ours = find_capacity(scenario, trace, {}, {}).value().rate;
    EXPECT_LE(ours, fluid * 1.011) << order;
    EXPECT_GE(ours, 0.7 * ranks) << order << ": and it comes near";
    EXPECT_GT(fluid, 0);
  }
}

TEST(Fluid, AFluidServerIsAsFastAsAllRanksTogether) {
  model::Scenario scenario = small();
  model::Trace trace;
  // 100 s of work at once: 12.5 s and the fixed parts on all eight ranks together.
  for (int i = 0; i < 100; ++i)
    trace.requests.push_back({.arrival = {}, .think = {}, .prompt_tokens = 10'000, .output_tokens = 1});
  const auto work = trace_work(trace, scenario);
  const double seconds = base::to_seconds(work[0].work()) * 100;
  const auto fluid = serve_ideally(scenario, trace, work, {}, IdealServer::kFluid).value();
  EXPECT_NEAR(base::to_seconds(fluid.span), seconds / 8 * 300 / 280, 1e-3);
  const auto ranks = serve_ideally(scenario, trace, work, {}, IdealServer::kRanks).value();
  EXPECT_NEAR(base::to_seconds(ranks.span), base::to_seconds(work[0].work()) * 13 * 300 / 280, 1e-3)
      << "100 whole requests on 8 ranks: somebody has 13";
}

TEST(Share, SaturatedPartsAddUpAndAgreeWithTheEngines) {
  model::Scenario scenario = small();
  scenario.profile.decode_step.graph_sizes = {8, 16, 32, 64};
  scenario.decode.expert_balance = scenario.prefill.expert_balance = 1.1;
  const model::Trace trace = synthetic(2'000, 10, 5);
  for (const SaturatedStage stage :
       {SaturatedStage::kWhole, SaturatedStage::kPrefill, SaturatedStage::kDecode}) {
    const auto one = measure_saturated(scenario, trace, {}, stage);
    ASSERT_TRUE(one) << one.error().message;
    EXPECT_NEAR(one->share + one->losses.sum(), 100, 1e-9);
    EXPECT_GT(one->share, 40);
    EXPECT_LT(one->share, 100);
    EXPECT_GT(one->losses.experts, 0.5);
    EXPECT_NEAR(one->unaccounted, 0, 2) << "what the engines say they lost to arrivals";
    EXPECT_EQ(one->decode_bound && one->losses.padding > 0, one->decode_bound);
  }
  EXPECT_FALSE(measure_saturated(scenario, trace, {}, SaturatedStage::kPrefill)->decode_bound);
  EXPECT_TRUE(measure_saturated(scenario, trace, {}, SaturatedStage::kDecode)->decode_bound);
}

TEST(Share, DecodeAloneDoesNotDependOnPrefillPolicies) {
  model::Scenario scenario = small();
  const model::Trace trace = synthetic(2'000, 10, 5);
  scenario.cluster.prefill.order = "fifo";
  scenario.cluster.prefill.tier_bounds_tokens.clear();
  const auto fifo = measure_saturated(scenario, trace, {}, SaturatedStage::kDecode);
  ASSERT_TRUE(fifo) << fifo.error().message;
  scenario.cluster.prefill.order = "edf";
  scenario.cluster.prefill.tier_bounds_tokens = {4'096, 16'384};
  scenario.cluster.prefill.vote = "mean";
  const auto edf = measure_saturated(scenario, trace, {}, SaturatedStage::kDecode);
  ASSERT_TRUE(edf) << edf.error().message;
  EXPECT_EQ(edf->share, fifo->share);
  scenario.cluster.decode.policy = "round_robin";
  const auto robin = measure_saturated(scenario, trace, {}, SaturatedStage::kDecode);
  ASSERT_TRUE(robin) << robin.error().message;
  EXPECT_NE(robin->share, fifo->share) << "decode's own policy does count";
}

TEST(Share, TheFluidServerSaysWhetherArrivalsCostAnything) {
  // 1.3 x what it can take: never idle. A closed loop of one conversation comes one turn at a time.
  const auto backlogged = measure_saturated(small(), synthetic(400, 5, 3), {}, SaturatedStage::kPrefill);
  ASSERT_TRUE(backlogged) << backlogged.error().message;
  EXPECT_GT(backlogged->fluid_busy, 99.9);
  EXPECT_GE(backlogged->fluid_busy, backlogged->share - 2);
  model::Trace loop = synthetic(40, 5, 3);
  loop.closed_loop = true;
  loop.conversations = 1;
  for (std::uint32_t i = 0; i < loop.requests.size(); ++i) {
    loop.requests[i].conversation = 0;
    loop.requests[i].turn = i;
    loop.requests[i].think = Nanos{2'000'000'000};
  }
  const auto alone = measure_saturated(small(), loop, {}, SaturatedStage::kPrefill);
  ASSERT_TRUE(alone) << alone.error().message;
  EXPECT_LT(alone->fluid_busy, 30);
}

TEST(Share, RefusesRunsThatDoNotAddUp) {
  model::Scenario scenario = small();
  scenario.keep_requests = true;
  const model::Trace trace = synthetic(200, 5, 9);
  const Result good = simulate(scenario, trace);
  EXPECT_TRUE(check_conservation(scenario, trace, good));
  Result struck = good;
  struck.prefill_tokens -= struck.prefill_tokens / 200;
  EXPECT_FALSE(check_conservation(scenario, trace, struck));
  struck.faults.engines_lost = 1;
  EXPECT_TRUE(check_conservation(scenario, trace, struck)) << "half a percent is what faults may blur";
  struck.prefill_tokens -= struck.prefill_tokens / 50;
  EXPECT_FALSE(check_conservation(scenario, trace, struck));
  const auto refused = [&](auto&& spoil, const char* says) {
    Result bad = good;
    spoil(bad);
    const auto status = check_conservation(scenario, trace, bad);
    ASSERT_FALSE(status);
    EXPECT_THAT(status.error().message, ::testing::HasSubstr(says));
  };
  refused([](Result& bad) { --bad.finished; }, "199 finished");
  refused([](Result& bad) { --bad.output_tokens; }, "delivered");
  refused([](Result& bad) { ++bad.requests[7].hit; }, "were not hit");
  refused([](Result& bad) { bad.prefill_work_ns *= 1 + 3e-6; }, "whose work is");
}

TEST(Share, JitterMovesArrivalsAndKeepsTheRequests) {
  const model::Trace trace = synthetic(300, 5, 2);
  EXPECT_EQ(jittered(trace, 0, Nanos{1'000'000'000}).requests[5].arrival, trace.requests[5].arrival);
  const model::Trace one = jittered(trace, 1, Nanos{1'000'000'000});
  const model::Trace two = jittered(trace, 2, Nanos{1'000'000'000});
  const auto tokens = [](const model::Trace& of) {
    return std::accumulate(of.requests.begin(), of.requests.end(), std::int64_t{0},
                           [](std::int64_t sum, const auto& each) { return sum + each.prompt_tokens; });
  };
  EXPECT_EQ(tokens(one), tokens(trace));
  EXPECT_NE(one.requests[5].arrival, two.requests[5].arrival);
  EXPECT_TRUE(std::ranges::is_sorted(one.requests, {}, &model::TraceRequest::arrival));
  EXPECT_EQ(jittered(trace, 1, Nanos{1'000'000'000}).requests[9].arrival, one.requests[9].arrival);
}

TEST(Share, EstimatesAreStudents) {
  EXPECT_EQ(Estimate::of({3}).half_width, 0);
  const Estimate three = Estimate::of({1, 2, 3});
  EXPECT_EQ(three.mean, 2);
  EXPECT_NEAR(three.half_width, 4.303 / std::sqrt(3.0), 1e-3);
}

TEST(CostError, IsOfMeanOneAndTheSamePerRequest) {
  model::Scenario scenario = small();
  EXPECT_EQ(cost_factor(scenario, RequestId{5ULL << Host::kSlotBits}), 1.0);
  scenario.prefill.cost_error = 0.3;
  double sum = 0, logs = 0, squares = 0;
  constexpr int kDraws = 20'000;
  for (std::uint64_t i = 0; i < kDraws; ++i) {
    const double factor = cost_factor(scenario, RequestId{i << Host::kSlotBits | 7});
    EXPECT_EQ(factor, cost_factor(scenario, RequestId{i << Host::kSlotBits | 9})) << "whatever slot";
    sum += factor;
    logs += std::log(factor);
    squares += std::log(factor) * std::log(factor);
  }
  EXPECT_NEAR(sum / kDraws, 1, 0.01);
  EXPECT_NEAR(std::sqrt(squares / kDraws - logs / kDraws * logs / kDraws), 0.3, 0.01);
}

// A long prompt spread over the group: it is there sooner, the others later, and no token is lost.
TEST(ContextParallelRun, LongPromptsAreTheWholeGroups) {
  model::Scenario scenario = small();
  scenario.keep_requests = true;
  scenario.cluster.prefill.engines = 1;
  model::Trace trace = synthetic(40, 0.5, 4);
  trace.requests[10].prompt_tokens = 100'000;
  const Result alone = simulate(scenario, trace);
  scenario.cluster.prefill.context_parallel_quotas = 8;
  const Result together = simulate(scenario, trace);
  EXPECT_TRUE(check_conservation(scenario, trace, together));
  const auto ttft = [](const Result& of) {
    for (const RequestTimes& each : of.requests) {
      if (each.request == 10) return base::to_seconds(each.first_token - each.submitted);
    }
    return 0.0;
  };
  EXPECT_LT(ttft(together), 0.6 * ttft(alone));
}

TEST(TwoBudgetsRun, NoTokenIsLostAndSaturatedRanksWaitLess) {
  model::Scenario scenario = small();
  scenario.cluster.prefill.engines = 1;
  scenario.cluster.prefill.context_parallel_quotas = 1;
  scenario.cluster.prefill.outstanding_steps = 8;
  const model::Trace trace = synthetic(600, 2, 5);
  const auto share = [&] {
    const auto measured = measure_saturated(scenario, trace, {}, SaturatedStage::kPrefill);
    EXPECT_TRUE(measured) << (measured ? "" : measured.error().message);
    return measured ? measured->share : 0.0;
  };
  const double even = share();
  scenario.cluster.prefill.compose = "two_budgets";
  EXPECT_GT(share(), even) << "measure_saturated checks that every token is computed once";
}

/// Long prompts beside short ones under two budgets: the long ones are there sooner for their peers' help and
/// no short one is later for it; without help, they are no later than the deadlines' order makes them.
TEST(TwoBudgetsRun, HelpBringsLongPromptsSoonerAndShortOnesNoLater) {
  model::Scenario scenario = small();
  scenario.keep_requests = true;
  scenario.cluster.prefill.engines = 1;
  scenario.cluster.prefill.ranks = 4;
  scenario.cluster.prefill.compose = "two_budgets";
  scenario.cluster.prefill.outstanding_steps = 8;
  model::Trace trace = synthetic(200, 4, 11);
  for (std::size_t i = 5; i < trace.requests.size(); i += 20) trace.requests[i].prompt_tokens = 90'000;
  const auto mean_ttft = [](const Result& of, bool long_ones) {
    double sum = 0, count = 0;
    for (const RequestTimes& each : of.requests) {
      if ((each.prompt == 90'000) != long_ones) continue;
      sum += base::to_seconds(each.first_token - each.submitted);
      ++count;
    }
    return sum / count;
  };
  const Result alone = simulate(scenario, trace);
  scenario.cluster.prefill.context_parallel_quotas = 2;
  scenario.cluster.prefill.context_parallel_percent = 50;
  const Result helped = simulate(scenario, trace);
  for (const Result* result : {&alone, &helped}) {
    EXPECT_TRUE(check_conservation(scenario, trace, *result));
    EXPECT_EQ(result->prefill_tokens, result->computed_tokens) << "nothing twice";
  }
  EXPECT_LT(mean_ttft(helped, true), 0.6 * mean_ttft(alone, true));
  EXPECT_LT(mean_ttft(helped, false), 1.05 * mean_ttft(alone, false));
  EXPECT_EQ(simulate(scenario, trace).event_hash, helped.event_hash);
}

/// A rank of the group leaves while peers help it: what they computed of its requests goes with it, what it
/// computed of theirs does not, and every request ends.
TEST(TwoBudgetsRun, RanksThatLeaveWhileOthersHelpLoseNoRequest) {
  model::Scenario scenario = small();
  scenario.keep_requests = true;
  scenario.cluster.prefill.engines = 2;
  scenario.cluster.prefill.compose = "two_budgets";
  scenario.cluster.prefill.context_parallel_quotas = 1;
  scenario.cluster.prefill.context_parallel_percent = 50;
  scenario.cluster.prefill.outstanding_steps = 8;
  const model::Trace trace = synthetic(400, 6, 12);
  for (const auto& [at_s, engine] : {std::pair{7.0, 0}, std::pair{23.0, 1}, std::pair{41.0, 0}}) {
    scenario.faults.faults.push_back(testing::fault_at(model::FaultKind::kEngine, at_s, 5));
    scenario.faults.faults.back().targets = {engine};
  }
  const Result result = simulate(scenario, trace);
  EXPECT_EQ(result.finished, 400U) << (result.failures.empty() ? "" : result.failures[0]);
  EXPECT_TRUE(check_conservation(scenario, trace, result));
  EXPECT_EQ(result.faults.engines_lost, 3U);
}

TEST(Share, ATraceOfOneRequestIsAnErrorThatSaysWhatToDo) {
  const auto measured = measure_share(small(), synthetic(1, 1, 6), {}, {});
  ASSERT_FALSE(measured);
  EXPECT_THAT(measured.error().message, ::testing::HasSubstr("1 request"));
  EXPECT_THAT(measured.error().message, ::testing::HasSubstr("at least 10"));
}

}  // namespace
}  // namespace trimtab::sim
