// The queue's side: windows that overtake within a bound, ceilings that hold within a bound, DualPath's
// private queues, other engines' names.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>

#include "base/prng.h"
#include "policy/decode/policy.h"

namespace trimtab::policy {
namespace {

constexpr RankId rank_id(std::uint32_t n) { return {model::EngineId{0}, n}; }

std::unique_ptr<DecodePolicy> make(DecodeConfig config, std::uint32_t ranks, DecodeCapacity capacity) {
  auto made = make_decode_policy(config);
  EXPECT_TRUE(made) << made.error().message;
  for (std::uint32_t n = 0; n < ranks; ++n) (*made)->add_rank(rank_id(n), capacity);
  return std::move(*made);
}

/// A closed loop over few ranks in which every step is checked.
struct Bounds {
  std::int64_t overtaken = 0, held_steps = 0;
};
Bounds play(DecodeConfig config, std::uint64_t seed) {
  constexpr std::int64_t kPlaces = 8 * 8, kStepNs = 33'000'000;
  const auto placer = make(config, 8, {TokenCount{1 << 24}, 32, 1000});
  base::Prng prng(seed);
  std::vector<DecodeRequest> queue;
  std::vector<std::pair<RequestId, std::int64_t>> running;  // tokens left
  std::uint64_t next = 1;
  std::optional<Nanos> held_since;
  Bounds bounds;
  for (std::int64_t step = 0; step < 400; ++step) {
    const Nanos now{step * kStepNs};
    while (static_cast<std::int64_t>(running.size()) < kPlaces) {
      while (queue.size() < 40) {
        const auto tokens = static_cast<std::int64_t>(200 + prng.below(prng.below(8) == 0 ? 30'000 : 3'000));
        queue.push_back({RequestId{next++}, TokenCount{tokens}, TokenCount{0}, now});
      }
      for (DecodeRequest& request : queue) {
        request.queued = kPlaces - static_cast<std::int64_t>(running.size()) - 1;
        request.queued_tokens = TokenCount{request.queued * 2'000};
      }
      if (!held_since) queue.front().waiting_since = now;
      const DecodePick pick = placer->decide_next(queue, now);
      if (!pick.decision.rank) {
        RC_ASSERT(pick.index == 0u && pick.decision.hold);
        if (!held_since) held_since = now;
        bounds.held_steps = std::max(bounds.held_steps, (now - *held_since).value / kStepNs + 1);
        break;
      }
      RC_ASSERT(pick.index < static_cast<std::size_t>(config.window));
      if (pick.index == 0) held_since.reset();
      const DecodeRequest chosen = queue[pick.index];
      for (std::size_t i = 0; i < pick.index; ++i)
        bounds.overtaken = std::max(bounds.overtaken, ++queue[i].overtaken);
      queue.erase(queue.begin() + static_cast<std::ptrdiff_t>(pick.index));
      placer->admitted(chosen.id, *pick.decision.rank, chosen.tokens, now);
      running.emplace_back(chosen.id, 1 + static_cast<std::int64_t>(prng.below(60)));
    }
    for (std::size_t i = 0; i < running.size();) {
      placer->grew(running[i].first, 1, now);
      if (--running[i].second > 0) {
        ++i;
        continue;
      }
      placer->ended(running[i].first, now);
      running[i] = running.back();
      running.pop_back();
    }
  }
  return bounds;
}

RC_GTEST_PROP(DecodeQueue, NobodyIsOvertakenOrHeldWithoutEnd, (std::uint64_t seed)) {
  for (const std::string_view name : decode_policy_names()) {
    DecodeConfig config;
    config.policy = name;
    config.window = 1 + static_cast<std::int64_t>(seed % 9);
    config.hold_max = Nanos{10 * 33'000'000};
    config.ceiling_permille = name == "waterline" ? 0 : 1'000;
    const Bounds bounds = play(config, seed);
    RC_ASSERT(bounds.overtaken <= 4 * config.window);
    RC_ASSERT(bounds.held_steps <= 10);
    if (config.window == 1) RC_ASSERT(bounds.overtaken == 0);
  }
}

/// Four ranks with three requests each; a fourth place of one is empty, a fifth request waits.
TEST(DecodeHold, ThePlaceThatIsNotTheTallestIsWorthTheWait) {
  DecodeConfig config;
  config.policy = "waterline_hold";
  config.hold_from_running = 3;
  const auto placer = make(config, 4, {TokenCount{1'000'000}, 32, 1000});
  std::uint64_t id = 1;
  for (std::uint32_t rank = 0; rank < 4; ++rank)
    for (int i = 0; i < (rank == 0 ? 3 : 4); ++i)
      placer->admitted(RequestId{id++}, rank_id(rank), TokenCount{rank == 0 ? 10'000 : 4'000}, Nanos{0});
  // Demand 16: four per rank. Only rank 0 has a place, but its KV is nearly twice the mean already.
  DecodeRequest request{RequestId{99}, TokenCount{12'000}, TokenCount{0}, Nanos{0}};
  const DecodeDecision held = placer->decide(request, Nanos{10});
  EXPECT_FALSE(held.rank);
  EXPECT_TRUE(held.hold);
  EXPECT_EQ(held.reason.rule, DecodeRule::kHeldByCeiling);
  EXPECT_GT(held.reason.ceiling.value, 0);
  // It is asked again after an end elsewhere, and finds a place.
  placer->ended(RequestId{4}, Nanos{20});
  const DecodeDecision after = placer->decide(request, Nanos{30});
  ASSERT_TRUE(after.rank);
  EXPECT_EQ(*after.rank, rank_id(1));
  // Without one, it goes after hold_max all the same.
  placer->admitted(RequestId{98}, rank_id(1), TokenCount{4'000}, Nanos{40});
  EXPECT_FALSE(placer->decide(request, config.hold_max - Nanos{1}).rank);
  EXPECT_TRUE(placer->decide(request, config.hold_max).rank);
}

TEST(DecodeHold, CountsStopAtTheShareOfTheDemandRoundedUpToTheGraphSize) {
  for (const std::int64_t graph_step : {1, 8}) {
    DecodeConfig config;
    config.policy = "waterline_hold";
    config.hold_from_running = 1;
    config.graph_step = graph_step;
    const auto placer = make(config, 2, {TokenCount{1'000'000}, 32, 1000});
    // Rank 0 runs five short ones, rank 1 four long ones: the KV says rank 0, the count says no.
    std::uint64_t id = 1;
    for (int i = 0; i < 5; ++i) placer->admitted(RequestId{id++}, rank_id(0), TokenCount{100}, Nanos{0});
    for (int i = 0; i < 4; ++i) placer->admitted(RequestId{id++}, rank_id(1), TokenCount{5'000}, Nanos{0});
    const DecodeDecision decision =
        placer->decide({RequestId{99}, TokenCount{4'000}, TokenCount{0}, Nanos{0}}, Nanos{1});
    if (graph_step == 1) {
      EXPECT_FALSE(decision.rank);
      EXPECT_EQ(decision.reason.rule, DecodeRule::kHeldByCount);
    } else {
      ASSERT_TRUE(decision.rank);  // a sixth request in a graph of eight costs nothing
      EXPECT_EQ(*decision.rank, rank_id(0));
    }
  }
}

TEST(DecodeHold, AGroupThatIsNotFullHoldsNobody) {
  DecodeConfig config;
  config.policy = "waterline_hold";
  const auto placer = make(config, 2, {TokenCount{1'000'000}, 32, 1000});
  for (std::uint64_t id = 1; id < 14; ++id) {
    const DecodeDecision decision = placer->decide(
        {RequestId{id}, TokenCount{500 * static_cast<std::int64_t>(id)}, TokenCount{0}, Nanos{0}}, Nanos{0});
    ASSERT_TRUE(decision.rank) << describe(decision);
    placer->admitted(RequestId{id}, *decision.rank, TokenCount{500 * static_cast<std::int64_t>(id)},
                     Nanos{0});
  }
}

/// DualPath's two phases, sentence by sentence, over every queue of three requests and every small state.
TEST(DualPathQueues, FollowThePublishedTwoPhases) {
  constexpr std::int64_t kCapacity = 9'000, kHeadroom = 128;
  const std::vector<std::int64_t> lengths = {100, 1'000, 3'000};
  const auto id_of = [](std::size_t rank) {
    return RankId{model::EngineId{static_cast<std::uint32_t>(rank / 2)},
                  static_cast<std::uint32_t>(rank % 2)};
  };
  for (std::size_t code = 0; code < 81 * 27; ++code) {
    DecodeConfig config;
    config.policy = "dualpath_queues";
    config.window = 3;
    const auto placer = std::move(*make_decode_policy(config));
    std::vector<std::int64_t> kv(4), running(4);
    std::uint64_t next = 1;
    std::size_t rest = code;
    for (std::size_t rank = 0; rank < 4; ++rank, rest /= 3) {
      placer->add_rank(id_of(rank), {TokenCount{kCapacity}, 3, 1000});
      for (std::size_t i = 0; i <= rest % 3; ++i) {
        const std::int64_t tokens = lengths[(rank + i) % 3];
        placer->reserve(RequestId{next++}, id_of(rank), TokenCount{tokens}, Nanos{0});
        kv[rank] += tokens;
        running[rank] += 1;
      }
    }
    std::vector<DecodeRequest> queue;
    for (int i = 0; i < 3; ++i, rest /= 3)
      queue.push_back({RequestId{next++}, TokenCount{lengths[rest % 3]}, TokenCount{0}, Nanos{0}});

    // Phase 1.
    std::int64_t totals[2] = {kv[0] + kv[1], kv[2] + kv[3]};
    std::vector<std::size_t> private_queues[2];
    for (std::size_t i = 0; i < 3; ++i) {
      const std::size_t group = totals[1] < totals[0] ? 1 : 0;
      private_queues[group].push_back(i);
      totals[group] += queue[i].tokens.value;
    }
    // Phase 2, the first group that places its head.
    std::optional<std::pair<std::size_t, std::size_t>> expected;
    for (std::size_t group = 0; group < 2 && !expected; ++group) {
      if (private_queues[group].empty()) continue;
      const std::size_t a = 2 * group;
      const std::int64_t loaded = kv[a] + kv[a + 1];
      std::int64_t prefix = 0;
      for (const std::size_t i : private_queues[group]) {
        if (prefix + queue[i].tokens.value > 2 * kCapacity - loaded) break;
        prefix += queue[i].tokens.value;
      }
      const std::size_t head = private_queues[group].front();
      const std::int64_t tokens = queue[head].tokens.value;
      prefix = std::max(prefix, tokens);
      std::optional<std::tuple<bool, std::int64_t, std::int64_t, std::size_t>> best;
      for (const std::size_t rank : {a, a + 1}) {
        if (running[rank] >= 3 || kv[rank] + tokens + kHeadroom * (running[rank] + 1) > kCapacity) continue;
        const bool high = 200 * (kv[rank] + tokens) > 105 * (prefix + loaded);
        const auto key = high ? std::tuple(true, kv[rank], running[rank], rank)
                              : std::tuple(false, running[rank], kv[rank], rank);
        if (!best || key < *best) best = key;
      }
      if (best) expected = {head, std::get<3>(*best)};
    }
    const DecodePick pick = placer->decide_next(queue, Nanos{0});
    ASSERT_EQ(pick.decision.rank.has_value(), expected.has_value()) << code;
    if (!expected) continue;
    ASSERT_EQ(pick.index, expected->first) << code;
    ASSERT_EQ(*pick.decision.rank, id_of(expected->second)) << code << ' ' << describe(pick.decision);
  }
}

TEST(DualPathQueues, ARequestWaitsForItsGroupThoughAnotherHasRoom) {
  DecodeConfig config;
  config.policy = "dualpath_queues";
  const auto placer = std::move(*make_decode_policy(config));
  const RankId small{model::EngineId{0}, 0}, large{model::EngineId{1}, 0};
  placer->add_rank(small, {TokenCount{9'000}, 1, 1000});
  placer->add_rank(large, {TokenCount{9'000}, 8, 1000});
  placer->reserve(RequestId{1}, small, TokenCount{100}, Nanos{0});
  placer->reserve(RequestId{2}, large, TokenCount{500}, Nanos{0});
  const DecodeRequest request{RequestId{3}, TokenCount{200}, TokenCount{0}, Nanos{0}};
  const DecodeDecision held = placer->decide(request, Nanos{0});
  EXPECT_TRUE(held.hold);
  EXPECT_EQ(held.reason.rule, DecodeRule::kHeldInGroup);
  // Its group is the heavier one by now; it stays all the same.
  placer->grew(RequestId{1}, 1'000, Nanos{1});
  EXPECT_EQ(placer->decide(request, Nanos{1}).reason.rule, DecodeRule::kHeldInGroup);
  placer->ended(RequestId{1}, Nanos{2});
  EXPECT_EQ(placer->decide(request, Nanos{2}).rank, small);
}

TEST(DecodeNames, OtherEnginesNamesAreTheSamePolicies) {
  for (const auto& [alias, name] : decode_policy_aliases()) {
    EXPECT_NE(std::find(decode_policy_names().begin(), decode_policy_names().end(), name),
              decode_policy_names().end());
    EXPECT_EQ(std::find(decode_policy_names().begin(), decode_policy_names().end(), alias),
              decode_policy_names().end());
    DecodeConfig by_alias, by_name;
    by_alias.policy = alias;
    by_name.policy = name;
    const auto first = make(by_alias, 4, {TokenCount{1'000'000}, 32, 1000});
    const auto second = make(by_name, 4, {TokenCount{1'000'000}, 32, 1000});
    base::Prng prng(7);
    for (std::uint64_t id = 1; id < 60; ++id) {
      const DecodeRequest request{RequestId{id}, TokenCount{static_cast<std::int64_t>(1 + prng.below(9'000))},
                                  TokenCount{0}, Nanos{0}};
      const DecodeDecision a = first->decide(request, Nanos{0}), b = second->decide(request, Nanos{0});
      ASSERT_EQ(describe(a), describe(b));
      for (const auto& placer : {first.get(), second.get()})
        placer->reserve(request.id, *a.rank, request.tokens, Nanos{0});
    }
  }
}

TEST(DecodeNames, ValuesOutOfRangeAreNamed) {
  const auto refused = [](auto&& change) {
    DecodeConfig config;
    change(config);
    const auto made = make_decode_policy(config);
    return made ? std::string() : made.error().message;
  };
  EXPECT_EQ(refused([](DecodeConfig&) {}), "");
  EXPECT_EQ(refused([](DecodeConfig& c) { c.window = 0; }), "window is 0; it must be from 1 to 4096");
  EXPECT_EQ(refused([](DecodeConfig& c) { c.graph_step = 0; }),
            "graph_step is 0; it must be from 1 to 65535");
  EXPECT_EQ(refused([](DecodeConfig& c) { c.horizon_tokens = 65; }),
            "horizon_tokens is 65; it must be from 0 to 64");
  EXPECT_EQ(refused([](DecodeConfig& c) { c.placers = 4, c.placer = 4; }),
            "placer is 4; it must be from 0 to 3");
  EXPECT_EQ(refused([](DecodeConfig& c) { c.lease_period = Nanos{0}; }).substr(0, 22),
            "lease_period (ns) is 0");
  EXPECT_EQ(refused([](DecodeConfig& c) { c.moves_permille = -1; }).substr(0, 20), "moves_permille is -1");
  EXPECT_NE(refused([](DecodeConfig& c) { c.policy = "waterline_hazrd"; }).find("\"waterline_hazard\"?"),
            std::string::npos);
}

/// Nothing may pile up on one rank while a fleet fills from empty, whatever the policy: the pitfall of a
/// clipped potential (request study, 1.6).
TEST(DecodeRamp, EveryPolicyFillsAnEmptyFleetEvenly) {
  for (const std::string_view name : decode_policy_names()) {
    for (const std::uint32_t ranks : {1u, 5u, 144u}) {
      DecodeConfig config;
      config.policy = name;
      const auto placer = make(config, ranks, {TokenCount{1 << 24}, 64, 1000});
      base::Prng prng(11);
      std::int64_t longest = 0;
      for (std::uint64_t id = 1; id <= std::uint64_t{ranks} * 16; ++id) {
        const auto tokens = static_cast<std::int64_t>(500 + prng.below(prng.below(10) == 0 ? 60'000 : 9'000));
        longest = std::max(longest, tokens);
        const DecodeDecision decision = placer->decide(
            {RequestId{id}, TokenCount{tokens}, TokenCount{0}, Nanos{-10'000'000'000}}, Nanos{0});
        ASSERT_TRUE(decision.rank) << name;
        placer->admitted(RequestId{id}, *decision.rank, TokenCount{tokens}, Nanos{0});
        // At every moment of the way up.
        std::int64_t kv_max = 0, running_max = 0;
        for (const RankId rank : placer->ledger().open_ranks()) {
          kv_max = std::max(kv_max, placer->ledger().load(rank).kv.value);
          running_max = std::max(running_max, placer->ledger().load(rank).running);
        }
        const auto& totals = placer->ledger().totals();
        ASSERT_LE(running_max, 3 * totals.running / totals.ranks + 3) << name << ", request " << id;
        ASSERT_LE(kv_max, 3 * totals.kv / totals.ranks + 2 * longest) << name << ", request " << id;
      }
    }
  }
}

}  // namespace
}  // namespace trimtab::policy
