#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/prng.h"
#include "config/profile.h"
#include "policy/eviction/odds.h"
#include "policy/eviction/policies.h"
#include "policy/eviction/replay.h"

namespace trimtab::eviction {
namespace {

std::unique_ptr<Policy> make(std::string_view name, std::int64_t capacity = 100) {
  Settings settings;
  settings.capacity_blocks = capacity;
  return make_policy(name, settings).value();
}

Block block_of(std::uint64_t key, Slot parent = kNoSlot, std::uint32_t position = 0) {
  Block block;
  block.key = key;
  block.parent = parent;
  block.position = position;
  return block;
}

Access at(std::int64_t seconds) { return {Nanos{seconds * 1'000'000'000}, 0, 0}; }

class EveryPolicy : public ::testing::TestWithParam<std::string_view> {};
INSTANTIATE_TEST_SUITE_P(Eviction, EveryPolicy,
                         ::testing::ValuesIn(policy_names().begin(), policy_names().end()),
                         [](const auto& each) { return std::string(each.param); });

TEST_P(EveryPolicy, DropsAChainFromItsEndInOnePass) {
  const auto policy = make(GetParam());
  for (Slot i = 0; i < 20; ++i) policy->stored(i, block_of(i, i == 0 ? kNoSlot : i - 1, i), at(1));
  std::vector<Slot> expected;
  for (Slot i = 20; i-- > 5;) expected.push_back(i);
  EXPECT_EQ(policy->victims(Bytes{15}, at(2).now), expected);
  EXPECT_EQ(policy->count(), 5U);
}

TEST_P(EveryPolicy, ABlockHangsBehindTheOneBeforeItAlsoWhenThatComesLater) {
  const auto policy = make(GetParam());
  Block second;
  second.key = 8;
  second.parent_key = 7;
  policy->stored(1, second, at(1));
  policy->stored(0, block_of(7), at(2));
  policy->pin(1);
  EXPECT_TRUE(policy->victims(Bytes{2}, at(3).now).empty());
  policy->unpin(1);
  EXPECT_EQ(policy->victims(Bytes{2}, at(3).now), (std::vector<Slot>{1, 0}));
}

TEST_P(EveryPolicy, WhatHasExpiredGoesFirstWithWhatHangsBehindIt) {
  const auto policy = make(GetParam());
  policy->stored(0, block_of(1), at(1));
  Block brief = block_of(2);
  brief.expires = at(10).now;
  policy->stored(1, brief, at(2));
  policy->stored(2, block_of(3, 1, 1), at(3));
  policy->used(1, at(9));
  policy->used(2, at(9));
  EXPECT_EQ(policy->victims(Bytes{2}, at(10).now), (std::vector<Slot>{2, 1}));
}

TEST_P(EveryPolicy, WhoIsReadStaysAndFewerGoThanWereAsked) {
  const auto policy = make(GetParam());
  policy->stored(0, block_of(1), at(1));
  policy->stored(1, block_of(2, 0, 1), at(1));
  policy->stored(2, block_of(3), at(1));
  policy->pin(1);
  policy->pin(1);
  EXPECT_EQ(policy->victims(Bytes{3}, at(2).now), std::vector<Slot>{2});
  policy->unpin(1);
  EXPECT_TRUE(policy->victims(Bytes{3}, at(2).now).empty()) << "it is read twice";
  policy->unpin(1);
  EXPECT_EQ(policy->victims(Bytes{3}, at(2).now), (std::vector<Slot>{1, 0}));
}

TEST_P(EveryPolicy, TheOnlyOneWhoCanGoIsFoundHoweverOftenItWasUsed) {
  const auto policy = make(GetParam(), 8);
  for (Slot i = 0; i < 20; ++i) {
    policy->stored(i, block_of(i), at(1));
    policy->used(i, at(1));
    policy->pin(i);
  }
  EXPECT_TRUE(policy->victims(Bytes{1}, at(2).now).empty());
  policy->unpin(7);
  for (std::int64_t i = 3; i < 7; ++i) policy->used(7, at(i));
  EXPECT_EQ(policy->victims(Bytes{1}, at(8).now), std::vector<Slot>{7});
}

TEST_P(EveryPolicy, TheSameCallsGiveTheSameVictims) {
  const auto run = [&] {
    const auto policy = make(GetParam(), 50);
    base::Prng prng(11);
    std::vector<Slot> free, all;
    for (Slot i = 60; i-- > 0;) free.push_back(i);
    for (std::int64_t i = 0; i < 3'000; ++i) {
      policy->stored(free.back(), block_of(prng.below(200)), at(i));
      free.pop_back();
      if (free.size() > 9) continue;
      for (const Slot slot : policy->victims(Bytes{1}, at(i).now)) {
        free.push_back(slot);
        all.push_back(slot);
      }
    }
    return all;
  };
  EXPECT_EQ(run(), run());
}

TEST(Eviction, UnknownNamesOfferTheNearest) {
  EXPECT_THAT(make_policy("hit_densty", {}).error().message, ::testing::HasSubstr("\"hit_density\""));
  Settings none;
  none.capacity_blocks = 0;
  EXPECT_THAT(make_policy("lru", none).error().message, ::testing::HasSubstr("0 blocks"));
}

/// Conversations of four turns a minute apart, among prompts that nobody continues; the latter are longer, by
/// which they can be told. Blocks hit of those that conversations ask for again.
double share_of_turns_hit(std::string_view name) {
  constexpr std::int64_t kCapacity = 150;
  const auto policy = make(name, kCapacity);
  std::vector<Slot> slot_of(1'000'000, kNoSlot), free;
  std::vector<std::uint64_t> key_of;
  std::int64_t hits = 0, asked = 0;
  const auto request = [&](std::uint64_t first, std::uint32_t known, std::uint32_t blocks, std::int64_t now) {
    const Access access{at(now).now, blocks, known};
    Slot before = kNoSlot;
    for (std::uint32_t i = 0; i < blocks; ++i) {
      Slot& slot = slot_of[first + i];
      if (slot != kNoSlot) {
        policy->used(slot, access);
      } else {
        slot = static_cast<Slot>(key_of.size());
        if (free.empty()) {
          key_of.push_back(0);
        } else {
          slot = free.back();
          free.pop_back();
        }
        key_of[slot] = first + i;
        policy->stored(slot, block_of(first + i, before, i), access);
      }
      before = slot;
    }
    if (policy->count() <= kCapacity) return;
    for (const Slot gone :
         policy->victims(Bytes{static_cast<std::int64_t>(policy->count()) - kCapacity}, access.now)) {
      slot_of[key_of[gone]] = kNoSlot;
      free.push_back(gone);
    }
  };
  for (std::int64_t step = 0; step < 2'000; ++step) {
    const std::int64_t now = step * 10;
    for (std::int64_t turn = 0; turn < 4; ++turn) {
      const std::int64_t began = step - turn * 6;
      if (began < 0) continue;
      const std::uint64_t first = static_cast<std::uint64_t>(began) * 100;
      const auto known = static_cast<std::uint32_t>(turn == 0 ? 0 : 3 + turn);
      for (std::uint32_t i = 0; i < known && step > 500; ++i, ++asked) {
        if (slot_of[first + i] == kNoSlot) {
          asked += known - i;
          break;
        }
        ++hits;
      }
      request(first, known, static_cast<std::uint32_t>(4 + turn), now);
    }
    request(500'000 + static_cast<std::uint64_t>(step) * 100, 0, 30, now);
  }
  return static_cast<double>(hits) / static_cast<double>(asked);
}

TEST(HitDensity, LearnsWhoComesBack) {
  const double lru = share_of_turns_hit("lru"), ours = share_of_turns_hit("hit_density");
  EXPECT_LT(lru, 0.75);
  EXPECT_GT(ours, 0.95);
}

/// Prompts of ten blocks; those with brief answers are asked again a minute later, those with long ones
/// never.
double share_hit_by_answers(bool told) {
  constexpr std::int64_t kCapacity = 120;
  const auto policy = make("hit_density", kCapacity);
  std::vector<Slot> slot_of(100'000, kNoSlot), free;
  std::vector<std::uint64_t> key_of(400);
  for (Slot slot = 400; slot-- > 0;) free.push_back(slot);
  std::int64_t hits = 0, asked = 0;
  const auto request = [&](std::uint64_t conversation, bool again, std::int64_t now) {
    const Access access{at(now).now, 11, again ? 10U : 0U};
    Slot before = kNoSlot;
    for (std::uint32_t i = 0; i < 10; ++i) {
      Slot& slot = slot_of[conversation * 10 + i];
      if (again && now > 10'000) {
        ++asked;
        hits += slot == kNoSlot ? 0 : 1;
      }
      if (slot != kNoSlot) {
        policy->used(slot, access);
      } else {
        slot = free.back();
        free.pop_back();
        key_of[slot] = conversation * 10 + i;
        policy->stored(slot, block_of(key_of[slot] + 1, before, i), access);
      }
      before = slot;
    }
    const auto more = static_cast<std::int64_t>(policy->count()) - kCapacity;
    if (more <= 0) return;
    for (const Slot gone : policy->victims(Bytes{more}, access.now)) {
      slot_of[key_of[gone]] = kNoSlot;
      free.push_back(gone);
    }
  };
  for (std::int64_t step = 0; step < 5'000; ++step) {
    const std::int64_t now = step * 4;
    const auto conversation = static_cast<std::uint64_t>(step);
    const bool brief = base::mix(5, conversation) % 3 == 0;
    request(conversation, false, now);
    if (told) {
      const Slot last = slot_of[conversation * 10 + 9];
      if (last != kNoSlot) policy->answered(last, at(now).now, brief ? 20 : 600, at(now + 2).now);
    }
    if (step >= 15 && base::mix(5, conversation - 15) % 3 == 0) request(conversation - 15, true, now + 3);
  }
  return static_cast<double>(hits) / static_cast<double>(asked);
}

TEST(HitDensity, TheLengthOfAnAnswerTells) {
  EXPECT_LT(share_hit_by_answers(false), 0.8);
  EXPECT_GT(share_hit_by_answers(true), 0.9);
}

TEST(HitDensity, AnAnswerThatComesLateSaysNothingOfTheNextRequest) {
  const auto run = [](bool late) {
    const auto policy = make("hit_density", 10);
    policy->stored(0, block_of(1), {at(1).now, 2, 0});
    policy->used(0, {at(9).now, 2, 1});
    if (late) policy->answered(0, at(1).now, 500, at(10).now);
    policy->stored(1, block_of(2), {at(12).now, 2, 0});
    return policy->victims(Bytes{2}, at(20).now);
  };
  EXPECT_EQ(run(true), run(false));
}

/// The oldest are always asked next, and nobody can be told from another: there is nothing to gain on LRU.
TEST(HitDensity, FollowsLruWhileItHasNoLead) {
  const auto lru = make("lru", 50), ours = make("hit_density", 50);
  base::Prng prng(4);
  std::vector<Slot> free;
  for (Slot i = 60; i-- > 0;) free.push_back(i);
  for (std::int64_t i = 0; i < 5'000; ++i) {
    const Slot slot = free.back();
    free.pop_back();
    const Block block = block_of(static_cast<std::uint64_t>(i) + 1);
    lru->stored(slot, block, {at(i).now, 2, 0});
    ours->stored(slot, block, {at(i).now, 2, 0});
    if (free.size() > 9) continue;
    const auto gone = lru->victims(Bytes{1}, at(i).now);
    ASSERT_EQ(ours->victims(Bytes{1}, at(i).now), gone);
    free.push_back(gone.front());
  }
}

TEST(Odds, LearnsWhichRunsComeBackAndWhen) {
  Odds::Settings settings;
  settings.rows = 4;
  Odds odds(settings);
  Features soon{}, never{};
  soon.fill(1);
  never.fill(2);
  for (std::int64_t i = 0; i < 2'000; ++i) {
    const auto key = static_cast<std::uint64_t>(i);
    odds.begin(2 * key, soon, at(10 * i).now);
    odds.begin(2 * key + 1, never, at(10 * i).now);
    if (i >= 6) odds.used(2 * (key - 6), at(10 * i).now);
  }
  EXPECT_GT(odds.index(soon)[0], 20 * odds.index(never)[0]);
  EXPECT_GT(odds.index(never)[0], odds.index(never)[age_bucket(at(1'000).now)]);
}

TEST(Prompts, AgentsOfOneConversationStartWithIt) {
  model::Trace trace;
  trace.closed_loop = true;
  trace.conversations = 3;
  const auto add = [&](std::uint32_t loop, std::int64_t seconds, std::uint64_t space) {
    model::TraceRequest request;
    request.arrival = at(seconds).now;
    request.conversation = loop;
    request.output_tokens = 100;
    request.runs_begin = static_cast<std::uint32_t>(trace.runs.size());
    request.runs_count = 1;
    trace.runs.push_back({space << 32U, 2});
    trace.requests.push_back(request);
  };
  add(0, 0, 1);
  add(1, 5, 1);  // an agent of the first conversation
  add(2, 0, 2);
  const Prompts prompts(trace, at(100).now);
  ASSERT_EQ(prompts.prompts().size(), 3U);
  EXPECT_EQ(prompts.prompts()[0].at, at(0).now);
  EXPECT_EQ(prompts.prompts()[1].at, at(5).now);
  EXPECT_EQ(prompts.prompts()[2].at, at(50).now) << "two conversations over 100 s";
  EXPECT_EQ(prompts.prompts()[0].answered, kAnswerBegins + kAnswerPerToken * 100);
  EXPECT_EQ(prompts.unique(), 4U);
}

TEST(HitDensity, OfEqualChancesTheDearerBlockStays) {
  const auto profile = config::load_profile("deepseek-v4.1-flash", "profiles");
  ASSERT_TRUE(profile.has_value());
  const policy::CostModel cost(*profile);
  Settings settings;
  settings.cost = &cost;
  const auto policy = make_policy("hit_density", settings).value();
  policy->stored(0, block_of(1, kNoSlot, 0), at(1));
  policy->stored(1, block_of(2, kNoSlot, 7'000), at(1));
  policy->stored(2, block_of(3, kNoSlot, 2'000), at(1));
  EXPECT_EQ(policy->victims(Bytes{2}, at(2).now), (std::vector<Slot>{0, 2}));
}

/// Both orders hit the same, which is no lead: with one to wait for LRU decides, without one the cost.
TEST(HitDensity, WithoutALeadToWaitForItsOwnOrderDecides) {
  const auto profile = config::load_profile("deepseek-v4.1-flash", "profiles");
  ASSERT_TRUE(profile.has_value());
  const policy::CostModel cost(*profile);
  const auto victims = [&](double lead) {
    Settings settings;
    settings.cost = &cost;
    settings.lead = lead;
    const auto policy = make_policy("hit_density", settings).value();
    policy->stored(0, block_of(1, kNoSlot, 0), at(1));
    policy->stored(1, block_of(2, kNoSlot, 7'000), at(1));
    policy->stored(2, block_of(3, kNoSlot, 2'000), at(1));
    for (const Slot slot : {2U, 1U, 0U}) policy->used(slot, at(2));
    return policy->victims(Bytes{2}, at(3).now);
  };
  EXPECT_EQ(victims(1.02), (std::vector<Slot>{2, 1}));
  EXPECT_THAT(victims(0), testing::UnorderedElementsAre(0, 2));
}

}  // namespace
}  // namespace trimtab::eviction
