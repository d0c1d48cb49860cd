// Blocks that are stored late, as in a pool: prompts are computed for seconds, and others come meanwhile.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/hash.h"
#include "model/trace.h"
#include "policy/eviction/policies.h"
#include "policy/eviction/replay.h"
#include "policy/eviction/shadow.h"

namespace trimtab::eviction {
namespace {

Nanos at(std::int64_t seconds) { return Nanos{seconds * 1'000'000'000}; }

/// One prompt a second, so that four or more are computed at once: short and long ones; the long ones with
/// brief answers go on after a minute, by two blocks, the others never.
Prompts chats() {
  struct Asked {
    std::int64_t second;
    std::uint64_t chat;
    bool again;
  };
  std::vector<Asked> all;
  for (std::int64_t step = 0; step < 4'000; ++step) {
    const auto chat = static_cast<std::uint64_t>(step);
    all.push_back({step, chat, false});
    if (base::mix(5, chat) % 4 == 0) all.push_back({step + 60, chat, true});
  }
  std::ranges::stable_sort(all, {}, &Asked::second);
  model::Trace trace;
  for (const Asked& one : all) {
    const bool returns = base::mix(5, one.chat) % 4 == 0, long_one = base::mix(5, one.chat) % 2 == 0;
    model::TraceRequest request;
    request.arrival = at(one.second);
    request.output_tokens = returns ? 20 : 600;
    request.runs_begin = static_cast<std::uint32_t>(trace.runs.size());
    request.runs_count = 1;
    trace.runs.push_back({one.chat * 100, (long_one ? 20U : 3U) + (one.again ? 2U : 0U)});
    trace.requests.push_back(request);
  }
  return {trace, Nanos{0}};
}

TEST(Served, WhatIsStoredLateIsForecastAsItsRequestIs) {
  const Prompts prompts = chats();
  constexpr std::uint64_t kRoom = 500;
  Settings settings;
  settings.capacity_blocks = kRoom;
  const auto share = [&](const Telling* telling) {
    const auto policy = make_policy("hit_density", settings).value();
    if (telling == nullptr) return replay(prompts, *policy, kRoom).ratio();
    return replay_served(prompts, *policy, kRoom, *telling).ratio();
  };
  const Telling all{}, no_answers{false, true}, nothing{false, false};
  const double at_once = share(nullptr), served = share(&all), part = share(&no_answers),
               blocks = share(&nothing);
  EXPECT_GT(served, at_once * 0.97);
  EXPECT_GT(served, part * 1.02);
  EXPECT_GT(part, blocks * 1.02);
}

/// In room for few prompts, blocks of those that are hardly worth keeping leave while more of them come.
TEST(Served, PromptsThatComeBlockByBlockTakeNoRoomFromBetterOnes) {
  const Prompts prompts = chats();
  for (const std::uint64_t room : {60U, 100U}) {
    Settings settings;
    settings.capacity_blocks = static_cast<std::int64_t>(room);
    settings.lead = 0;
    const auto policy = make_policy("hit_density", settings).value();
    const auto same = make_policy("hit_density", settings).value();
    EXPECT_GT(replay_served(prompts, *policy, room, {}).ratio(), replay(prompts, *same, room).ratio() * 0.97);
  }
}

/// The order by itself would drop a prompt's end, then the oldest. What is missing may still come.
TEST(Served, WithoutTheBlockBeforeItABlockGoesFirst) {
  Settings settings;
  settings.lead = 0;
  for (const bool comes : {false, true}) {
    const auto policy = make_policy("hit_density", settings).value();
    Block block;
    block.key = 1;
    policy->stored(0, block, {at(1), 1, 0});
    const Access asked{at(100), 3, 0};
    Block second, third, first, other;
    other.key = 2;
    policy->stored(9, other, {at(101), 1, 0});
    second.key = 12;
    second.parent_key = 11;
    second.position = 1;
    policy->stored(2, second, asked);
    third.key = 13;
    third.parent = 2;
    third.position = 2;
    policy->stored(3, third, asked);
    first.key = 11;
    if (comes) policy->stored(1, first, asked);
    EXPECT_EQ(policy->victims(Bytes{2}, at(102)), (std::vector<Slot>{3, comes ? 0U : 2U}));
  }
}

/// What a shadow has behind a block that it has not could not be read.
TEST(Shadow, CountsHitsUpToTheFirstMissingBlock) {
  Shadow shadow(make_lru({}), 10);
  Block first, second;
  first.key = 1;
  second.key = 2;
  second.parent_key = 1;
  second.position = 1;
  shadow.told(second, {at(1), 2, 0}, 1);
  const auto ask = [&](std::int64_t second_of_asking) {
    const Access access{at(second_of_asking), 2, 0};
    shadow.told(first, access, 1);
    shadow.told(second, access, 1);
    return shadow.hits();
  };
  EXPECT_EQ(ask(2), 0);
  EXPECT_EQ(ask(3), 2);
}

/// LRU by the request's time, however late and mixed its blocks come: the end of the prompt that was asked
/// for first goes first.
TEST(Served, LruGoesByTheRequest) {
  const auto policy = make_policy("lru", {}).value();
  Block first, second;
  const Access early{at(1), 2, 0}, later{at(2), 2, 0};
  policy->stored(0, first, early);
  policy->stored(10, first, later);
  second.parent = 10;
  policy->stored(11, second, later);
  second.parent = 0;
  policy->stored(1, second, early);
  EXPECT_EQ(policy->victims(Bytes{4}, at(9)), (std::vector<Slot>{1, 0, 11, 10}));
}

/// A request whose answer is whole before its last block is stored: that one has the answer's forecast too.
TEST(Served, AnAnswerCountsForBlocksThatComeAfterIt) {
  Settings settings;
  settings.lead = 0;
  // Brief answers are followed up, long ones never; all look alike before their answer.
  const auto last_to_stay = [&](std::uint32_t tokens) {
    const auto policy = make_policy("hit_density", settings).value();
    Block block;
    std::int64_t now = 0;
    for (std::uint64_t i = 0; i < 600; ++i, now += 10) {
      const bool brief = i % 2 == 0;
      block.key = i;
      policy->stored(0, block, {at(now), 2, 0});
      policy->answered(0, at(now), brief ? 10 : 900, at(now + 1));
      if (brief) policy->used(0, {at(now + 5), 2, 1});
      policy->erased(0);
    }
    const Access asked{at(now), 2, 0};
    Block one;
    one.key = 7'000;
    policy->stored(0, one, asked);
    one.key = 8'000;
    policy->stored(5, one, {at(now + 1), 2, 0});  // another one, whose answer takes long
    policy->answered(0, asked.now, tokens, at(now + 2));
    policy->erased(0);
    one.key = 7'001;
    policy->stored(1, one, asked);
    return policy->victims(Bytes{1}, at(now + 3)).front();
  };
  EXPECT_EQ(last_to_stay(10), 5U);
  EXPECT_EQ(last_to_stay(900), 1U);
}

}  // namespace
}  // namespace trimtab::eviction
