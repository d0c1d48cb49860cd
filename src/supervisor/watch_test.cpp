#include "supervisor/watch.h"

#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include "base/prng.h"

namespace trimtab::supervisor {
namespace {

using namespace base;  // literals
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Kind = Action::Kind;

std::vector<ProcessSpec> plan() {
  return {{"gateway", "gateway", {"/bin/true"}, {}, 0},
          {"prefill 0.0", "prefill 0", {"/bin/true"}, {"/shm/group"}, 0},
          {"prefill 0.1", "prefill 0", {"/bin/true"}, {"/shm/group"}, 0}};
}

TEST(Watch, ADeadRankTakesItsGroupDownAndTheGroupStartsAgain) {
  Watch watch(plan(), {});
  watch.start(0_s);
  EXPECT_THAT(watch.exited(1, 1_s), ElementsAre(Action{Kind::kTerminate, 2}));
  EXPECT_THAT(watch.tick(2_s), IsEmpty());
  EXPECT_THAT(watch.exited(2, 2_s), IsEmpty());
  EXPECT_EQ(watch.next_wake(), 2_s + 200_ms);
  EXPECT_THAT(watch.tick(2_s + 200_ms),
              ElementsAre(Action{Kind::kRemoveFiles, 1}, Action{Kind::kRemoveFiles, 2},
                          Action{Kind::kStart, 1}, Action{Kind::kStart, 2}));
  EXPECT_EQ(watch.restarts(1), 1U);
  EXPECT_EQ(watch.restarts(0), 0U);
}

TEST(Watch, AStubbornPeerIsKilled) {
  Watch watch(plan(), {});
  watch.start(0_s);
  watch.exited(1, 1_s);
  EXPECT_THAT(watch.tick(6_s), ElementsAre(Action{Kind::kKill, 2}));
}

TEST(Watch, AProcessThatStandsStillIsKilledAndItsGroupStartsAgain) {
  Watch watch(plan(), {});
  watch.start(0_s);
  EXPECT_THAT(watch.observed(1, true, 1_s), IsEmpty());
  EXPECT_THAT(watch.observed(1, true, 10_s), IsEmpty());
  EXPECT_THAT(watch.observed(1, false, 10_s), IsEmpty());  // it went on: the count begins anew
  EXPECT_THAT(watch.observed(1, true, 12_s), IsEmpty());
  EXPECT_THAT(watch.observed(1, true, 21_s), IsEmpty());
  EXPECT_THAT(watch.observed(1, true, 22_s), ElementsAre(Action{Kind::kKill, 1}));
  EXPECT_THAT(watch.exited(1, 22_s), ElementsAre(Action{Kind::kTerminate, 2}));
  watch.exited(2, 23_s);
  watch.tick(24_s);
  EXPECT_THAT(watch.observed(1, true, 25_s), IsEmpty());  // the next life has its own count
}

TEST(Watch, BackoffDoublesUpToItsMaximumAndResetsAfterHealth) {
  Watch watch({{"gateway", "gateway", {"x"}, {}, 0}}, {});
  watch.start(0_s);
  Nanos now{0};
  Nanos last{0};
  for (int i = 0; i < 10; ++i) {
    watch.exited(0, now);
    last = watch.next_wake() - now;
    now = watch.next_wake();
    watch.tick(now);
  }
  EXPECT_EQ(last, 10_s);
  now += 31_s;
  watch.exited(0, now);
  EXPECT_EQ(watch.next_wake() - now, 200_ms);
}

TEST(Watch, StopEndsEverythingAndRestartsNothing) {
  Watch watch(plan(), {});
  watch.start(0_s);
  EXPECT_EQ(watch.stop(1_s).size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_THAT(watch.exited(i, 2_s), IsEmpty());
  EXPECT_TRUE(watch.stopped());
  EXPECT_EQ(watch.next_wake(), kForever);
}

std::vector<ProcessSpec> staged_plan() {
  auto out = plan();
  out.push_back({"kv-loader", "kv-loader", {"/bin/true"}, {}, 0});
  out[0].drains = 10_s;
  out[1].stop_stage = out[2].stop_stage = 1;
  out[3].stop_stage = 2;
  return out;
}

// The engines serve until the gateway has ended its requests, and the pool until the engines have stored
// theirs.
TEST(Watch, StopsStageAfterStage) {
  Watch watch(staged_plan(), {});
  watch.start(0_s);
  EXPECT_THAT(watch.stop(1_s), ElementsAre(Action{Kind::kTerminate, 0}));
  EXPECT_THAT(watch.tick(15_s), IsEmpty());  // 10 s to drain, then 5 s more
  EXPECT_THAT(watch.tick(16_s), ElementsAre(Action{Kind::kKill, 0}));
  EXPECT_THAT(watch.exited(0, 16_s), ElementsAre(Action{Kind::kTerminate, 1}, Action{Kind::kTerminate, 2}));
  EXPECT_THAT(watch.exited(2, 17_s), IsEmpty());
  EXPECT_THAT(watch.tick(21_s), ElementsAre(Action{Kind::kKill, 1}));
  EXPECT_THAT(watch.exited(1, 21_s), ElementsAre(Action{Kind::kTerminate, 3}));
  EXPECT_FALSE(watch.stopped());
  watch.exited(3, 22_s);
  EXPECT_TRUE(watch.stopped());
  EXPECT_EQ(watch.next_wake(), kForever);
}

TEST(Watch, ARankThatDiesWhileTheGatewayDrainsIsNotStartedAgain) {
  Watch watch(staged_plan(), {});
  watch.start(0_s);
  watch.stop(1_s);
  EXPECT_THAT(watch.exited(1, 2_s), ElementsAre(Action{Kind::kTerminate, 2}));
  watch.exited(2, 2_s);
  EXPECT_THAT(watch.tick(10_s), IsEmpty());
  EXPECT_THAT(watch.exited(0, 11_s), ElementsAre(Action{Kind::kTerminate, 3}));
}

TEST(Watch, ASecondStopEndsAllStagesAtOnce) {
  Watch watch(staged_plan(), {});
  watch.start(0_s);
  watch.stop(1_s);
  EXPECT_EQ(watch.stop(2_s).size(), 4U);
  EXPECT_EQ(watch.tick(7_s).size(), 4U);  // SIGKILL for whoever is left, without the time to drain
}

// Whatever dies whenever: no process is started while it lives, and at the end stop() leaves nothing.
RC_GTEST_PROP(Watch, NeverStartsALivingProcess, (std::uint64_t seed)) {
  Prng prng(seed);
  Watch watch(plan(), {});
  std::vector<bool> alive(3, false);
  Nanos now{0};
  const auto apply = [&](const std::vector<Action>& actions) {
    for (const Action& action : actions) {
      if (action.kind == Kind::kStart) {
        RC_ASSERT(!alive[action.process]);
        alive[action.process] = true;
      }
    }
  };
  apply(watch.start(now));
  for (int i = 0; i < 200; ++i) {
    now += Nanos{static_cast<std::int64_t>(prng.below(3'000'000'000))};
    const std::size_t index = prng.below(3);
    if (alive[index] && prng.below(2) == 0) {
      alive[index] = false;
      apply(watch.exited(index, now));
    }
    apply(watch.tick(now));
  }
  apply(watch.stop(now));
  for (std::size_t i = 0; i < 3; ++i) {
    if (alive[i]) apply(watch.exited(i, now));
  }
  RC_ASSERT(watch.stopped());
}

}  // namespace
}  // namespace trimtab::supervisor
