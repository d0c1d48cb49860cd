#include "sim/recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "sim/simulation.h"

namespace trimtab::sim {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

RecorderShape shape() {
  RecorderShape shape;
  shape.prefill_engines = 1;
  shape.prefill_ranks = 2;
  shape.decode_groups = 1;
  shape.decode_ranks = 2;
  shape.queue_tiers = 2;
  shape.report_bounds_tokens = {1'000};
  return shape;
}

RecorderSample state(std::uint32_t queued, double running) {
  return {{queued, 0}, {{true, false}}, {running, 0}, {running * 100, 0}};
}

double sum(const Series& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

TEST(Recorder, TimeOutgrowsTheBucketsAndNothingIsLost) {
  RecorderOptions options;
  options.buckets_max = 16;
  Recorder recorder(options);
  recorder.start(shape());
  for (std::uint32_t i = 0; i < 1'000; ++i) {
    const Nanos now{i * kSecond};
    if (recorder.due(now)) recorder.sample(now, state(3, 5));
    recorder.arrived(now);
    recorder.queued(i, i + 1, i % 2 == 0 ? 10 : 5'000, now, now);
    recorder.leased(i, 0, 0, 10, 4, now + Nanos{kSecond / 2});
    recorder.first_token(i, now + Nanos{kSecond});
    recorder.ended(i, 11, now + Nanos{2 * kSecond});
  }
  const Recording got = recorder.take();
  EXPECT_LE(got.buckets, 16U);
  EXPECT_GE(got.seconds() * static_cast<double>(got.buckets), 1'001.0);
  EXPECT_EQ(sum(got.arrivals), 1'000);
  EXPECT_EQ(sum(got.finished), 1'000);
  EXPECT_EQ(sum(got.prompt_tokens), 10'000);
  EXPECT_EQ(sum(got.hit_tokens), 4'000);
  std::uint64_t short_ones = 0;
  for (const Percentiles& one : got.tiers[0].ttft) {
    short_ones += one.count;
    if (one.count == 0) continue;
    EXPECT_NEAR(one.p50, 1.0, 0.01);
    EXPECT_NEAR(one.p99, 1.0, 0.01);
  }
  EXPECT_EQ(short_ones, 500U);
  for (const Percentiles& one : got.tiers[1].tpot) EXPECT_NEAR(one.p90, one.count > 0 ? 0.1 : 0.0, 0.001);
  // The state stood still, so its mean is itself wherever it was looked at.
  for (std::size_t i = 0; i + 1 < got.buckets; ++i) {
    EXPECT_EQ(got.queued[0][i], 3) << i;
    EXPECT_EQ(got.decode_running[0][i], 5) << i;
    EXPECT_EQ(got.decode_kv[0][i], 500) << i;
    EXPECT_EQ(got.engine_tiers[0][0][i], 1) << i;
    EXPECT_EQ(got.engine_tiers[0][1][i], 0) << i;
  }
}

TEST(Recorder, AStepCountsInEveryBucketThatItLiesIn) {
  Recorder recorder;
  recorder.start(shape());
  StepTimes times;
  times.ideal = 6e9;
  times.padding = 2e9;
  const std::vector<Nanos> worked{Nanos{8 * kSecond}, Nanos{4 * kSecond}};
  recorder.prefill_step(0, 1, Nanos{0}, Nanos{8 * kSecond}, times, worked, 3);
  recorder.decode_steps(0, 1, 10, Nanos{0}, Nanos{8 * kSecond}, times, 3);
  const Recording got = recorder.take();
  ASSERT_GT(got.buckets, 100U);
  double ideal = 0, padding = 0, decode = 0;
  for (std::size_t i = 0; i < got.buckets; ++i) {
    ideal += got.prefill_times[i].ideal;
    padding += got.prefill_times[i].padding;
    decode += got.decode_times[i].sum();
  }
  EXPECT_NEAR(ideal, 6e9, 10);
  EXPECT_NEAR(padding, 2e9, 10);
  EXPECT_NEAR(decode, 8e9, 10);
  EXPECT_NEAR(got.prefill_busy[0][50], 1.0, 1e-9);
  EXPECT_NEAR(got.prefill_busy[1][50], 0.5, 1e-9);
}

TEST(Recorder, TheTimelineHoldsTheSliceAndNoMoreThanItsBound) {
  RecorderOptions options;
  options.timeline_from = Nanos{10 * kSecond};
  options.timeline_span = Nanos{5 * kSecond};
  options.spans_max = 8;
  Recorder recorder(options);
  recorder.start(shape());
  for (std::uint32_t i = 0; i < 40; ++i)
    recorder.decode_steps(0, i, 1, Nanos{i * kSecond}, Nanos{kSecond / 2}, {}, 1);
  recorder.queued(7, 99, 10, Nanos{40 * kSecond}, Nanos{40 * kSecond});
  Recording got = recorder.take();
  ASSERT_EQ(got.spans.size(), 6U);  // seconds 10 to 15
  EXPECT_EQ(got.spans.front().id, 10U);
  EXPECT_EQ(got.spans.back().id, 15U);
  EXPECT_EQ(got.spans_left_out, 0U);
  recorder.start(shape());
  for (std::uint32_t i = 0; i < 12; ++i)
    recorder.decode_steps(0, i, 1, Nanos{i == 0 ? 0 : 12 * kSecond + i}, Nanos{1}, {}, 1);
  got = recorder.take();
  EXPECT_EQ(got.spans.size(), 8U);
  EXPECT_EQ(got.spans_left_out, 3U);
}

/// A whole run: it is the same with and without a recorder, and both tell the same story.
class Recorded : public ::testing::TestWithParam<SimulationSpeed> {};
INSTANTIATE_TEST_SUITE_P(Recorder, Recorded,
                         ::testing::Values(SimulationSpeed::kExact, SimulationSpeed::kFast));

TEST_P(Recorded, ARunIsTheSameAndAddsUpToItsResult) {
  model::Scenario scenario;
  scenario.profile.cost = model::QuadraticCost{20'000'000, 83'000'000, 1'270};
  scenario.profile.context_limit = TokenCount{1 << 20};
  scenario.profile.kv.block_bytes = base::Bytes{114'048};
  scenario.speed = GetParam();
  scenario.cluster.prefill.lease_ms = 3'600'000;
  scenario.cluster.prefill.kv_blocks = 20'000;
  scenario.cluster.decode.kv_blocks = 60;  // so small that some yield
  scenario.cluster.gateway.queue_quota_limit_ms = 100'000'000;
  model::Trace trace;
  for (std::uint32_t i = 0; i < 200; ++i)
    trace.requests.push_back({Nanos{1 + i * kSecond / 10}, {}, 400 + 20 * (i % 50), 1 + i * 7 % 400, i, 0});
  const auto make = [&] { return Simulation::make(scenario, Workload::make(trace, {}).value()).value(); };
  const Result plain = make()->run();
  RecorderOptions options;
  options.timeline_span = Nanos{3600 * kSecond};
  Recorder recorder(options);
  const auto simulation = make();
  simulation->record(recorder);
  const Result watched = simulation->run();
  const Recording got = recorder.take();
  EXPECT_EQ(plain.event_hash, watched.event_hash);
  EXPECT_EQ(plain.events, watched.events);
  EXPECT_EQ(sum(got.arrivals), 200);
  EXPECT_EQ(sum(got.finished), static_cast<double>(watched.finished));
  StepTimes prefill, decode;
  for (std::size_t i = 0; i < got.buckets; ++i) {
    prefill.add(got.prefill_times[i]);
    decode.add(got.decode_times[i]);
  }
  EXPECT_NEAR(prefill.sum() / watched.prefill_times.sum(), 1.0, 1e-6);
  EXPECT_NEAR(decode.sum() / watched.decode_times.sum(), 1.0, 1e-6);
  EXPECT_NEAR(decode.attention_wait / watched.decode_times.attention_wait, 1.0, 1e-6);
  std::uint64_t first_tokens = 0;
  for (const TierOverTime& tier : got.tiers)
    for (const Percentiles& one : tier.ttft) first_tokens += one.count;
  EXPECT_EQ(first_tokens, watched.all.ttft.count());
  std::uint64_t decodes = 0, steps = 0;
  for (const Span& span : got.spans) {
    EXPECT_LE(span.begin, span.end);
    if (span.kind == Span::Kind::kDecode) ++decodes;
    if (span.kind == Span::Kind::kDecodeSteps) steps += span.steps;
  }
  if (GetParam() == SimulationSpeed::kExact) {
    EXPECT_GT(watched.preemptions, 0U);
  }
  EXPECT_GE(decodes, 190U + watched.preemptions) << "a preempted request decodes twice";
  EXPECT_EQ(steps, watched.decode_steps);
}

}  // namespace
}  // namespace trimtab::sim
