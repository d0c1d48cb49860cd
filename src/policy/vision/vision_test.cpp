#include "policy/vision/vision.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>

#include "base/prng.h"

namespace trimtab::policy {
namespace {

using model::EncoderId;
using model::MachineId;

EncoderId encoder(std::uint32_t machine, std::uint32_t number) { return {MachineId{machine}, number}; }
VisionJob job(std::uint64_t request, std::uint32_t image = 0) { return {model::RequestId{request}, image}; }

std::unique_ptr<VisionPolicy> make(std::string_view name, std::uint64_t seed, std::uint32_t machines,
                                   std::uint32_t encoders) {
  auto made = make_vision_policy({std::string(name), seed});
  EXPECT_TRUE(made) << made.error().message;
  for (std::uint32_t m = 0; m < machines; ++m)
    for (std::uint32_t e = encoders; e > 0; --e) (*made)->add_encoder(encoder(m, e - 1));
  return std::move(*made);
}

TEST(Vision, TheScreenshotGoesToTheLeastLoadedEncoderOfTheDrawnMachine) {
  auto vision = make("random_machine", 1, 2, 2);
  // On each machine encoder 0 works at two images, encoder 1 at one large one.
  for (std::uint32_t m = 0; m < 2; ++m) {
    vision->started(job(1, m), encoder(m, 0), 4'000);
    vision->started(job(2, m), encoder(m, 0), 900);
    vision->started(job(3, m), encoder(m, 1), 4'800);
  }
  const VisionDecision decision = vision->decide(4'000);
  ASSERT_TRUE(decision.encoder);
  EXPECT_EQ(decision.encoder->encoder, 1u) << "patches count, not images";
  EXPECT_EQ(decision.reason.machines, 2u);
  EXPECT_EQ(decision.reason.patches_in_flight, (std::vector<std::int64_t>{4'900, 4'800}));
  EXPECT_EQ(decision.reason.runner_up, encoder(decision.encoder->machine.value, 0));
}

TEST(Vision, TiesGoToTheLowerId) {
  auto vision = make("random_machine", 3, 1, 4);
  EXPECT_EQ(vision->decide(10).encoder, encoder(0, 0));
  EXPECT_EQ(vision->decide(10).reason.runner_up, encoder(0, 1));
}

TEST(Vision, DrawsEveryMachineEquallyOftenAndTheSameBySeed) {
  auto vision = make("random_machine", 42, 4, 2), again = make("random_machine", 42, 4, 2);
  std::map<std::uint32_t, int> drawn;
  for (int i = 0; i < 8'000; ++i) {
    const auto chosen = vision->decide(1).encoder;
    ASSERT_EQ(chosen, again->decide(1).encoder);
    ++drawn[chosen->machine.value];
  }
  for (const auto& [machine, times] : drawn) EXPECT_NEAR(times, 2'000, 160) << machine;  // 4 sigma
  EXPECT_EQ(drawn.size(), 4u);
}

TEST(Vision, ALostMachineGivesItsJobsBackAndIsNotDrawnAgain) {
  for (const std::string_view name : vision_policy_names()) {
    auto vision = make(name, 5, 2, 2);
    vision->started(job(9, 1), encoder(1, 1), 100);
    vision->started(job(9, 0), encoder(1, 0), 50);
    vision->started(job(4), encoder(0, 0), 70);
    EXPECT_EQ(vision->machine_lost(MachineId{1}), (std::vector{job(9, 0), job(9, 1)}));
    EXPECT_EQ(vision->jobs_known(), 1u);
    EXPECT_FALSE(vision->finished(job(9, 0)));
    for (int i = 0; i < 50; ++i) EXPECT_EQ(vision->decide(1).encoder, encoder(0, 1));
    EXPECT_EQ(vision->machine_lost(MachineId{1}), std::vector<VisionJob>{});  // twice is harmless
    vision->machine_lost(MachineId{0});
    EXPECT_FALSE(vision->decide(1).encoder);
    EXPECT_EQ(describe(vision->decide(1)), "no vision machine takes work");
  }
}

TEST(Vision, ADrainingMachineFinishesButTakesNothing) {
  auto vision = make("random_machine", 5, 2, 1);
  vision->started(job(1), encoder(0, 0), 100);
  vision->set_open(MachineId{0}, false);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(vision->decide(1).encoder, encoder(1, 0));
  EXPECT_EQ(vision->patches_in_flight(encoder(0, 0)), 100);
  EXPECT_TRUE(vision->finished(job(1)));
  EXPECT_EQ(vision->patches_in_flight(encoder(0, 0)), 0);
}

RC_GTEST_PROP(Vision, KeepsTrueAccountsAndPicksTheLeastOfAMachine, (std::uint64_t seed)) {
  for (const std::string_view name : vision_policy_names()) {
    auto vision = make(name, seed, 3, 3);
    base::Prng prng(seed);
    std::map<EncoderId, std::int64_t> load;
    for (std::uint32_t m = 0; m < 3; ++m)
      for (std::uint32_t e = 0; e < 3; ++e) load[encoder(m, e)] = 0;
    std::map<VisionJob, std::pair<EncoderId, std::int64_t>> jobs;
    std::uint64_t next = 1;
    for (int step = 0; step < 200; ++step) {
      if (prng.below(3) == 0 && !jobs.empty()) {
        const auto done = std::next(jobs.begin(), static_cast<long>(prng.below(jobs.size())));
        RC_ASSERT(vision->finished(done->first));
        load[done->second.first] -= done->second.second;
        jobs.erase(done);
      } else {
        const auto patches = static_cast<std::int64_t>(prng.below(5)) * 1'000;
        const EncoderId chosen = *vision->decide(patches).encoder;
        for (const auto& [other, in_flight] : load) {
          if (name == "random_machine" && other.machine != chosen.machine) continue;
          RC_ASSERT(load[chosen] < in_flight || (load[chosen] == in_flight && !(other < chosen)));
        }
        vision->started(job(next), chosen, patches);
        jobs[job(next++)] = {chosen, patches};
        load[chosen] += patches;
      }
      for (const auto& [id, in_flight] : load) RC_ASSERT(vision->patches_in_flight(id) == in_flight);
    }
    for (const auto& [id, place] : jobs) RC_ASSERT(vision->finished(id));
    RC_ASSERT(vision->jobs_known() == 0u);
  }
}

TEST(Vision, ProgrammerErrorsAndUnknownNames) {
  auto vision = make("random_machine", 5, 1, 1);
  vision->started(job(1), encoder(0, 0), 1);
  EXPECT_DEATH(vision->started(job(1), encoder(0, 0), 1), "image 0 of request 1 is being encoded already");
  EXPECT_DEATH(vision->started(job(2), encoder(3, 0), 1), "encoder v3e0 is not known");
  EXPECT_DEATH(vision->add_encoder(encoder(0, 0)), "added twice");
  EXPECT_EQ(make_vision_policy({"random_machin", 1}).error().message,
            "there is no vision policy \"random_machin\"; did you mean \"random_machine\"? Known: "
            "random_machine, least_patches");
}

}  // namespace
}  // namespace trimtab::policy
