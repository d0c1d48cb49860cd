// Vision, several placers, and what a simulation does with input that no cluster could serve.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/encoders.h"
#include "sim/test_workloads.h"

namespace trimtab::sim {
namespace {

using testing::arrivals;
using ::testing::HasSubstr;
using testing::simulate;
using testing::small_fleet;

std::string refused(const model::Scenario& scenario, const model::Trace& trace) {
  const auto made = Simulation::make(scenario, Workload::make(trace, {}).value());
  return made ? "accepted" : made.error().message + " " + made.error().origin;
}

model::Trace one_request(std::int64_t prompt, std::int64_t output) {
  model::Trace trace;
  trace.name = "one";
  trace.requests.push_back({Nanos{0}, {}, prompt, output, 0, 0});
  return trace;
}

model::Scenario with_encoders(std::uint32_t machines, std::uint32_t encoders) {
  model::Scenario scenario = small_fleet(1, 1);
  scenario.cluster.vision.machines = machines;
  scenario.cluster.vision.encoders = encoders;
  scenario.profile.vision.formula = model::VisionSpec::Formula::kGrid;
  scenario.profile.vision.patch = 16;
  scenario.profile.vision.downsample = 2;
  scenario.encoder.fixed = Nanos{5'000'000};
  scenario.encoder.patches_per_s = 10'000;
  return scenario;
}

void add_images(model::Trace& trace, std::size_t index, std::uint32_t count, model::TraceImage image) {
  trace.requests[index].images_begin = static_cast<std::uint32_t>(trace.images.size());
  trace.requests[index].images_count = count;
  trace.images.insert(trace.images.end(), count, image);
}

TEST(Vision, SpansLieAtThePromptsEndAndPatchesFollowTheSize) {
  const model::VisionSpec spec = with_encoders(1, 1).profile.vision;
  const std::vector<model::TraceImage> images{{0, 1'280, 800}, {100, 0, 0}};
  const auto spans = image_spans(images, 2'000, spec).value();
  ASSERT_EQ(spans.size(), 2U);
  EXPECT_EQ(spans[0].patches, 4'000U);
  EXPECT_EQ(spans[0].tokens, 1'000U);
  EXPECT_EQ(spans[1].patches, 400U) << "100 tokens of 2 x 2 patches";
  EXPECT_EQ(spans[0].position + spans[0].tokens, spans[1].position);
  EXPECT_EQ(spans[1].position + spans[1].tokens, 1'999U);
  EXPECT_THAT(image_spans(images, 1'100, spec).error().message, HasSubstr("1100 tokens in a prompt of 1100"));
}

TEST(Vision, OneImageDelaysItsOwnTokensAndNothingElse) {
  model::Trace trace = one_request(1'200, 5);
  const model::Scenario scenario = with_encoders(1, 1);
  const Result text = simulate(scenario, trace);
  add_images(trace, 0, 1, {0, 1'280, 800});
  const Result seen = simulate(scenario, trace);
  ASSERT_EQ(seen.finished, 1U);
  EXPECT_EQ(seen.vision.images, 1U);
  EXPECT_EQ(seen.vision.patches, 4'000);
  EXPECT_NEAR(seen.vision.delay.mean_s(), 0.405, 0.405 * 0.005) << "fixed + patches / rate";
  // The 199 tokens before the image are computed meanwhile; the rest waits for the embeddings.
  const double without = text.all.ttft.mean_s(), with = seen.all.ttft.mean_s();
  EXPECT_GT(with, 0.405);
  EXPECT_LT(with, 0.405 + without + 0.05);
}

TEST(Vision, MoreEncodersServeMoreImagesAndALostOneIsDoneWithout) {
  model::Trace trace = arrivals(200, 3.0, 5);
  for (std::size_t i = 0; i < trace.requests.size(); i += 2) {
    trace.requests[i].prompt_tokens += 2'000;
    add_images(trace, i, 2, {1'000, 0, 0});
  }
  model::Scenario few = with_encoders(1, 2), many = with_encoders(4, 2);
  few.encoder.patches_per_s = many.encoder.patches_per_s = 8'000;
  const Result slow = simulate(few, trace), quick = simulate(many, trace);
  EXPECT_EQ(slow.finished, 200U);
  EXPECT_EQ(quick.finished, 200U);
  EXPECT_EQ(quick.vision.images, 200U);
  EXPECT_LT(quick.vision.delay.quantile_s(0.99), slow.vision.delay.quantile_s(0.99));
  EXPECT_LT(quick.vision.busy, slow.vision.busy);
  model::Fault lost = testing::fault_at(model::FaultKind::kEngine, 10, 20);
  lost.role = model::Role::kVision;
  lost.targets = {0};
  many.faults.faults.push_back(lost);
  const Result without = simulate(many, trace);
  EXPECT_EQ(without.finished, 200U) << "images of the lost machine go to the others";
  EXPECT_EQ(without.faults.engines_lost, 2U);
  EXPECT_EQ(without.faults.engines_joined, 2U);
}

// Its encoders die one by one, and each takes over what the one before it had: no image runs out of tries.
TEST(Vision, ImagesOutliveTheirOnlyMachine) {
  model::Trace trace = arrivals(60, 3.0, 5);
  for (std::size_t i = 0; i < trace.requests.size(); ++i) {
    trace.requests[i].prompt_tokens += 2'000;
    add_images(trace, i, 2, {1'000, 0, 0});
  }
  model::Scenario scenario = with_encoders(1, 4);
  scenario.encoder.patches_per_s = 8'000;
  model::Fault lost = testing::fault_at(model::FaultKind::kEngine, 10, 5);
  lost.role = model::Role::kVision;
  scenario.faults.faults.push_back(lost);
  const Result result = simulate(scenario, trace);
  EXPECT_EQ(result.faults.engines_lost, 4U);
  EXPECT_EQ(result.failed, 0U) << (result.failures.empty() ? "" : result.failures[0]);
  EXPECT_EQ(result.vision.images, 120U);
}

TEST(Vision, ImagesWithoutAnEncoderFailInWords) {
  model::Trace trace = one_request(1'200, 5);
  add_images(trace, 0, 1, {200, 0, 0});
  model::Scenario scenario = with_encoders(1, 1);
  scenario.cluster.vision.machines = 0;
  const Result result = simulate(scenario, trace);
  EXPECT_EQ(result.failed, 1U);
  EXPECT_THAT(result.failures.at(0), HasSubstr("no vision machine"));
  trace.images[0] = {0, 1'280, 800};
  scenario = with_encoders(1, 1);
  scenario.profile.vision.formula = model::VisionSpec::Formula::kNone;
  const Result textual = simulate(scenario, trace);
  EXPECT_EQ(textual.failed, 1U);
  EXPECT_EQ(textual.vision.unencodable, 1U);
  EXPECT_THAT(textual.failures.at(0), HasSubstr("takes no images"));
}

/// Share of the ideal decode step; what placers that do not see one another lose.
double decode_share(std::uint32_t entrypoints, double delay_ms) {
  model::Scenario scenario = small_fleet(4, 1);
  scenario.cluster.decode.ranks = 16;
  scenario.entrypoints.count = entrypoints;
  scenario.reports.delay = Nanos{static_cast<std::int64_t>(delay_ms * 1e6)};
  scenario.report_interval = Nanos{100'000'000};
  scenario.cluster.decode.policy = "total_requests";
  model::Trace trace = arrivals(800, 10.0, 3, 1'000);
  const Result result = simulate(scenario, trace);
  EXPECT_EQ(result.finished, 800U);
  EXPECT_EQ(result.output_tokens, [&] {
    std::int64_t all = 0;
    for (const auto& request : trace.requests) all += request.output_tokens;
    return all;
  }());
  return result.decode_times.share();
}

TEST(Placers, ThatHearOfOneAnotherLateBalanceWorse) {
  const double one = decode_share(1, 0), four = decode_share(4, 0), late = decode_share(4, 3'000);
  EXPECT_GE(one, four - 0.005);
  EXPECT_GT(four, late);
  EXPECT_GT(one, late + 0.005);
  const double one_late = decode_share(1, 3'000);
  EXPECT_NEAR(one_late, one, 0.01) << "one placer knows its own deeds: late reports cost it next to nothing";
}

TEST(Reports, AreAsManyStepsOldAsTheScenarioSays) {
  // Two placers; of late reports by steps and by the time of so many steps the runs must come out alike.
  model::Scenario scenario = small_fleet();
  scenario.speed = SimulationSpeed::kExact;
  scenario.entrypoints.count = 2;
  const model::Trace trace = arrivals(150, 3.0, 4);
  const Result fresh = simulate(scenario, trace);
  scenario.reports.delay_steps = 32;
  const Result by_steps = simulate(scenario, trace);
  EXPECT_EQ(by_steps.finished, 150U);
  EXPECT_NE(by_steps.event_hash, fresh.event_hash);
  scenario.reports.delay_steps = 0;
  const double step_ns = by_steps.decode_times.sum() / static_cast<double>(by_steps.decode_steps);
  scenario.reports.delay = Nanos{static_cast<std::int64_t>(32 * step_ns)};
  const Result by_time = simulate(scenario, trace);
  EXPECT_NEAR(by_steps.all.tpot.mean_s(), by_time.all.tpot.mean_s(), 0.02 * by_time.all.tpot.mean_s());
}

TEST(Reports, LostOnesAreCountedAndCostNoToken) {
  model::Scenario scenario = small_fleet();
  scenario.speed = SimulationSpeed::kExact;
  scenario.reports.loss = 0.5;
  const Result result = simulate(scenario, arrivals(150, 3.0, 4));
  EXPECT_EQ(result.finished, 150U);
  EXPECT_GT(result.faults.reports_lost, 1'000U);
}

TEST(BadInput, LengthsThatAreNoneNameTheRequest) {
  model::Trace trace = arrivals(3, 1.0, 1);
  trace.requests[1].prompt_tokens = 0;
  EXPECT_THAT(refused(small_fleet(), trace), HasSubstr("request 1 of the trace has prompt_tokens 0"));
  trace.requests[1].prompt_tokens = 5;
  trace.requests[2].output_tokens = -7;
  EXPECT_THAT(refused(small_fleet(), trace), HasSubstr("request 2 of the trace has output_tokens -7"));
  trace.requests[2].output_tokens = 0;
  EXPECT_EQ(refused(small_fleet(), trace), "accepted");
  EXPECT_EQ(simulate(small_fleet(), trace).finished, 3U) << "no answer wanted: its first token ends it";
}

TEST(BadInput, NumbersThatAreNoneNameTheKey) {
  const model::Trace trace = one_request(10, 2);
  model::Scenario scenario = small_fleet();
  scenario.encoder.patches_per_s = NAN;
  EXPECT_THAT(refused(scenario, trace), HasSubstr("patches_per_s is nan"));
  scenario = small_fleet();
  scenario.reports.loss = NAN;
  EXPECT_THAT(refused(scenario, trace), HasSubstr("a loss of nan"));
  scenario = small_fleet();
  scenario.storage.eviction = "lur";
  EXPECT_THAT(refused(scenario, trace), HasSubstr("\"lru\""));
  scenario = small_fleet();
  scenario.entrypoints.count = 0;
  EXPECT_THAT(refused(scenario, trace), HasSubstr("entrypoints.count is 0"));
}

TEST(BadInput, FaultsOfWhatIsNotThereSayWhatIs) {
  const model::Trace trace = one_request(10, 2);
  model::Scenario scenario = small_fleet();
  model::Fault fault = testing::fault_at(model::FaultKind::kEngine, 1, 1);
  fault.role = model::Role::kDecode;
  fault.targets = {2};
  fault.where = "plan.toml:7";
  scenario.faults.faults = {fault};
  EXPECT_THAT(refused(scenario, trace),
              ::testing::AllOf(HasSubstr("targets has 2: the scenario has 2 decode groups, 0 to 1"),
                               HasSubstr("plan.toml:7")));
  fault.kind = model::FaultKind::kRank;
  fault.targets = {1};
  fault.ranks = {4};
  scenario.faults.faults = {fault};
  EXPECT_THAT(refused(scenario, trace), HasSubstr("ranks has 4"));
  scenario.faults.faults = {testing::fault_at(model::FaultKind::kStorageNode, 1, 1)};
  EXPECT_THAT(refused(scenario, trace), HasSubstr("set simulation.storage.nodes"));
}

TEST(BadInput, WhatFitsNowhereFailsInWordsAndTheRestIsServed) {
  model::Trace trace = arrivals(20, 2.0, 3);
  model::Scenario scenario = small_fleet();
  scenario.profile.context_limit = TokenCount{150'000};
  scenario.cluster.decode.kv_blocks = 1'000;
  trace.requests[4].prompt_tokens = 130'000;  // more than a decode rank's 128,000
  trace.requests[5].prompt_tokens = 150'000;  // more than the model's context
  trace.requests[6].prompt_tokens = 10;
  trace.requests[6].output_tokens = 1'000'000;
  for (model::TraceRequest& request : trace.requests) request.runs_count = 0;
  const Result result = simulate(scenario, trace);
  EXPECT_EQ(result.failed, 2U);
  EXPECT_THAT(result.failures, ::testing::UnorderedElementsAre(HasSubstr("130000"),
                                                               HasSubstr("the model's context is 150000")));
  EXPECT_EQ(result.faults.outputs_cut, 1U);
  EXPECT_EQ(result.finished, 18U);
  EXPECT_EQ(result.unfinished, 0U);
}

TEST(BadInput, DemandAndNoEngineEndsAndSaysSo) {
  for (const model::Role role : {model::Role::kPrefill, model::Role::kDecode}) {
    model::Scenario scenario = small_fleet();
    model::Fault gone = testing::fault_at(model::FaultKind::kEngine, 0, -1);
    gone.role = role;
    scenario.faults.faults = {gone};
    const Result result = simulate(scenario, arrivals(20, 2.0, 3));
    EXPECT_EQ(result.finished, 0U);
    EXPECT_EQ(result.failed + result.unfinished, 20U);
    ASSERT_FALSE(result.failures.empty());
    if (result.unfinished > 0) {
      EXPECT_THAT(result.failures.back(), HasSubstr("of 2"));
    }
  }
}

TEST(BadInput, TracesOfOneRequestAndOfNone) {
  const Result one = simulate(small_fleet(), one_request(100, 1));
  EXPECT_EQ(one.finished, 1U);
  EXPECT_EQ(one.output_tokens, 1);
  EXPECT_EQ(one.all.tpot.count(), 0U) << "no time between tokens";
  model::Trace none;
  EXPECT_THAT(Workload::make(none, {}).error().message, HasSubstr("has no request"));
}

TEST(Invariants, MoreOfAnythingIsNotSlowerInTheMeanOverTwentySeeds) {
  struct Pair {
    const char* what;
    std::uint32_t prefill[2], decode[2];
    double kv[2];
  };
  for (const Pair& pair :
       {Pair{"prefill engines", {2, 3}, {1, 1}, {1, 1}}, Pair{"decode groups", {2, 2}, {1, 2}, {1, 1}},
        Pair{"KV of a decode rank", {2, 2}, {1, 1}, {0.02, 1}}}) {
    double whole[2] = {0, 0};
    for (int more = 0; more < 2; ++more) {
      for (std::uint64_t seed = 1; seed <= 20; ++seed) {
        model::Scenario scenario = small_fleet(pair.prefill[more], pair.decode[more]);
        scenario.cluster.decode.kv_blocks = static_cast<std::int64_t>(40'000 * pair.kv[more]);
        scenario.cluster.prefill.tier_bounds_tokens = {16'384};
        whole[more] += simulate(scenario, arrivals(100, 4.0, seed)).all.end_to_end.mean_s();
      }
    }
    EXPECT_LE(whole[1], whole[0] * 1.001) << pair.what;
  }
}

TEST(Invariants, NobodyStarvesBesideAStreamOfShortWork) {
  model::Scenario scenario = small_fleet(1, 1);
  model::Trace trace = arrivals(600, 3.0, 9, 2'000);
  trace.requests[100].prompt_tokens = 100'000;
  trace.requests[100].runs_count = 0;
  const Result result = simulate(scenario, trace);
  ASSERT_EQ(result.finished, 600U);
  for (const RequestTimes& one : result.requests) {
    // Aging (30 s) puts what has waited so long first, whatever its tier.
    const double own = one.prompt > 50'000 ? 20.0 : 0.0;
    EXPECT_LT(base::to_seconds(one.first_token - one.submitted), 60.0 + own) << "request " << one.request;
  }
}

}  // namespace
}  // namespace trimtab::sim
