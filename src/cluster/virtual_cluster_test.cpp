// The whole cluster machine in virtual time: thousands of requests of mixed length over model engines, with
// clients that leave, ranks that die, engines that fall silent, encoders that fail, reservations refused and
// memory that runs out. Everything ends, clearly; every token is delivered once; nothing is left behind;
// twice the same.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "cluster/life.h"
#include "cluster/testing/virtual_world.h"
#include "queue/embedded_queue.h"

namespace trimtab::cluster {
namespace {

using testing::Ask;
using testing::Faults;
using testing::Outcome;
using testing::World;

model::Profile small_profile() {
  model::Profile profile;
  profile.name = "test";
  profile.context_limit = TokenCount{8'192};
  profile.cost = model::QuadraticCost{1'000'000, 1'000'000, 5'000};  // 1 ms, 1 us a token, 5 ns a pair
  return profile;
}

model::ClusterConfig small_config() {
  model::ClusterConfig config;
  config.prefill.engines = 3;
  config.prefill.ranks = 2;
  config.prefill.tier_bounds_tokens = {512, 2'048, 4'096};
  config.prefill.step_budget_ms = 2;
  config.prefill.chunk_tokens_max = 2'048;
  config.prefill.allocation_round_ms = 200;
  config.prefill.aging_ms = 1'000;
  config.prefill.lease_ms = 400;
  config.prefill.kv_blocks = 96;
  config.decode.groups = 2;
  config.decode.ranks = 2;
  config.decode.max_running = 12;
  config.decode.kv_blocks = 60;
  config.gateway.requests_in_flight_max = 1'000;
  config.seed = 7;
  return config;
}

Ask random_ask(base::Prng& prng) {
  Ask ask;
  // Mostly short, some long: lognormal, as conversations are.
  const double length = 500.0 * std::exp(1.1 * prng.normal());
  ask.prompt = std::clamp<std::int64_t>(static_cast<std::int64_t>(length), 1, 7'000);
  ask.shared =
      prng.below(2) == 0 ? 0 : static_cast<std::int64_t>(prng.below(static_cast<std::uint64_t>(ask.prompt)));
  ask.output_limit = 1 + static_cast<std::int64_t>(prng.below(prng.below(5) == 0 ? 900 : 60));
  ask.stops_after = 1 + static_cast<std::int64_t>(prng.exponential(250.0));
  if (prng.below(6) == 0 && ask.prompt > 200) {
    const std::uint64_t images = 1 + prng.below(3);
    for (std::uint64_t i = 0; i < images; ++i) {
      model::ImageSpan span;
      span.tokens = 30;
      span.position = static_cast<std::uint32_t>(20 + i * 50);
      span.patches = static_cast<std::uint32_t>(100 + prng.below(4'000));
      ask.images.push_back(span);
    }
  }
  if (prng.below(40) == 0) ask.timeout = Nanos{static_cast<std::int64_t>(1 + prng.below(300'000'000))};
  return ask;
}

// Sanitizers cost a factor of ten.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kRequests = 1'000, kSeeds = 1;
#else
constexpr std::uint64_t kRequests = 3'000, kSeeds = 6;
#endif

struct Chaos {
  std::uint64_t requests = kRequests;
  double mean_gap_us = 8'000, patience_ms = 120;
  std::uint64_t cancel_one_in = 8;
  std::uint64_t faults = 0;  // lost ranks, lost encoders and silent engines, spread over the run
};

/// Schedules the clients and the faults of a run.
void script(World& world, base::Prng& prng, const Chaos& chaos) {
  Nanos at = world.loop().now();
  for (std::uint64_t i = 0; i < chaos.requests; ++i) {
    at += Nanos{static_cast<std::int64_t>(prng.exponential(chaos.mean_gap_us) * 1'000)};
    const Ask ask = random_ask(prng);
    const bool leaves = chaos.cancel_one_in != 0 && prng.below(chaos.cancel_one_in) == 0;
    const Nanos patience{static_cast<std::int64_t>(prng.exponential(chaos.patience_ms * 1e6))};
    world.loop().at(at, [&world, ask, leaves, patience] {
      const RequestId id = world.submit(ask);
      if (leaves) world.loop().after(patience, [&world, id] { world.cancel(id); });
    });
  }
  const Nanos span = at - world.loop().now();
  for (std::uint64_t i = 0; i < chaos.faults; ++i) {
    const Nanos when = world.loop().now() +
                       Nanos{static_cast<std::int64_t>(prng.uniform() * static_cast<double>(span.value))};
    const std::uint64_t kind = prng.below(10), which = prng.below(12);
    world.loop().at(when, [&world, kind, which] {
      const auto rank = static_cast<std::uint32_t>(which % 2);
      if (kind < 3) return world.prefill(which % 3).lose(rank);
      if (kind < 6) return world.decode(which % 2).lose(rank);
      if (kind < 8)
        return world.encoder({model::MachineId{static_cast<std::uint32_t>(which % 2)}, rank}).lose();
      if (kind < 9) return world.prefill(which % 3).hang(Nanos{900'000'000});
      world.decode(which % 2).hang(Nanos{300'000'000});
    });
  }
}

std::unique_ptr<World> make_world(std::uint64_t seed, Faults faults = {},
                                  model::ClusterConfig config = small_config()) {
  return std::make_unique<World>(config, small_profile(), queue::EmbeddedQueue::make(config.prefill).value(),
                                 seed, faults);
}

struct Tally {
  std::uint64_t finished = 0, failed = 0, cancelled = 0;
  std::int64_t tokens = 0;
};

void expect_nothing_left(World& world) {
  const Census census = world.cluster().census();
  EXPECT_EQ(census.requests, 0U);
  EXPECT_EQ(census.queued, 0U);
  EXPECT_EQ(census.leases, 0U);
  EXPECT_EQ(census.held, 0U);
  EXPECT_EQ(census.holdings, 0U);
  EXPECT_EQ(census.deadlines, 0U);
  EXPECT_EQ(census.releases, 0U);
  EXPECT_EQ(census.decode_accounts, 0U);
  EXPECT_EQ(census.vision_jobs, 0U);
  EXPECT_EQ(census.admission_accounts, 0U);
  EXPECT_EQ(world.agents().accounts(), 0U);
  EXPECT_EQ(world.embeddings_at_host(), 0);
  EXPECT_EQ(world.held(), 0U);
  EXPECT_TRUE(world.live().empty());
  for (const EngineStatus& engine : world.cluster().status().engines) {
    for (const RankStatus& rank : engine.ranks) {
      EXPECT_EQ(rank.requests, 0U);
      EXPECT_EQ(rank.running, 0);
      EXPECT_EQ(rank.kv.value, 0);
      EXPECT_EQ(rank.patches, 0);
    }
  }
}

/// Every token that was asked for, unless the request grew beyond what any decode rank can hold.
void expect_whole(RequestId id, const Ask& ask, const Outcome& outcome, std::int64_t kv_tokens) {
  const bool stops = ask.stops_after <= ask.output_limit;
  const std::int64_t wanted = std::min(ask.output_limit, ask.stops_after);
  if (outcome.tokens < wanted) {
    EXPECT_EQ(outcome.reason, model::FinishReason::kLength);
    EXPECT_GT(ask.prompt + outcome.tokens + 1 + model::kBlockTokens, kv_tokens) << "request " << id.value;
    return;
  }
  EXPECT_EQ(outcome.tokens, wanted) << "request " << id.value;
  EXPECT_EQ(outcome.reason, stops ? model::FinishReason::kStop : model::FinishReason::kLength);
}

Tally check(World& world, Nanos within) {
  EXPECT_TRUE(world.run_out(within)) << "it does not come to an end";
  for (const std::string& what : world.violations()) ADD_FAILURE() << what;
  expect_nothing_left(world);
  Tally tally;
  const std::int64_t kv_tokens = small_config().decode.kv_blocks * model::kBlockTokens;
  for (const auto& [id, outcome] : world.outcomes()) {
    const Ask& ask = world.ask(id);
    tally.finished += outcome.finished;
    tally.failed += outcome.failed;
    tally.cancelled += outcome.cancelled;
    tally.tokens += outcome.tokens;
    EXPECT_EQ(outcome.finished + outcome.failed + outcome.cancelled, 1) << "request " << id.value;
    EXPECT_LE(outcome.tokens, std::min(ask.output_limit, ask.stops_after));
    if (outcome.finished) expect_whole(id, ask, outcome, kv_tokens);
    if (outcome.failed) {
      if (std::getenv("TRIMTAB_VERBOSE") != nullptr) std::printf("%s\n", outcome.message.c_str());
      EXPECT_FALSE(outcome.message.empty());
    }
  }
  return tally;
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
