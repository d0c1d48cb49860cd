// Running requests that change decode ranks: whatever else happens meanwhile, every token comes once, nothing
// is left behind, and the policy's budget and rest are kept.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "cluster/testing/virtual_chaos.h"
#include "queue/embedded_queue.h"

namespace trimtab::cluster {
namespace {

using testing::Chaos;
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

struct Moved {
  RequestId id;
  Nanos at;
  bool planned = false;
};

std::vector<Moved> moves_of(const World& world) {
  std::vector<Moved> all;
  for (const Record& record : world.records()) {
    const auto* back = std::get_if<RequeueRecord>(&record.body);
    if (back == nullptr || back->reason.rfind("moved to decode rank", 0) != 0) continue;
    all.push_back({record.request, record.at, back->reason.find("potential") != std::string::npos});
  }
  return all;
}

/// Someone asks for moves of any request to any rank, all the time.
void ask_for_moves(World& world, std::uint64_t seed, Nanos every) {
  auto prng = std::make_shared<base::Prng>(seed, 9);
  const auto again = std::make_shared<std::function<void()>>();
  *again = [&world, prng, every, weak = std::weak_ptr(again)] {
    if (world.live().empty()) return;
    auto one = world.live().begin();
    std::advance(one, static_cast<std::ptrdiff_t>(prng->below(world.live().size())));
    const RankId to{EngineId{static_cast<std::uint32_t>(prng->below(2))},
                    static_cast<std::uint32_t>(prng->below(2))};
    world.step(Move{*one, to});
    if (const auto self = weak.lock()) world.loop().after(every, [self] { (*self)(); });
  };
  world.loop().after(every, [again] { (*again)(); });
}

TEST(Moves, RandomOnesLoseAndDoubleNoToken) {
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Faults faults;
    faults.answers_in_pool = seed % 2 == 0;
    auto world = make_world(seed, faults);
    base::Prng prng(seed, 1);
    world->start();
    world->keep_records(true);
    Chaos chaos;
    chaos.cancel_one_in = 0;
    chaos.mean_gap_us = 14'000;
    script(*world, prng, chaos);
    world->run_until(world->loop().now() + Nanos{200'000'000});
    ask_for_moves(*world, seed, Nanos{2'000'000});
    const Tally tally = check(*world, kMinutes);
    EXPECT_GT(tally.finished, kRequests * 29 / 30);
    EXPECT_GT(moves_of(*world).size(), kRequests / 20);
  }
}

TEST(Moves, AmongFaultsAndCancelsNothingIsLeftBehind) {
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Faults faults{0.03, 0.05, 0.02, true};
    auto config = small_config();
    config.decode.moves_per_1000 = 10'000;
    config.decode.move_interval_ms = config.decode.move_rest_ms = 0;
    config.decode.policy = seed % 2 == 0 ? "waterline_hold" : "waterline_hazard";
    config.decode.window = seed % 3 == 0 ? 1 : 8;
    config.decode.speeds_permille = {1'000, 700, 1'000, 700};
    const auto run = [&] {
      auto world = make_world(seed, faults, config);
      base::Prng prng(seed, 1);
      world->start();
      world->keep_records(true);
      Chaos chaos;
      chaos.faults = 60;
      script(*world, prng, chaos);
      world->run_until(world->loop().now() + Nanos{200'000'000});
      ask_for_moves(*world, seed, Nanos{3'000'000});
      EXPECT_GT(check(*world, kMinutes).finished, kRequests * 2 / 3);
      EXPECT_GT(moves_of(*world).size(), kRequests / 50);
      return world->hash();
    };
    const std::uint64_t first = run();
    if (seed == 1) {
      EXPECT_EQ(first, run()) << "twice the same";
    }
  }
}

TEST(Moves, PlannedOnesKeepTheirBudgetAndTheirRest) {
  auto config = small_config();
  config.decode.groups = 1;
  config.decode.ranks = 4;
  config.decode.moves_per_1000 = 100;
  config.decode.move_interval_ms = 20;
  config.decode.move_rest_ms = 400;
  config.decode.policy = "round_robin";  // leaves something to repair
  Faults faults;
  faults.answers_in_pool = true;
  auto world = make_world(3, faults, config);
  base::Prng prng(4);
  world->start();
  world->keep_records(true);
  Chaos chaos;
  chaos.cancel_one_in = 0;
  chaos.mean_gap_us = 12'000;
  script(*world, prng, chaos);
  check(*world, kMinutes);
  const std::vector<Moved> moves = moves_of(*world);
  EXPECT_GT(moves.size(), kRequests / 50);
  EXPECT_LE(moves.size(), kRequests / 10);
  std::map<RequestId, Nanos> last;
  for (const Record& record : world->records()) {
    const auto* back = std::get_if<RequeueRecord>(&record.body);
    if (back == nullptr) continue;
    EXPECT_EQ(back->redos, 0U) << "a move is nobody's failure";
  }
  for (const Moved& one : moves) {
    EXPECT_TRUE(one.planned);
    const auto before = last.find(one.id);
    if (before != last.end()) {
      EXPECT_GE(one.at - before->second, Nanos{400'000'000}) << one.id.value;
    }
    last[one.id] = one.at;
  }
}

TEST(Moves, StopForAWhileWhenThePoolKeepsNothing) {
  auto config = small_config();
  config.decode.groups = 1;
  config.decode.ranks = 4;
  config.decode.moves_per_1000 = 10'000;
  config.decode.move_interval_ms = config.decode.move_rest_ms = 0;
  config.decode.policy = "round_robin";
  const auto count = [&](bool pool) {
    Faults faults;
    faults.answers_in_pool = pool;
    faults.no_pool = !pool;
    auto world = make_world(3, faults, config);
    base::Prng prng(4);
    world->start();
    world->keep_records(true);
    Chaos chaos;
    chaos.cancel_one_in = 0;
    chaos.requests = 1'000;
    script(*world, prng, chaos);
    check(*world, kMinutes);
    return moves_of(*world).size();
  };
  const std::size_t kept = count(true), lost = count(false);
  EXPECT_GT(kept, 20U);
  EXPECT_GT(lost, 0U);
  EXPECT_LT(lost, 12U) << "each costs prefill time";
}

TEST(Moves, ARankWithoutRoomOrAStrangerIsNoTarget) {
  auto config = small_config();
  config.decode.groups = 1;
  auto world = make_world(1, {}, config);
  world->start();
  world->keep_records(true);
  testing::Ask ask;
  ask.prompt = 300;
  ask.output_limit = 400;
  const RequestId id = world->submit(ask);
  world->run_until(world->loop().now() + Nanos{300'000'000});
  ASSERT_EQ(world->cluster().status().decoding, 1U);
  world->step(Move{id, {EngineId{7}, 0}});
  world->step(Move{RequestId{99}, {EngineId{0}, 1}});
  EXPECT_TRUE(moves_of(*world).empty());
  EXPECT_EQ(world->cluster().status().decoding, 1U);
  for (const std::uint32_t rank : {0U, 1U}) world->step(Move{id, {EngineId{0}, rank}});
  EXPECT_EQ(moves_of(*world).size(), 1U) << "to the other rank, once";
  check(*world, kMinutes);
  EXPECT_EQ(world->outcome(id).tokens, 400);
}

}  // namespace
}  // namespace trimtab::cluster
