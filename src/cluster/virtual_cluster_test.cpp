// The whole cluster machine in virtual time: thousands of requests of mixed length over model engines, with
// clients that leave, ranks that die, engines that fall silent, encoders that fail, reservations refused and
// memory that runs out. Everything ends, clearly; every token is delivered once; nothing is left behind;
// twice the same.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "cluster/life.h"
#include "cluster/testing/virtual_chaos.h"
#include "queue/embedded_queue.h"

namespace trimtab::cluster {
namespace {

using testing::Ask;
using testing::Chaos;
using testing::check;
using testing::Faults;
using testing::kRequests;
using testing::kSeeds;
using testing::script;
using testing::small_config;
using testing::small_profile;
using testing::Tally;
using testing::World;

std::unique_ptr<World> make_world(std::uint64_t seed, Faults faults = {},
                                  model::ClusterConfig config = small_config()) {
  return std::make_unique<World>(config, small_profile(), queue::EmbeddedQueue::make(config.prefill).value(),
                                 seed, faults);
}

constexpr Nanos kMinutes{600'000'000'000};

std::uint64_t seed_of_run() {
  const char* text = std::getenv("TRIMTAB_SEED");
  const std::uint64_t seed = text != nullptr ? std::strtoull(text, nullptr, 10) : 20'260'729;
  std::printf("TRIMTAB_SEED=%llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

TEST(VirtualCluster, ACalmDayFinishesEveryRequest) {
  auto world = make_world(1);
  base::Prng prng(2);
  world->start();
  ASSERT_TRUE(world->cluster().ready());
  Chaos chaos;
  chaos.cancel_one_in = 0;
  chaos.mean_gap_us = 14'000;
  script(*world, prng, chaos);
  const Tally tally = check(*world, kMinutes);
  for (const auto& [id, outcome] : world->outcomes()) {
    // Only clients without patience go without an answer on a calm day.
    if (outcome.failed) {
      EXPECT_NE(world->ask(id).timeout, base::kForever) << outcome.message;
      EXPECT_TRUE(outcome.code == base::Code::kDeadlineExceeded || outcome.code == base::Code::kOverloaded);
    }
  }
  EXPECT_GT(tally.finished, kRequests * 29 / 30);
}

struct RunResult {
  std::uint64_t hash = 0, steps = 0;
  Tally tally;
};

RunResult chaotic_run(std::uint64_t seed) {
  Faults faults;
  faults.reserve_refusals = 0.03;
  faults.encode_failures = 0.05;
  faults.hand_over_failures = 0.02;
  auto world = make_world(seed, faults);
  base::Prng prng(seed, 1);
  world->start();
  Chaos chaos;
  chaos.faults = 60;
  script(*world, prng, chaos);
  RunResult run;
  run.tally = check(*world, kMinutes);
  run.hash = world->hash();
  run.steps = world->steps();
  return run;
}

TEST(VirtualCluster, ChaosEndsClearlyAndTwiceTheSame) {
  const std::uint64_t seed = seed_of_run();
  const RunResult first = chaotic_run(seed);
  const RunResult second = chaotic_run(seed);
  EXPECT_EQ(first.hash, second.hash);
  EXPECT_EQ(first.steps, second.steps);
  const RunResult other = chaotic_run(seed + 1);
  EXPECT_NE(first.hash, other.hash) << "the hash must see what happens";
  EXPECT_GT(first.tally.finished, kRequests * 2 / 3);
  EXPECT_GT(first.tally.cancelled, kRequests / 30);
  std::printf("steps %llu, finished %llu, failed %llu, cancelled %llu, tokens %lld, hash %016llx\n",
              static_cast<unsigned long long>(first.steps),
              static_cast<unsigned long long>(first.tally.finished),
              static_cast<unsigned long long>(first.tally.failed),
              static_cast<unsigned long long>(first.tally.cancelled),
              static_cast<long long>(first.tally.tokens), static_cast<unsigned long long>(first.hash));
}

TEST(VirtualCluster, ChaosEndsClearlyWhateverTheSeed) {
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE("TRIMTAB_SEED=" + std::to_string(seed));
    EXPECT_GT(chaotic_run(seed).tally.finished, kRequests * 2 / 3);
  }
}

TEST(VirtualCluster, PreemptedRequestsComeBackAndLoseNothing) {
  auto config = small_config();
  config.decode.groups = config.decode.ranks = 1;
  auto world = make_world(5, {}, config);
  base::Prng prng(6);
  world->start();
  // Admitted with headroom for one block more each, then all grow by five.
  for (int i = 0; i < 60; ++i) {
    Ask ask;
    ask.prompt = 300 + static_cast<std::int64_t>(prng.below(200));
    ask.output_limit = 700;
    world->submit(ask);
  }
  world->keep_records(true);
  const Tally tally = check(*world, kMinutes);
  EXPECT_EQ(tally.finished, 60U);
  EXPECT_EQ(tally.tokens, 60 * 700);
  EXPECT_GT(world->decode(0).preemptions(), 5);
  std::uint32_t counted = 0;
  for (const Record& record : world->records()) {
    if (const auto* back = std::get_if<RequeueRecord>(&record.body)) counted = std::max(counted, back->redos);
  }
  EXPECT_EQ(counted, 0U) << "yielding memory is nobody's failure";
}

TEST(VirtualCluster, TenThousandCancelsAtRandomStagesLeaveNothingBehind) {
  auto config = small_config();
  config.gateway.requests_in_flight_max = 20'000;
  config.decode.groups = 1;  // scarce, so that requests wait for a place there too
  auto world = make_world(3, {}, config);
  base::Prng prng(4);
  world->start();
  Chaos chaos;
  chaos.requests = 13'000;
  chaos.cancel_one_in = 1;
  chaos.mean_gap_us = 2'500;
  chaos.patience_ms = 40;
  world->keep_records(true);
  script(*world, prng, chaos);
  const Tally tally = check(*world, kMinutes);
  EXPECT_GT(tally.cancelled, 10'000U);
  std::map<std::string, int> stages;
  for (const Record& record : world->records()) {
    if (const auto* cancelled = std::get_if<CancelledRecord>(&record.body)) ++stages[cancelled->stage];
  }
  for (const Stage stage :
       {Stage::kMatching, Stage::kQueued, Stage::kGranted, Stage::kPrefilling, Stage::kDecoding}) {
    EXPECT_GT(stages[std::string(name(stage))], 20) << name(stage);
    std::printf("cancelled while %s: %d\n", std::string(name(stage)).c_str(),
                stages[std::string(name(stage))]);
  }
}

}  // namespace
}  // namespace trimtab::cluster
