// Every scenario of tests/scenarios, at both speeds: whatever breaks, each request ends or says why it
// cannot, no token is lost or told twice, and a run twice is the same run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "config/scenario.h"
#include "sim/test_workloads.h"

namespace trimtab::sim {
namespace {

std::vector<std::string> scenario_files() {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator("tests/scenarios"))
    files.push_back(entry.path().stem().string());
  std::ranges::sort(files);
  return files;
}

class Scenarios : public ::testing::TestWithParam<std::string> {
 protected:
  static model::Scenario scenario(SimulationSpeed speed) {
    model::Scenario scenario =
        config::load_scenario("tests/scenarios/" + GetParam() + ".toml", "profiles").value();
    scenario.speed = speed;
    scenario.keep_requests = true;
    return scenario;
  }
};
INSTANTIATE_TEST_SUITE_P(Files, Scenarios, ::testing::ValuesIn(scenario_files()),
                         [](const auto& file) { return file.param; });

TEST_P(Scenarios, EveryRequestEndsNoTokenIsLostAndTwiceIsTheSame) {
  const model::Trace trace = testing::arrivals(250, 2.5, 11);
  for (const SimulationSpeed speed : {SimulationSpeed::kExact, SimulationSpeed::kFast}) {
    const Result result = testing::simulate(scenario(speed), trace);
    EXPECT_EQ(result.submitted, 250U);
    EXPECT_EQ(result.finished + result.failed + result.unfinished, 250U);
    EXPECT_TRUE(result.faults.any()) << "the plan did nothing";
    if (result.failed + result.unfinished > 0) {
      EXPECT_FALSE(result.failures.empty());
    }
    for (const std::string& why : result.failures) EXPECT_GT(why.size(), 20U) << why;
    std::int64_t told = 0;
    Nanos longest;
    ASSERT_EQ(result.requests.size(), result.finished);
    for (const RequestTimes& one : result.requests) {
      EXPECT_EQ(one.output, std::max<std::int64_t>(trace.requests[one.request].output_tokens, 1))
          << "request " << one.request;
      EXPECT_LE(one.submitted, one.first_token);
      EXPECT_LE(one.first_token, one.ended);
      told += one.output;
      longest = std::max(longest, one.first_token - one.submitted);
    }
    if (result.failed + result.unfinished == 0) {
      EXPECT_EQ(result.output_tokens, told) << "streamed once each";
    } else {
      EXPECT_GE(result.output_tokens, told);
    }
    EXPECT_LT(base::to_seconds(longest), 120.0) << "nobody starves";
    const Result again = testing::simulate(scenario(speed), trace);
    EXPECT_EQ(again.event_hash, result.event_hash);
    EXPECT_EQ(again.events, result.events);
    EXPECT_EQ(again.all.ttft.quantile_s(0.99), result.all.ttft.quantile_s(0.99));
  }
}

Result fast(const std::string& name, std::uint64_t seed = 11) {
  model::Scenario scenario = config::load_scenario("tests/scenarios/" + name + ".toml", "profiles").value();
  scenario.keep_requests = true;
  return testing::simulate(scenario, testing::arrivals(250, 2.5, seed));
}

TEST(ScenarioOutcomes, AreWhatTheFilesSay) {
  const Result ranks = fast("rank_lost");
  EXPECT_EQ(ranks.finished, 250U);
  EXPECT_EQ(ranks.faults.engines_lost, 2U);
  EXPECT_EQ(ranks.faults.engines_joined, 2U);
  EXPECT_EQ(ranks.faults.engine_down, Nanos{30'000'000'000}) << "5 s and 10 s of start each";
  EXPECT_GT(ranks.faults.passes_repeated, 0U);

  const Result storage = fast("storage_node");
  EXPECT_EQ(storage.finished, 250U);
  EXPECT_EQ(storage.faults.storage_lost, 1U);
  EXPECT_GT(storage.faults.fallback_tokens, 0);
  EXPECT_GE(storage.storage.hottest(), 1.0);
  EXPECT_LT(storage.storage.hottest(), 4.0);

  const Result entrypoint = fast("entrypoint");
  EXPECT_EQ(entrypoint.faults.entrypoints_lost, 4U);
  EXPECT_GT(entrypoint.faults.streams_broken, 0U);
  EXPECT_EQ(entrypoint.unfinished, 0U);
  EXPECT_THAT(entrypoint.failures, ::testing::Contains(::testing::HasSubstr("the stream broke after")));

  const Result queue = fast("queue_stops");
  EXPECT_EQ(queue.finished, 250U) << "it resumes without loss";
  EXPECT_GT(queue.all.ttft.largest_s(), 9.0) << "who came as it stopped waited for it";

  const Result drain = fast("drain");
  EXPECT_EQ(drain.finished, 250U);
  EXPECT_EQ(drain.faults.engines_drained, 2U);
  EXPECT_EQ(drain.faults.engines_lost, 0U);
  EXPECT_EQ(drain.faults.passes_repeated, 0U) << "a drain interrupts nobody";
  EXPECT_EQ(drain.faults.engines_joined, 2U);

  const Result late = fast("late_start");
  EXPECT_EQ(late.finished, 250U);
  EXPECT_EQ(late.faults.engine_down, Nanos{70'000'000'000});

  const Result nobody = fast("nobody_left");
  EXPECT_GT(nobody.unfinished + nobody.failed, 0U);
  EXPECT_THAT(nobody.failures, ::testing::Not(::testing::IsEmpty()));

  model::Scenario no_decode = config::load_scenario("tests/scenarios/nobody_left.toml", "profiles").value();
  no_decode.faults = {};
  model::Fault fault;
  fault.kind = model::FaultKind::kEngine;
  fault.role = model::Role::kDecode;
  fault.at = Nanos{1'000'000'000};
  no_decode.faults.faults = {fault};
  const Result none = testing::simulate(no_decode, testing::arrivals(250, 2.5, 11));
  EXPECT_GT(none.unfinished, 240U);
  EXPECT_GT(none.span, Nanos{}) << "the prefill engines worked, though nothing ended";
  EXPECT_GT(none.prefill_busy, 0);
  EXPECT_LE(none.prefill_busy, 1) << "a share of the time";
}

}  // namespace
}  // namespace trimtab::sim
