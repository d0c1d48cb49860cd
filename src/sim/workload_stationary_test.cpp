#include "sim/workload_stationary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <vector>

#include "sim/ideal.h"
#include "sim/test_workloads.h"

namespace trimtab::sim {
namespace {

using ::testing::HasSubstr;
constexpr std::int64_t kSecond = 1'000'000'000;

/// Conversations of very different lengths: some end within a minute, some last for hours. Each has blocks of
/// its own, which grow with every turn.
model::Trace conversations(std::uint32_t count, std::uint64_t seed) {
  model::Trace trace;
  trace.name = "closed";
  trace.closed_loop = true;
  trace.block_tokens = 64;
  base::Prng prng(seed);
  for (std::uint32_t c = 0; c < count; ++c) {
    const auto turns = 1 + static_cast<std::uint32_t>(prng.exponential(9));
    const double pace_s = 10 * std::exp(1.5 * prng.normal());
    for (std::uint32_t t = 0; t < turns; ++t) {
      model::TraceRequest request;
      request.conversation = c;
      request.turn = t;
      request.think = Nanos{t == 0 ? 0 : static_cast<std::int64_t>(prng.exponential(pace_s) * kSecond)};
      request.prompt_tokens = 1'000 + 700 * t;
      request.output_tokens = 1 + static_cast<std::int64_t>(prng.exponential(100));
      request.runs_begin = static_cast<std::uint32_t>(trace.runs.size());
      request.runs_count = 1;
      trace.runs.push_back(
          {std::uint64_t{c + 1} << 32U,
           static_cast<std::uint32_t>((request.prompt_tokens + request.output_tokens - 1) / 64)});
      trace.requests.push_back(request);
    }
  }
  trace.conversations = count;
  return trace;
}

WorkloadOptions over(double span_s, bool stationary) {
  WorkloadOptions options;
  options.start_span = Nanos{static_cast<std::int64_t>(span_s * kSecond)};
  options.stationary = stationary;
  return options;
}

/// Of all arrivals the share in the first tenth of `span_s`.
double first_tenth(const Result& result, double span_s) {
  double early = 0;
  for (const RequestTimes& request : result.requests)
    early += base::to_seconds(request.submitted) < span_s / 10 ? 1 : 0;
  return early / static_cast<double>(result.requests.size());
}

TEST(Stationary, TheFirstTenthHasATenthOfTheArrivals) {
  constexpr double kSpan = 200;
  double folded = 0, from_nothing = 0;
  constexpr int kSeeds = 5;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const model::Trace trace = conversations(300, seed);
    folded +=
        first_tenth(testing::simulate(testing::small_fleet(), trace, over(kSpan, true)), kSpan) / kSeeds;
    from_nothing +=
        first_tenth(testing::simulate(testing::small_fleet(), trace, over(kSpan, false)), kSpan) / kSeeds;
  }
  // About 15,000 turns, which come in short bursts: the deviation of the share is below 0.5 points.
  EXPECT_NEAR(folded, 0.1, 0.012);
  EXPECT_LT(from_nothing, 0.06) << "a fleet that fills up has fewer arrivals at first: nothing to test";
}

TEST(Stationary, EveryTurnIsAskedOnceAndHitsWhatItsConversationHad) {
  const model::Trace trace = conversations(120, 3);
  const model::Scenario scenario = testing::small_fleet();
  WorkloadOptions options = over(300, true);
  options.rate = 2;
  options.repeats = 2;
  const Result result = testing::simulate(scenario, trace, options);
  EXPECT_EQ(result.finished, 2 * trace.requests.size());
  std::vector<int> asked(trace.requests.size());
  const std::vector<RequestWork> work = trace_work(trace, scenario);
  std::uint64_t later = 0;
  for (const RequestTimes& request : result.requests) {
    ++asked[request.request];
    later += work[request.request].hit > 0 ? 1 : 0;
    ASSERT_EQ(request.hit, work[request.request].hit) << "request " << request.request;
  }
  EXPECT_THAT(asked, ::testing::Each(2));
  EXPECT_GT(later, result.finished / 2) << "few have anything to hit: nothing was tested";
  // The second period begins where the first ends, 150 s later, at the same rate.
  double second = 0;
  for (const RequestTimes& request : result.requests)
    second += base::to_seconds(request.submitted) >= 150 ? 1 : 0;
  EXPECT_NEAR(second / static_cast<double>(result.finished), 0.5, 0.03);
}

TEST(Stationary, PiecesOfOneConversationDoNotShareBlocks) {
  const model::Trace trace = conversations(40, 5);
  WorkloadOptions options = over(20, true);
  Workload workload = Workload::make(trace, options).value();
  std::vector<model::BlockRun> runs;
  std::vector<std::pair<std::uint64_t, std::uint32_t>> seen;  // first block, conversation
  std::uint32_t laps = 0;
  while (const auto item = workload.next()) {
    workload.runs(*item, runs);
    seen.emplace_back(runs[0].first, workload.request(*item).conversation);
    laps = std::max(laps, item->lap);
  }
  EXPECT_GT(laps, 3U);
  EXPECT_GT(seen.size(), 60U);
  std::ranges::sort(seen);
  EXPECT_EQ(std::ranges::adjacent_find(seen), seen.end());
}

/// Where each turn would be when nothing waits is where the fold puts it: at its time modulo the period.
RC_GTEST_PROP(Stationary, PiecesFollowTheirConversationsModuloThePeriod, ()) {
  const model::Trace trace = conversations(*rc::gen::inRange(1U, 12U), *rc::gen::inRange(0U, 1000U));
  const std::int64_t span = *rc::gen::inRange<std::int64_t>(1, 500) * kSecond;
  const Starts starts = starts_of(trace, Nanos{span});
  const double rate = *rc::gen::element(0.5, 1.0, 4.0);
  const Folded folded = fold(trace, starts, rate, Nanos{kSecond / 100});
  const std::int64_t period = folded.starts.span.value;
  RC_ASSERT(period == static_cast<std::int64_t>(static_cast<double>(span) / rate));
  std::size_t pieces = 0;
  for (std::size_t s = 0; s < starts.request.size(); ++s) {
    auto at = static_cast<std::int64_t>(static_cast<double>(starts.at[s].value) / rate);
    for (std::uint32_t i = starts.request[s];
         i < trace.requests.size() &&
         trace.requests[i].conversation == trace.requests[starts.request[s]].conversation;
         ++i) {
      if (i > starts.request[s]) at += trace.requests[i].think.value;
      RC_ASSERT(folded.laps[i] == static_cast<std::uint32_t>(at / period));
      const auto found = std::ranges::find(folded.starts.request, i);
      const bool begins = i == starts.request[s] || folded.laps[i] != folded.laps[i - 1];
      RC_ASSERT((found != folded.starts.request.end()) == begins);
      const bool earlier = std::ranges::find(folded.under_way, i) != folded.under_way.end();
      RC_ASSERT(earlier == (begins && i != starts.request[s]));
      if (begins) {
        ++pieces;
        RC_ASSERT(folded.starts.at[static_cast<std::size_t>(found - folded.starts.request.begin())].value ==
                  at % period);
      }
      at += std::max<std::int64_t>(trace.requests[i].output_tokens, 1) * kSecond / 100;
    }
  }
  RC_ASSERT(pieces == folded.starts.request.size());
  RC_ASSERT(std::ranges::is_sorted(folded.starts.at));
}

TEST(Stationary, WhatCannotBeFoldedIsSaidInWords) {
  model::Trace open = testing::arrivals(20, 1, 1);
  EXPECT_THAT(Workload::make(open, over(10, true)).error().message, HasSubstr("resample it"));
  model::Trace slow = conversations(3, 1);
  slow.requests.resize(1);
  model::TraceRequest late = slow.requests[0];
  late.turn = 1;
  late.think = Nanos{100'000 * kSecond};
  slow.requests.push_back(late);
  const auto refused = Workload::make(slow, over(1, true));
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("use a longer span"));
  EXPECT_TRUE(Workload::make(slow, over(10, true)));
  WorkloadOptions negative = over(10, true);
  negative.answer_token = Nanos{-1};
  EXPECT_FALSE(Workload::make(slow, negative));
}

}  // namespace
}  // namespace trimtab::sim
