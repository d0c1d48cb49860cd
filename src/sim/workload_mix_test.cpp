#include "sim/workload_mix.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "sim/workload.h"
#include "sim/workload_resample.h"

namespace trimtab::sim {
namespace {

using testing::HasSubstr;
constexpr std::int64_t kSecond = 1'000'000'000;

/// `count` requests, one each `gap_s`, with the prompt length as their mark, and one block of their own each.
model::Trace open_loop(std::int64_t count, double gap_s, std::int64_t prompt, std::int64_t block = 512) {
  model::Trace trace;
  trace.name = "open";
  trace.block_tokens = block;
  for (std::int64_t i = 0; i < count; ++i) {
    model::TraceRequest request;
    request.arrival = Nanos{static_cast<std::int64_t>(static_cast<double>(i) * gap_s * 1e9)};
    request.prompt_tokens = prompt;
    request.output_tokens = i + 1;
    request.conversation = trace.conversations++;
    request.runs_begin = static_cast<std::uint32_t>(trace.runs.size());
    request.runs_count = 1;
    trace.runs.push_back({(1ULL << 40U) + static_cast<std::uint64_t>(i), 1});
    trace.requests.push_back(request);
  }
  trace.span = Nanos{static_cast<std::int64_t>(static_cast<double>(count) * gap_s * 1e9)};
  return trace;
}

model::Trace closed_loop(std::uint32_t conversations, std::uint32_t turns) {
  model::Trace trace;
  trace.name = "closed";
  trace.closed_loop = true;
  trace.block_tokens = 64;
  for (std::uint32_t c = 0; c < conversations; ++c) {
    for (std::uint32_t t = 0; t < turns; ++t) {
      model::TraceRequest request;
      request.think = Nanos{t * kSecond};
      request.prompt_tokens = 7;
      request.conversation = c;
      request.turn = t;
      request.runs_begin = static_cast<std::uint32_t>(trace.runs.size());
      request.runs_count = 1;
      trace.runs.push_back({std::uint64_t{c + 1} << 32U, t + 1});
      trace.requests.push_back(request);
    }
  }
  trace.conversations = conversations;
  return trace;
}

std::map<std::int64_t, std::int64_t> by_prompt(const model::Trace& trace) {
  std::map<std::int64_t, std::int64_t> count;
  for (const auto& request : trace.requests) ++count[request.prompt_tokens];
  return count;
}

TEST(Mix, SharesAreOfRequestsAndTheTotalRateStays) {
  // 1/s and 0.5/s; at 30 : 70 the first runs at 0.45/s, the second at 1.05/s: 222 s and 95 s a run.
  const std::vector<model::Trace> traces = {open_loop(100, 1, 10), open_loop(100, 2, 20)};
  const auto mixed = mix(traces, {{3, 7}, {}}).value();
  const auto count = by_prompt(mixed);
  EXPECT_EQ(count.at(10), 100);
  EXPECT_NEAR(static_cast<double>(count.at(20)), 100 * 7.0 / 3, 1);
  EXPECT_NEAR(base::to_seconds(mixed.span), 100 / 0.45, 1e-6);
  EXPECT_NEAR(static_cast<double>(mixed.requests.size()) / base::to_seconds(mixed.span), 1.5, 0.01);
  EXPECT_TRUE(std::ranges::is_sorted(mixed.requests, {}, &model::TraceRequest::arrival));
  EXPECT_LT(mixed.requests.back().arrival, mixed.span);
  EXPECT_FALSE(mixed.closed_loop);
  // Both come all the time: the share holds in each half.
  const auto middle = std::ranges::lower_bound(mixed.requests, Nanos{mixed.span.value / 2}, {},
                                               &model::TraceRequest::arrival);
  std::int64_t early = 0;
  for (auto at = mixed.requests.begin(); at != middle; ++at) early += at->prompt_tokens == 10 ? 1 : 0;
  EXPECT_NEAR(static_cast<double>(early), 50, 1);
}

TEST(Mix, WithoutSharesTracesKeepTheirTimes) {
  const std::vector<model::Trace> traces = {open_loop(10, 1, 10), open_loop(20, 1, 20)};
  const auto mixed = mix(traces, {}).value();
  const auto count = by_prompt(mixed);
  EXPECT_EQ(count.at(10), 20) << "the shorter one runs twice";
  EXPECT_EQ(count.at(20), 20);
  for (const auto& request : mixed.requests) EXPECT_EQ(request.arrival.value % kSecond, 0);
}

TEST(Mix, BlocksOfTracesAndOfRunsAreApartAndCutAlike) {
  const std::vector<model::Trace> traces = {open_loop(10, 1, 10, 512), open_loop(20, 1, 20, 64)};
  const auto mixed = mix(traces, {}).value();
  EXPECT_EQ(mixed.block_tokens, 64);
  std::set<std::uint64_t> seen;
  for (const auto& request : mixed.requests) {
    const auto runs = mixed.runs_of(request);
    ASSERT_EQ(runs.size(), 1U);
    EXPECT_EQ(runs[0].count, request.prompt_tokens == 10 ? 8U : 1U);
    for (std::uint32_t i = 0; i < runs[0].count; ++i) {
      EXPECT_TRUE(seen.insert(runs[0].first + i).second) << "every request had a block of its own";
      EXPECT_LT(runs[0].first + i, 1ULL << 20U) << "ids are dense";
    }
  }
}

TEST(Mix, AClosedLoopStaysOneBesideAnOpenOne) {
  const std::vector<model::Trace> traces = {open_loop(30, 1, 10), closed_loop(5, 3)};
  const auto mixed = mix(traces, {{}, Nanos{30 * kSecond}}).value();
  EXPECT_TRUE(mixed.closed_loop);
  EXPECT_EQ(mixed.conversations, 35U);
  const auto count = by_prompt(mixed);
  EXPECT_EQ(count.at(10), 30);
  EXPECT_EQ(count.at(7), 15);
  // As a workload: first turns in order of time, then each conversation follows itself.
  auto workload = Workload::make(mixed, {}).value();
  std::vector<Workload::Item> starts;
  while (const auto item = workload.next()) starts.push_back(*item);
  EXPECT_EQ(starts.size(), 35U);
  EXPECT_TRUE(std::ranges::is_sorted(starts, {}, &Workload::Item::at));
  std::int64_t followed = 0;
  for (const auto& start : starts) {
    if (workload.request(start).prompt_tokens == 10) {
      EXPECT_FALSE(workload.follow(start, start.at)) << "an open loop's request has no next turn";
      continue;
    }
    auto turn = workload.follow(start, Nanos{100 * kSecond});
    ASSERT_TRUE(turn);
    EXPECT_EQ(turn->at, Nanos{101 * kSecond});
    EXPECT_EQ(mixed.runs_of(workload.request(*turn))[0].first,
              mixed.runs_of(workload.request(start))[0].first);
    turn = workload.follow(*turn, Nanos{200 * kSecond});
    ASSERT_TRUE(turn);
    EXPECT_FALSE(workload.follow(*turn, turn->at));
    ++followed;
  }
  EXPECT_EQ(followed, 5);
  // Twice as fast means twice as many starts in the same time, in the second run too.
  auto faster = Workload::make(mixed, {2.0, {}, INT64_MAX, 2}).value();
  Nanos last{};
  std::size_t drawn = 0;
  while (const auto item = faster.next()) {
    EXPECT_GE(item->at, last);
    last = item->at;
    ++drawn;
  }
  EXPECT_EQ(drawn, 70U);
  EXPECT_NEAR(base::to_seconds(last), 30, 1);
}

TEST(Mix, WrongSharesAreErrors) {
  const std::vector<model::Trace> traces = {open_loop(10, 1, 10), open_loop(10, 1, 20, 100)};
  const auto refused = [&](std::vector<double> shares) {
    const auto mixed = mix(traces, {std::move(shares), {}});
    return mixed ? "" : mixed.error().message;
  };
  EXPECT_THAT(refused({}), HasSubstr("blocks of 512, 100 tokens have only 4 in common"));
  const std::vector<model::Trace> alike = {open_loop(10, 1, 10), open_loop(10, 1, 20)};
  const auto error_of = [&](std::vector<double> shares) {
    const auto mixed = mix(alike, {std::move(shares), {}});
    return mixed ? "" : mixed.error().message;
  };
  EXPECT_THAT(error_of({1}), HasSubstr("1 shares for 2 traces"));
  EXPECT_THAT(error_of({1, 0}), HasSubstr("a share of 0"));
  EXPECT_THAT(error_of({1, -1}), HasSubstr("a share of -1"));
  EXPECT_THAT(error_of({1, NAN}), HasSubstr("a share of nan"));
  EXPECT_THAT(error_of({1, INFINITY}), HasSubstr("a share of inf"));
  EXPECT_THAT(error_of({1, 1e-9}), HasSubstr("more than can be held"));
  EXPECT_THAT(mix({}, {}).error().message, HasSubstr("no trace"));
  const std::vector<model::Trace> empty(1);
  EXPECT_THAT(mix(empty, {}).error().message, HasSubstr("has no request"));
}

TEST(Resample, KeepsTheRequestsAndTheRateAndForgetsTheOrder) {
  auto trace = open_loop(20'000, 0.5, 10);
  for (std::size_t i = 10'000; i < 20'000; ++i) trace.requests[i].prompt_tokens = 30;  // drift
  const auto out = resample(trace, {7, ResampleOptions::Arrivals::kPoisson, {}}).value();
  EXPECT_EQ(by_prompt(out), by_prompt(trace));
  EXPECT_EQ(out.span, trace.span);
  EXPECT_TRUE(std::ranges::is_sorted(out.requests, {}, &model::TraceRequest::arrival));
  std::int64_t early = 0;
  for (std::size_t i = 0; i < 10'000; ++i) early += out.requests[i].prompt_tokens == 10 ? 1 : 0;
  EXPECT_NEAR(static_cast<double>(early), 5'000, 5 * 50);
  // Counts of seconds vary like Poisson's: as much as their mean, 2.
  std::vector<double> counts(10'000);
  for (const auto& request : out.requests)
    counts[static_cast<std::size_t>(request.arrival.value / kSecond)] += 1;
  double squares = 0;
  for (const double count : counts) squares += (count - 2) * (count - 2);
  EXPECT_NEAR(squares / 10'000, 2, 0.2);
  const auto again = resample(trace, {7, ResampleOptions::Arrivals::kPoisson, {}}).value();
  EXPECT_EQ(again.requests[5].arrival, out.requests[5].arrival);
  const auto other = resample(trace, {8, ResampleOptions::Arrivals::kPoisson, {}}).value();
  EXPECT_NE(other.requests[5].arrival, out.requests[5].arrival);
  const auto even = resample(trace, {7, ResampleOptions::Arrivals::kEven, {}}).value();
  EXPECT_EQ(even.requests[3].arrival, Nanos{1'750'000'000});
}

TEST(Resample, ConversationsStayWhole) {
  auto open = open_loop(40, 1, 10);
  for (std::uint32_t i = 0; i < 40; ++i)
    open.requests[i].conversation = i % 20;  // two requests each, 20 s apart
  open.conversations = 20;
  const auto out = resample(open, {3, {}, {}}).value();
  std::map<std::uint32_t, std::vector<model::TraceRequest>> members;
  for (const auto& request : out.requests) members[request.conversation].push_back(request);
  EXPECT_EQ(members.size(), 20U);
  for (const auto& [id, both] : members) {
    ASSERT_EQ(both.size(), 2U);
    EXPECT_EQ(both[1].arrival - both[0].arrival, Nanos{20 * kSecond});
    EXPECT_EQ(both[1].output_tokens - both[0].output_tokens, 20) << "the two that belonged together";
  }
  const auto closed = resample(closed_loop(50, 3), {3, {}, Nanos{100 * kSecond}}).value();
  EXPECT_TRUE(closed.closed_loop);
  EXPECT_EQ(closed.span, Nanos{100 * kSecond});
  for (std::size_t i = 0; i < closed.requests.size(); ++i) {
    EXPECT_EQ(closed.requests[i].turn, i % 3);
    EXPECT_EQ(closed.requests[i].conversation, i / 3);
    if (i % 3 == 0) {
      EXPECT_LT(closed.requests[i].arrival, closed.span);
    }
  }
  EXPECT_FALSE(resample(model::Trace{}, {}));
}

RC_GTEST_PROP(Mix, NothingIsLostAndNothingMixedUp, ()) {
  const auto counts = *rc::gen::container<std::vector<int>>(2, rc::gen::inRange(1, 40));
  const auto shares = *rc::gen::container<std::vector<int>>(2, rc::gen::inRange(1, 9));
  const std::vector<model::Trace> traces = {open_loop(counts[0], 1, 10), open_loop(counts[1], 3, 20)};
  const auto mixed = mix(traces, {{shares[0] * 1.0, shares[1] * 1.0}, {}}).value();
  const auto count = by_prompt(mixed);
  // The longest runs once, whole; the other often enough to keep its share.
  const double expected = static_cast<double>(shares[0]) / shares[1];
  const double off =
      std::abs(static_cast<double>(count.at(10)) - expected * static_cast<double>(count.at(20)));
  RC_ASSERT(off <= 1 + expected);
  RC_ASSERT(count.at(10) >= counts[0] || count.at(20) >= counts[1]);
  std::set<std::uint64_t> blocks;
  for (const auto& request : mixed.requests) RC_ASSERT(blocks.insert(mixed.runs_of(request)[0].first).second);
}

}  // namespace
}  // namespace trimtab::sim
