#pragma once

// Days in the life of the virtual cluster, and what must hold at their end.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>

#include "cluster/testing/virtual_world.h"

namespace trimtab::cluster::testing {

inline model::Profile small_profile() {
  model::Profile profile;
  profile.name = "test";
  profile.context_limit = TokenCount{8'192};
  profile.cost = model::QuadraticCost{1'000'000, 1'000'000, 5'000};  // 1 ms, 1 us a token, 5 ns a pair
  return profile;
}

inline model::ClusterConfig small_config() {
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

inline Ask random_ask(base::Prng& prng) {
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
inline constexpr std::uint64_t kRequests = 1'000, kSeeds = 1;
#else
inline constexpr std::uint64_t kRequests = 3'000, kSeeds = 6;
#endif

struct Chaos {
  std::uint64_t requests = kRequests;
  double mean_gap_us = 8'000, patience_ms = 120;
  std::uint64_t cancel_one_in = 8;
  std::uint64_t faults = 0;  // lost ranks, lost encoders and silent engines, spread over the run
};

/// Schedules the clients and the faults of a run.
inline void script(World& world, base::Prng& prng, const Chaos& chaos) {
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

struct Tally {
  std::uint64_t finished = 0, failed = 0, cancelled = 0;
  std::int64_t tokens = 0;
};

inline void expect_nothing_left(World& world) {
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
inline void expect_whole(RequestId id, const Ask& ask, const Outcome& outcome, std::int64_t kv_tokens) {
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

inline Tally check(World& world, Nanos within) {
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

}  // namespace trimtab::cluster::testing
