// Every small state against references that look at all ranks and follow the published sentences literally.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <optional>
#include <tuple>

#include "policy/decode/policy.h"

namespace trimtab::policy {
namespace {

constexpr std::int64_t kHeadroom = 128;
constexpr DecodeCapacity kCapacity{TokenCount{9'000}, 3, 1000};

struct State {
  std::vector<std::vector<std::int64_t>> ranks;  // KV of the running requests
  std::size_t per_group = 2;
  RankId id(std::size_t rank) const {
    return {model::EngineId{static_cast<std::uint32_t>(rank / per_group)},
            static_cast<std::uint32_t>(rank % per_group)};
  }
  std::int64_t kv(std::size_t rank) const {
    std::int64_t sum = 0;
    for (const std::int64_t tokens : ranks[rank]) sum += tokens;
    return sum;
  }
  std::int64_t running(std::size_t rank) const { return static_cast<std::int64_t>(ranks[rank].size()); }
  bool room(std::size_t rank, std::int64_t tokens) const {
    return running(rank) < kCapacity.max_running &&
           kv(rank) + tokens + kHeadroom * (running(rank) + 1) <= kCapacity.kv.value;
  }
};

using Choice = std::optional<std::size_t>;

/// Among `ranks` that satisfy `fits`: least (running, kv, id), or with `by_kv` least (kv, running, id).
template <class Fits>
Choice best(const State& state, const std::vector<std::size_t>& ranks, bool by_kv, Fits&& fits) {
  Choice choice;
  const auto key = [&](std::size_t rank) {
    return by_kv ? std::tuple(state.kv(rank), state.running(rank), state.id(rank))
                 : std::tuple(state.running(rank), state.kv(rank), state.id(rank));
  };
  for (const std::size_t rank : ranks)
    if (fits(rank) && (!choice || key(rank) < key(*choice))) choice = rank;
  return choice;
}

std::vector<std::size_t> all_of(const State& state) {
  std::vector<std::size_t> all(state.ranks.size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
  return all;
}

Choice naive_waterline(const State& state, std::int64_t tokens) {
  std::int64_t kv = 0, running = 0;
  for (std::size_t rank = 0; rank < state.ranks.size(); ++rank) {
    kv += state.kv(rank);
    running += state.running(rank);
  }
  const std::int64_t mean = (kv + tokens) / static_cast<std::int64_t>(state.ranks.size());
  const std::int64_t slack = running > 0 ? 24 * kv / (10 * running) : 24 * tokens / 10;
  const auto room = [&](std::size_t rank) { return state.room(rank, tokens); };
  const auto under = [&](std::size_t rank) { return room(rank) && state.kv(rank) + tokens <= mean + slack; };
  if (const Choice choice = best(state, all_of(state), false, under)) return choice;
  return best(state, all_of(state), true, room);
}

/// DualPath: "high" = tok + len > Z; fewest seq among the normal, else least tok among the high.
Choice naive_dualpath(const State& state, std::int64_t tokens) {
  std::vector<std::vector<std::size_t>> groups(state.ranks.size() / state.per_group);
  std::vector<std::int64_t> totals(groups.size());
  for (std::size_t rank = 0; rank < state.ranks.size(); ++rank) {
    groups[rank / state.per_group].push_back(rank);
    totals[rank / state.per_group] += state.kv(rank);
  }
  const auto room = [&](std::size_t rank) { return state.room(rank, tokens); };
  Choice group;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (std::none_of(groups[g].begin(), groups[g].end(), room)) continue;
    if (!group || totals[g] < totals[*group]) group = g;
  }
  if (!group) return std::nullopt;
  const auto ranks = static_cast<std::int64_t>(state.per_group);
  const auto high = [&](std::size_t rank) {  // exact: both sides times 100 |E|
    return 100 * ranks * (state.kv(rank) + tokens) > 105 * (totals[*group] + tokens);
  };
  const auto normal = [&](std::size_t rank) { return room(rank) && !high(rank); };
  if (const Choice choice = best(state, groups[*group], false, normal)) return choice;
  return best(state, groups[*group], true, room);
}

Choice naive(std::string_view policy, const State& state, std::int64_t tokens) {
  const auto room = [&](std::size_t rank) { return state.room(rank, tokens); };
  if (policy == "waterline") return naive_waterline(state, tokens);
  if (policy == "dualpath") return naive_dualpath(state, tokens);
  return best(state, all_of(state), policy == "total_tokens", room);
}

std::unique_ptr<DecodePolicy> make(std::string_view name) {
  DecodeConfig config;
  config.policy = name;
  auto made = make_decode_policy(config);
  EXPECT_TRUE(made) << made.error().message;
  return std::move(*made);
}

void check(std::string_view policy, const State& state, std::int64_t tokens) {
  const auto placer = make(policy);
  std::uint64_t next = 1;
  for (std::size_t rank = 0; rank < state.ranks.size(); ++rank) {
    placer->add_rank(state.id(rank), kCapacity);
    for (const std::int64_t length : state.ranks[rank])
      placer->reserve(RequestId{next++}, state.id(rank), TokenCount{length}, Nanos{0});
  }
  const DecodeDecision decision =
      placer->decide({RequestId{next}, TokenCount{tokens}, TokenCount{0}, Nanos{0}}, Nanos{0});
  const Choice expected = naive(policy, state, tokens);
  ASSERT_EQ(decision.rank.has_value(), expected.has_value()) << describe(decision);
  if (expected) {
    ASSERT_EQ(*decision.rank, state.id(*expected)) << policy << ", " << tokens << ": " << describe(decision);
    ASSERT_EQ(decision.reason.winner->kv.value, state.kv(*expected));
    ASSERT_EQ(decision.reason.winner->running, state.running(*expected));
  } else {
    ASSERT_TRUE(decision.hold);
  }
}

/// All multisets of up to three requests of these lengths on one rank.
std::vector<std::vector<std::int64_t>> rank_states(const std::vector<std::int64_t>& lengths) {
  std::vector<std::vector<std::int64_t>> states = {{}};
  for (std::size_t a = 0; a < lengths.size(); ++a) {
    states.push_back({lengths[a]});
    for (std::size_t b = a; b < lengths.size(); ++b) {
      states.push_back({lengths[a], lengths[b]});
      for (std::size_t c = b; c < lengths.size(); ++c) states.push_back({lengths[a], lengths[b], lengths[c]});
    }
  }
  return states;
}

class DecodeChoice : public ::testing::TestWithParam<const char*> {};

TEST_P(DecodeChoice, EveryStateOfThreeRanksOfOneGroup) {
  const auto states = rank_states({100, 1'000, 2'700});
  ASSERT_EQ(states.size(), 20u);
  for (const auto& a : states)
    for (const auto& b : states)
      for (const auto& c : states)
        for (const std::int64_t tokens : {100, 1'000, 6'000}) {
          check(GetParam(), State{{a, b, c}, 3}, tokens);
          if (HasFatalFailure()) return;
        }
}

TEST_P(DecodeChoice, EveryStateOfTwoGroupsOfTwoRanks) {
  const auto states = rank_states({150, 2'700});
  ASSERT_EQ(states.size(), 10u);
  for (std::size_t code = 0; code < 10'000; ++code)
    for (const std::int64_t tokens : {150, 3'000}) {
      check(
          GetParam(),
          State{{states[code % 10], states[code / 10 % 10], states[code / 100 % 10], states[code / 1000]}, 2},
          tokens);
      if (HasFatalFailure()) return;
    }
}

/// Lengths at which a rank comes to lie exactly on the line, or one token beside it: kv + t = Z(t), solved
/// for t.
std::vector<std::int64_t> lengths_at_the_line(std::string_view policy, const State& state) {
  double kv = 0, running = 0;
  for (std::size_t rank = 0; rank < state.ranks.size(); ++rank) {
    kv += static_cast<double>(state.kv(rank));
    running += static_cast<double>(state.running(rank));
  }
  const auto n = static_cast<double>(state.ranks.size());
  const double factor = policy == "dualpath" ? 1.05 : 1.0;
  const double slack = policy == "dualpath" || running == 0 ? 0 : 2.4 * kv / running;
  std::vector<std::int64_t> lengths;
  for (std::size_t rank = 0; rank < state.ranks.size(); ++rank) {
    const double own = static_cast<double>(state.kv(rank));
    const auto exact = static_cast<std::int64_t>((factor * kv / n + slack - own) / (1 - factor / n));
    for (std::int64_t tokens = exact - 2; tokens <= exact + 2; ++tokens)
      if (tokens > 0 && tokens + kHeadroom <= kCapacity.kv.value) lengths.push_back(tokens);
  }
  return lengths;
}

TEST_P(DecodeChoice, LengthsThatLieOnTheLineItself) {
  const auto states = rank_states({100, 1'000, 2'700});
  for (const auto& a : states)
    for (const auto& b : states)
      for (const auto& c : states) {
        const State state{{a, b, c}, 3};
        for (const std::int64_t tokens : lengths_at_the_line(GetParam(), state)) {
          check(GetParam(), state, tokens);
          if (HasFatalFailure()) return;
        }
      }
}

INSTANTIATE_TEST_SUITE_P(Policies, DecodeChoice,
                         ::testing::Values("waterline", "dualpath", "total_requests", "total_tokens"),
                         [](const auto& policy) { return std::string(policy.param); });

}  // namespace
}  // namespace trimtab::policy
