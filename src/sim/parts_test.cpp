#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <list>
#include <set>

#include "sim/distribution.h"
#include "sim/event_queue.h"
#include "sim/prefix_cache.h"
#include "sim/workload.h"

namespace trimtab::sim {
namespace {

RC_GTEST_PROP(EventQueue, ComesInOrderOfTimeThenOfAsking, (const std::vector<std::uint8_t>& times)) {
  EventQueue queue;
  for (std::uint32_t i = 0; i < times.size(); ++i) queue.at(Nanos{times[i]}, EventKind::kArrival, i);
  std::pair<Nanos, std::uint32_t> last{Nanos{-1}, 0};
  while (!queue.empty()) {
    const QueuedEvent event = queue.pop();
    RC_ASSERT(event.at == Nanos{times[event.a]});
    RC_ASSERT(last.first < event.at || (last.first == event.at && last.second < event.a));
    RC_ASSERT(queue.now() == event.at);
    last = {event.at, event.a};
  }
}

/// Against a sorted set, with what pops followed by none, one or several new ones.
RC_GTEST_PROP(EventQueue, KeepsItsOrderWhileEventsAskForEvents, ()) {
  EventQueue queue;
  std::set<std::pair<std::int64_t, std::uint32_t>> plain;
  std::uint32_t asked = 0;
  const auto rounds = *rc::gen::container<std::vector<std::vector<std::uint8_t>>>(
      100, rc::gen::container<std::vector<std::uint8_t>>(*rc::gen::inRange<std::size_t>(0, 4),
                                                         rc::gen::inRange<std::uint8_t>(0, 20)));
  for (const std::vector<std::uint8_t>& spans : rounds) {
    for (const std::uint8_t span : spans) {
      plain.emplace(queue.now().value + span, asked);
      queue.after(Nanos{span}, EventKind::kArrival, asked++);
    }
    RC_ASSERT(queue.empty() == plain.empty());
    if (plain.empty()) continue;
    const QueuedEvent event = queue.pop();
    RC_ASSERT(std::pair(event.at.value, event.a) == *plain.begin());
    plain.erase(plain.begin());
  }
  while (!plain.empty()) {
    RC_ASSERT(queue.pop().a == plain.begin()->second);
    plain.erase(plain.begin());
  }
  RC_ASSERT(queue.empty());
}

TEST(EventQueue, ThePastIsNow) {
  EventQueue queue;
  queue.at(Nanos{10}, EventKind::kArrival);
  queue.pop();
  queue.at(Nanos{3}, EventKind::kArrival);
  EXPECT_EQ(queue.pop().at, Nanos{10});
}

RC_GTEST_PROP(Distribution, QuantilesAreRightToHalfABucket, (const std::vector<std::uint32_t>& drawn)) {
  RC_PRE(!drawn.empty());
  Distribution distribution;
  std::vector<double> values;
  for (const std::uint32_t value : drawn) {
    const Nanos span{1'000 + static_cast<std::int64_t>(value) * 1'000};
    distribution.add(span);
    values.push_back(base::to_seconds(span));
  }
  std::ranges::sort(values);
  for (const double q : {0.1, 0.5, 0.99, 1.0}) {
    const auto rank = static_cast<std::size_t>(std::ceil(q * static_cast<double>(values.size())));
    const double truth = values[std::max<std::size_t>(rank, 1) - 1];
    RC_ASSERT(std::abs(distribution.quantile_s(q) - truth) <= truth * 0.0041 + 1e-9);
  }
  RC_ASSERT(distribution.largest_s() == values.back());
}

/// The same by a list and no cleverness.
class PlainLru {
 public:
  explicit PlainLru(std::size_t capacity) : capacity_(capacity) {}
  std::int64_t match(std::uint64_t first, std::int64_t count) const {
    std::int64_t hit = 0;
    while (hit < count && std::ranges::count(order_, first + static_cast<std::uint64_t>(hit)) > 0) ++hit;
    return hit;
  }
  /// The end of the chain is the oldest of it.
  void store(std::uint64_t first, std::int64_t count) {
    for (std::int64_t i = count; i-- > 0;) {
      order_.remove(first + static_cast<std::uint64_t>(i));
      order_.push_front(first + static_cast<std::uint64_t>(i));
    }
    while (order_.size() > capacity_) order_.pop_back();
  }

