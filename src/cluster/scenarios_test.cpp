// What users of such systems report, as scenarios over the whole machine: each drives the reported fault and
// holds the right outcome against it.
#include <gtest/gtest.h>

#include "cluster/journey.h"
#include "cluster/testing/virtual_world.h"
#include "queue/embedded_queue.h"

namespace trimtab::cluster {
namespace {

using model::Role;
using testing::Ask;
using testing::Faults;
using testing::Outcome;
using testing::World;

constexpr Nanos kSecond{1'000'000'000};

model::ClusterConfig eight_ranks() {
  model::ClusterConfig config;
  config.prefill.engines = 4;
  config.prefill.ranks = 2;
  config.prefill.step_budget_ms = 20;
  config.prefill.outstanding_steps = 1;
  config.prefill.lease_ms = 500;
  config.prefill.aging_ms = 60'000;
  config.decode.groups = 2;
  config.decode.ranks = 2;
  config.decode.kv_blocks = 256;
  config.gateway.requests_in_flight_max = 10'000;
  return config;
}

class Scenario : public ::testing::Test {
 protected:
  World& build(model::ClusterConfig config = eight_ranks(), Faults faults = {}) {
    profile_.cost = model::QuadraticCost{1'000'000, 1'000'000, 20'000};
    auto queue = queue::EmbeddedQueue::make(config.prefill).value();
    world_ = std::make_unique<World>(config, profile_, std::move(queue), 11, faults);
    world_->keep_records(true);
    world_->start();
    return *world_;
  }
  void TearDown() override {
    if (!world_) return;
    EXPECT_TRUE(world_->run_out(Nanos{600 * kSecond.value}));
    for (const std::string& what : world_->violations()) ADD_FAILURE() << what;
    EXPECT_EQ(world_->cluster().census().total(), 0U);
    EXPECT_EQ(world_->agents().accounts() + world_->held(), 0U);
  }
  static Ask text(std::int64_t prompt, std::int64_t output) {
    Ask ask;
    ask.prompt = prompt;
    ask.output_limit = output;
    return ask;
  }
  int finished() const {
    int sum = 0;
    for (const auto& [id, outcome] : world_->outcomes()) sum += outcome.finished;
    return sum;
  }
  model::Profile profile_;
  std::unique_ptr<World> world_;
};

Nanos seconds(std::int64_t n) { return Nanos{n * kSecond.value}; }

// Picking a worker and counting the pick are one step: a burst does not fall on one worker.
TEST_F(Scenario, SixtyFourAtOnceSpreadEvenlyOverIdleRanks) {
  World& world = build();
  for (int i = 0; i < 64; ++i) world.submit(text(1'400, 2));  // 20 ms of quota each: a rank's offer holds one
  world.run_until(world.loop().now() + Nanos{8'000'000});
  int least = INT32_MAX, most = 0;
  for (std::uint32_t e = 0; e < 4; ++e) {
    for (std::uint32_t r = 0; r < 2; ++r) {
      const int starts = world.starts({Role::kPrefill, EngineId{e}, r});
      least = std::min(least, starts);
      most = std::max(most, starts);
    }
  }
  EXPECT_GE(least, 1);
  EXPECT_LE(most - least, 1);
}

// Saturation is known at once, from what was given out, not from reports that come later: the rest waits
// here.
TEST_F(Scenario, AWideBurstWaitsInTheQueueNotInTheEngines) {
  World& world = build();
  for (int i = 0; i < 500; ++i) world.submit(text(1'400, 2));
  world.run_until(world.loop().now() + Nanos{2'000'000});
  const ClusterStatus status = world.cluster().status();
  EXPECT_LE(status.prefilling, 16U);
  EXPECT_GE(status.queued, 480U);
  ASSERT_TRUE(world.run_out(seconds(600)));
  EXPECT_EQ(finished(), 500);
}

// A burst wider than the decode side: nobody waits inside a prefill engine beyond the bound, all are
// answered.
TEST_F(Scenario, ABurstWiderThanDecodeTakesIsAnsweredInTurns) {
  auto config = eight_ranks();
  config.decode.groups = config.decode.ranks = 1;
  config.decode.max_running = 4;
  World& world = build(config);
  for (int i = 0; i < 32; ++i) world.submit(text(300, 200));
  for (int tick = 0; tick < 100; ++tick) {
    world.run_until(world.loop().now() + Nanos{20'000'000});
    const ClusterStatus status = world.cluster().status();
    EXPECT_LE(status.decoding, 4U);
    EXPECT_LE(status.prefilling, 5U) << "more than the held head went into the engines";
  }
  ASSERT_TRUE(world.run_out(seconds(600)));
  EXPECT_EQ(finished(), 32);
}

// Long prompts that were cancelled leave the engines before a short one behind them has to wait.
TEST_F(Scenario, AShortRequestDoesNotWaitBehindCancelledLongOnes) {
  auto config = eight_ranks();
  config.prefill.engines = config.prefill.ranks = 1;
  World& world = build(config);
  std::vector<RequestId> longs;
  for (int i = 0; i < 10; ++i) longs.push_back(world.submit(text(8'000, 100)));  // 0.6 s of compute each
  world.run_until(world.loop().now() + Nanos{30'000'000});
  for (const RequestId id : longs) world.cancel(id);
  const RequestId quick = world.submit(text(200, 1));
  world.run_until(world.loop().now() + Nanos{60'000'000});
  EXPECT_TRUE(world.outcome(quick).finished);
}

// The client leaves between prefill and decode: the KV that waits for its hand-over is freed.
TEST_F(Scenario, ACancelBetweenPrefillAndDecodeFreesBothSides) {
  World& world = build();
  world.decode(0).hang(seconds(2));  // nobody answers the reservation
  world.decode(1).hang(seconds(2));
  const RequestId id = world.submit(text(600, 50));
  world.run_until(world.loop().now() + Nanos{200'000'000});
  EXPECT_EQ(world.cluster().status().prefilling, 1U);
  EXPECT_EQ(world.outcome(id).tokens, 0);
  world.cancel(id);
}

// A lease runs out while the engine is silent: another engine redoes the work and the late answer is ignored.
TEST_F(Scenario, AnExpiredLeaseIsRedoneAndItsLateAnswerIgnored) {
  auto config = eight_ranks();
  config.prefill.engines = 2;
  config.prefill.ranks = 1;
  World& world = build(config);
  world.prefill(0).hang(seconds(3));
  const RequestId first = world.submit(text(600, 5));
  const RequestId second = world.submit(text(600, 5));
  world.run_until(world.loop().now() + seconds(2));
  EXPECT_TRUE(world.outcome(first).finished);
  EXPECT_TRUE(world.outcome(second).finished);
  EXPECT_EQ(world.outcome(first).tokens, 5);
  bool redone = false;
  for (const Record& record : world.records()) redone |= std::holds_alternative<RequeueRecord>(record.body);
  EXPECT_TRUE(redone);
}

// Scaling down: a group that drains finishes its streams and gets no new ones.
TEST_F(Scenario, DrainFinishesWhatRunsAndTakesNothingNew) {
  World& world = build();
  for (int i = 0; i < 20; ++i) world.submit(text(300, 400));
  world.run_until(world.loop().now() + Nanos{300'000'000});
  world.step(Drain{Role::kDecode, EngineId{0}, true});
  world.step(Drain{Role::kPrefill, EngineId{0}, true});
  const int before =
      world.starts({Role::kPrefill, EngineId{0}, 0}) + world.starts({Role::kPrefill, EngineId{0}, 1});
  std::vector<RequestId> later;
  for (int i = 0; i < 20; ++i) later.push_back(world.submit(text(300, 20)));
  ASSERT_TRUE(world.run_out(seconds(600)));
  EXPECT_EQ(finished(), 40);
  EXPECT_EQ(world.starts({Role::kPrefill, EngineId{0}, 0}) + world.starts({Role::kPrefill, EngineId{0}, 1}),
            before);
  for (const Record& record : world.records()) {
    const auto* start = std::get_if<DecodeStartRecord>(&record.body);
    if (start == nullptr || record.request < later.front()) continue;
    EXPECT_EQ(start->rank.engine, EngineId{1});
  }
  world.step(Drain{Role::kPrefill, EngineId{0}, false});
  world.step(Drain{Role::kDecode, EngineId{0}, false});
  for (int i = 0; i < 16; ++i) world.submit(text(1'400, 2));
  world.run_until(world.loop().now() + Nanos{50'000'000});
  EXPECT_GT(world.starts({Role::kPrefill, EngineId{0}, 0}), before / 2);
}

// Slow encoders make image requests wait, however many there are; none is dropped, and leases do not run out
// on engines that wait for them.
TEST_F(Scenario, TwoHundredImagesOverSlowEncodersAreAllAnswered) {
  Faults slow;
  slow.encode_per_patch = Nanos{15'000'000};  // 4,000 patches: a minute each
  auto config = eight_ranks();
  World& world = build(config, slow);
  for (int i = 0; i < 200; ++i) {
    Ask ask = text(400, 4);
    ask.images.push_back({50, 100, 1'280, 800, 4'000, {}});
    world.submit(ask);
  }
  ASSERT_TRUE(world.run_out(seconds(4'000)));
  EXPECT_EQ(finished(), 200);
  for (const Record& record : world.records()) {
    EXPECT_FALSE(std::holds_alternative<RequeueRecord>(record.body)) << describe(record);
  }
}

// The request's own prefill counts too, once the match says how much of it there is: what cannot begin its
// answer in time is told so before it is accepted, and what the pool holds already is let in.
TEST_F(Scenario, ItsOwnWorkBeyondTheLimitIsRefusedAfterTheMatch) {
  auto config = eight_ranks();
  config.gateway.queue_quota_limit_ms = 100;
  World& world = build(config);
  const RequestId lengthy = world.submit(text(8'000, 5));  // 650 ms of compute
  Ask known = text(8'000, 5);
  known.shared = 7'936;
  const RequestId hit = world.submit(known);
  const RequestId brief = world.submit(text(1'000, 5));
  world.run_until(world.loop().now() + Nanos{1'000'000});
  const Outcome& refused = world.outcome(lengthy);
  EXPECT_TRUE(refused.failed);
  EXPECT_FALSE(refused.accepted) << "so that the client gets a status of its own, not a broken stream";
  EXPECT_EQ(refused.code, base::Code::kOverloaded);
  EXPECT_FALSE(refused.retry_after) << "its own work does not shrink by waiting";
  ASSERT_TRUE(world.run_out(seconds(60)));
  EXPECT_TRUE(world.outcome(hit).finished) << world.outcome(hit).message;
  EXPECT_TRUE(world.outcome(brief).finished) << world.outcome(brief).message;
}

// The limit counts the request that is in already once, not against itself when its match comes.
TEST_F(Scenario, TheLastRequestThatTheLimitAllowsIsServed) {
  auto config = eight_ranks();
  config.gateway.requests_in_flight_max = 1;
  World& world = build(config);
  const RequestId only = world.submit(text(300, 3));
  const RequestId beyond = world.submit(text(300, 3));
  EXPECT_EQ(world.outcome(beyond).code, base::Code::kResourceExhausted);
  EXPECT_TRUE(world.outcome(beyond).retry_after);
  ASSERT_TRUE(world.run_out(seconds(60)));
  EXPECT_TRUE(world.outcome(only).finished) << world.outcome(only).message;
}

// A prompt that no rank could ever hold is refused at the door with what to change.
TEST_F(Scenario, WhatNobodyCanTakeIsRefusedAtOnce) {
  auto config = eight_ranks();
  config.prefill.kv_blocks = 10;
  World& world = build(config);
  const Outcome& outcome = world.outcome(world.submit(text(1'281, 5)));
  EXPECT_TRUE(outcome.failed);
  EXPECT_EQ(outcome.code, base::Code::kInvalidArgument);
  EXPECT_NE(outcome.message.find("prefill.kv_blocks"), std::string::npos) << outcome.message;
  EXPECT_FALSE(outcome.retry_after) << "waiting does not help";
}

// No engine is there (starting, or all lost): a clear, retryable refusal instead of a queue without an end.
TEST_F(Scenario, WithoutAnEngineTheAnswerIsUnavailableWithARetryTime) {
  World& world = build();
  for (int e = 0; e < 4; ++e) world.prefill(static_cast<std::size_t>(e)).lose(0);
  world.run_until(world.loop().now() + Nanos{700'000});
  const Outcome& outcome = world.outcome(world.submit(text(100, 5)));
  EXPECT_TRUE(outcome.failed);
  EXPECT_EQ(outcome.code, base::Code::kUnavailable);
  EXPECT_TRUE(outcome.retry_after);
}

// A rank that dies again and again under the same request: three redos, then a clear error.
TEST_F(Scenario, RedosAreBounded) {
  auto config = eight_ranks();
  config.decode.groups = 1;
  World& world = build(config);
  const RequestId id = world.submit(text(300, 2'000));
  for (int i = 0; i < 8 && !world.outcome(id).done(); ++i) {
    world.run_until(world.loop().now() + Nanos{250'000'000});
    world.decode(0).lose(0);
  }
  world.run_until(world.loop().now() + seconds(1));
  EXPECT_TRUE(world.outcome(id).failed);
  EXPECT_EQ(world.outcome(id).code, base::Code::kUnavailable);
  EXPECT_NE(world.outcome(id).message.find("3 redos"), std::string::npos) << world.outcome(id).message;
  EXPECT_GT(world.outcome(id).tokens, 0);
}

}  // namespace
}  // namespace trimtab::cluster