 private:
  std::size_t capacity_;
  std::list<std::uint64_t> order_;
};

RC_GTEST_PROP(PrefixCache, IsAnLruOfItsCapacityThatDropsChainsFromTheEnd, ()) {
  const auto capacity = *rc::gen::inRange<std::size_t>(1, 40);
  PrefixCache cache(static_cast<std::int64_t>(capacity));
  PlainLru plain(capacity);
  const auto uses = *rc::gen::container<std::vector<std::pair<std::uint8_t, std::uint8_t>>>(
      200, rc::gen::pair(rc::gen::inRange<std::uint8_t>(0, 12), rc::gen::inRange<std::uint8_t>(1, 9)));
  std::int64_t now = 0;
  for (const auto& [chain, count] : uses) {
    const std::uint64_t first = chain * 100ULL;
    const std::vector<model::BlockRun> runs{{first, count}};
    RC_ASSERT(cache.match(runs, Nanos{++now}) == plain.match(first, count));
    cache.store(runs, count, Nanos{now});
    plain.store(first, count);
    RC_ASSERT(cache.blocks() <= static_cast<std::int64_t>(capacity));
  }
}

/// Runs begin and end anywhere in the groups of 64 that the cache keeps.
RC_GTEST_PROP(PrefixCache, WithoutABoundIsASet, ()) {
  PrefixCache cache(0);
  std::set<std::uint64_t> plain;
  const auto uses = *rc::gen::container<std::vector<std::pair<std::uint16_t, std::uint8_t>>>(
      100, rc::gen::pair(rc::gen::inRange<std::uint16_t>(0, 1'000), rc::gen::inRange<std::uint8_t>(1, 200)));
  for (const auto& use : uses) {
    const auto first = use.first;
    const auto count = use.second;
    const std::vector<model::BlockRun> runs{{first, count}, {first + 50'000ULL, count}};
    const auto there = [&](std::int64_t i) {
      const auto id = static_cast<std::uint64_t>(i < count ? first + i : first + 50'000 + i - count);
      return plain.contains(id);
    };
    std::int64_t expected = 0;
    while (expected < 2 * count && there(expected)) ++expected;
    RC_ASSERT(cache.match(runs, Nanos{1}) == expected);
    const std::int64_t stored = *rc::gen::inRange<std::int64_t>(0, 2 * count + 1);
    cache.store(runs, stored, Nanos{1});
    for (std::int64_t i = 0; i < stored; ++i)
      plain.insert(static_cast<std::uint64_t>(i < count ? first + i : first + 50'000 + i - count));
    RC_ASSERT(cache.blocks() == static_cast<std::int64_t>(plain.size()));
    RC_ASSERT(cache.contains(first) == plain.contains(first));
  }
  cache.clear();
  RC_ASSERT(cache.blocks() == 0 && (plain.empty() || !cache.contains(*plain.begin())));
}

TEST(PrefixCache, WithoutABoundEverythingStays) {
  PrefixCache cache(0);
  const std::vector<model::BlockRun> runs{{0, 50'000}, {1ULL << 40U, 50'000}};
  EXPECT_EQ(cache.match(runs, Nanos{1}), 0);
  cache.store(runs, 70'000, Nanos{2});
  EXPECT_EQ(cache.match(runs, Nanos{3}), 70'000);
  EXPECT_EQ(cache.evicted(), 0);
}

model::Trace trace_of(bool closed_loop, std::vector<model::TraceRequest> requests) {
  model::Trace trace;
  trace.closed_loop = closed_loop;
  trace.requests = std::move(requests);
  return trace;
}

TEST(Workload, RatesKeepConversationsWhole) {
  const model::Trace trace = trace_of(true, {{Nanos{0}, Nanos{0}, 10, 1, 0, 0},
                                             {Nanos{5}, Nanos{7}, 20, 1, 0, 1},
                                             {Nanos{0}, Nanos{0}, 10, 1, 1, 0}});
  WorkloadOptions options;
  options.rate = 2;
  options.start_span = Nanos{1'000};
  Workload workload = Workload::make(trace, options).value();
  const Workload::Item first = *workload.next();
  const Workload::Item second = *workload.next();
  EXPECT_EQ(first.at, Nanos{0});
  EXPECT_EQ(second.at, Nanos{250});
  EXPECT_EQ(second.request, 2U);
  EXPECT_FALSE(workload.next());
  const Workload::Item turn = *workload.follow(first, Nanos{100});
  EXPECT_EQ(turn.request, 1U);
  EXPECT_EQ(turn.at, Nanos{107});
  EXPECT_FALSE(workload.follow(turn, Nanos{200}));
  EXPECT_FALSE(workload.follow(second, Nanos{200}));
}

TEST(Workload, TheLimitIsOfRequestsNotOfConversations) {
  std::vector<model::TraceRequest> requests;
  for (std::uint32_t c = 0; c < 4; ++c) {
    for (std::uint32_t turn = 0; turn < 3; ++turn) requests.push_back({Nanos{0}, Nanos{7}, 10, 1, c, turn});
  }
  const model::Trace trace = trace_of(true, requests);
  WorkloadOptions options;
  options.requests_max = 4;
  Workload workload = Workload::make(trace, options).value();
  const Workload::Item first = *workload.next();
  const auto turn = workload.follow(first, Nanos{100});
  ASSERT_TRUE(turn);
  EXPECT_TRUE(workload.next());
  EXPECT_TRUE(workload.follow(*turn, Nanos{200})) << "the fourth";
  EXPECT_FALSE(workload.next()) << "no conversation begins";
  EXPECT_FALSE(workload.follow(first, Nanos{300})) << "and none goes on";
  EXPECT_EQ(workload.requests_total(), 4);
}

TEST(Workload, ArrivalsThatNoClockCanHoldAreRefused) {
  const model::Trace trace =
      trace_of(false, {{Nanos{0}, {}, 10, 1, 0}, {Nanos{1'000'000'000}, {}, 10, 1, 1}});
  WorkloadOptions options;
  options.rate = 1e-9;
  EXPECT_TRUE(Workload::make(trace, options)) << "32 years";
  options.rate = 1e-10;
  const auto refused = Workload::make(trace, options);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("100 can be simulated"), std::string::npos);
}

TEST(Workload, RepeatsHaveContentsOfTheirOwn) {
  model::Trace trace = trace_of(false, {{Nanos{0}, {}, 10, 1, 0, 0, 0, 1}});
  trace.runs = {{5, 2}};
  WorkloadOptions options;
  options.repeats = 2;
  Workload workload = Workload::make(trace, options).value();
  std::vector<model::BlockRun> one, two;
  workload.runs(*workload.next(), one);
  const Workload::Item again = *workload.next();
  workload.runs(again, two);
  EXPECT_EQ(one[0].first, 5U);
  EXPECT_NE(two[0].first, 5U);
  EXPECT_EQ(two[0].count, 2U);
  EXPECT_GT(again.at, Nanos{0});
}

TEST(Workload, RefusesWhatCannotBeRun) {
  const model::Trace trace = trace_of(false, {{Nanos{0}, {}, 10, 1}});
  const auto refused = [&trace](WorkloadOptions options) {
    return Workload::make(trace, options).error().message;
  };
  WorkloadOptions options;
  options.rate = -1;
  EXPECT_THAT(refused(options), testing::HasSubstr("a rate of -1"));
  options.rate = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(refused(options), testing::HasSubstr("a rate of nan"));
  options = {};
  options.repeats = 0;
  EXPECT_THAT(refused(options), testing::HasSubstr("0 repeats"));
  EXPECT_FALSE(Workload::make(model::Trace{}, {}).has_value());
}

}  // namespace
}  // namespace trimtab::sim
