#include "cluster/pull_agents.h"

#include <gtest/gtest.h>

namespace trimtab::cluster {
namespace {

using model::Role;

class PullAgentsTest : public ::testing::Test {
 protected:
  PullAgentsTest() : agents_(config(), profile()) {
    for (std::uint32_t r = 0; r < 2; ++r) agents_.observe(Event{Joined{prefill(r), 50}});
    pulls();
  }
  static model::ClusterConfig config() {
    model::ClusterConfig config;
    config.prefill.engines = 1;
    config.prefill.ranks = 2;
    config.prefill.step_budget_ms = 10;
    config.prefill.outstanding_steps = 2;
    return config;
  }
  static model::Profile profile() {
    model::Profile profile;
    profile.cost = model::QuadraticCost{0, 0, 2'000'000};  // 2 us a pair: 1,000 tokens = 1 s / 1,000
    return profile;
  }
  static Place prefill(std::uint32_t rank) { return {Role::kPrefill, EngineId{0}, rank}; }
  static RankId rank(std::uint32_t r) { return {EngineId{0}, r}; }
  std::vector<Event> pulls() {
    std::vector<Event> out;
    agents_.take_pulls(out);
    return out;
  }
  Pull one_pull() {
    const std::vector<Event> out = pulls();
    EXPECT_EQ(out.size(), 1U);
    return out.empty() ? Pull{} : std::get<Pull>(out.front());
  }
  PullAgents agents_;
};

TEST_F(PullAgentsTest, AGrantIsOnTheBooksUntilTheRankIsDone) {
  agents_.observe(Action{Grant{RequestId{1}, rank(1), TokenCount{100}, TokenCount{0}, Nanos{10'000'000}, 1}});
  EXPECT_TRUE(pulls().empty()) << "the queue has taken it off the offer already";
  agents_.observe(Event{PrefillDone{rank(1), RequestId{1}, true, {}, {}, model::FinishReason::kNone}});
  const Pull pull = one_pull();
  EXPECT_EQ(pull.ranks[1].quota_left.value, 20'000'000);
  EXPECT_EQ(pull.ranks[1].blocks_free, 50);
  EXPECT_EQ(agents_.accounts(), 0U);
}

TEST_F(PullAgentsTest, ChunksPayBackQuotaButNotBlocks) {
  agents_.observe(Action{Grant{RequestId{1}, rank(0), TokenCount{100}, TokenCount{0}, Nanos{10'000'000}, 1}});
  PrefillStepped step;
  step.from = rank(0);
  step.chunks.push_back({RequestId{1}, TokenCount{60}, TokenCount{0}, Nanos{3'600'000}});
  agents_.observe(Event{step});
  const Pull pull = one_pull();
  // What is left: 40 tokens after 60, 2 us * 40 * (60 + 20).
  EXPECT_EQ(pull.ranks[0].quota_left.value, 20'000'000 - 6'400'000);
  EXPECT_EQ(pull.ranks[0].blocks_free, 49);
  EXPECT_EQ(pull.ranks[1].quota_left.value, 20'000'000);
}

TEST_F(PullAgentsTest, AbortedWorkCountsUntilItIsReleased) {
  agents_.observe(Action{Grant{RequestId{1}, rank(0), TokenCount{100}, TokenCount{0}, Nanos{10'000'000}, 1}});
  agents_.observe(Action{Abort{RequestId{1}, prefill(0)}});
  EXPECT_TRUE(pulls().empty());
  EXPECT_EQ(agents_.accounts(), 1U);
  agents_.observe(Event{Released{prefill(0), RequestId{1}, 50}});
  EXPECT_EQ(one_pull().ranks[0].blocks_free, 50);
}

TEST_F(PullAgentsTest, AReleaseAlwaysAsksAgain) {
  agents_.observe(Event{Released{prefill(0), RequestId{9}, 50}});
  EXPECT_EQ(pulls().size(), 1U) << "the cluster may have turned a pull away to wait for this answer";
}

TEST_F(PullAgentsTest, ARevokedGrantIsForgotten) {
  agents_.observe(Action{Grant{RequestId{1}, rank(0), TokenCount{100}, TokenCount{0}, Nanos{10'000'000}, 1}});
  agents_.observe(Action{Revoke{RequestId{1}, rank(0)}});
  EXPECT_EQ(one_pull().ranks[0].quota_left.value, 20'000'000);
}

TEST_F(PullAgentsTest, ALostRankOffersNothingAndEndsTheWholeEnginesAccounts) {
  agents_.observe(Action{Grant{RequestId{1}, rank(0), TokenCount{100}, TokenCount{0}, Nanos{10'000'000}, 1}});
  agents_.observe(Action{Grant{RequestId{2}, rank(1), TokenCount{100}, TokenCount{0}, Nanos{10'000'000}, 1}});
  agents_.observe(Event{Lost{prefill(1)}});
  EXPECT_EQ(agents_.accounts(), 0U);
  const Pull pull = one_pull();
  EXPECT_EQ(pull.ranks[1].quota_left.value, 0);
  EXPECT_EQ(pull.ranks[1].blocks_free, 0);
  agents_.observe(Event{Joined{prefill(1), 60}});
  EXPECT_EQ(one_pull().ranks[1].blocks_free, 60);
}

TEST_F(PullAgentsTest, WhatOtherRolesSayChangesNothing) {
  agents_.observe(Event{Lost{{Role::kDecode, EngineId{0}, 0}}});
  agents_.observe(Event{Released{{Role::kDecode, EngineId{0}, 0}, RequestId{1}, 0}});
  agents_.observe(
      Event{PrefillDone{{EngineId{9}, 9}, RequestId{1}, true, {}, {}, model::FinishReason::kNone}});
  EXPECT_TRUE(pulls().empty());
}

TEST(PullAgentsContextParallel, LongWorkIsChargedToAllRanksAlike) {
  model::ClusterConfig config;
  config.prefill.engines = 1;
  config.prefill.ranks = 2;
  config.prefill.step_budget_ms = 10;
  config.prefill.outstanding_steps = 2;
  config.prefill.context_parallel_quotas = 1;
  config.prefill.quota_scope = model::QuotaScope::kWholeStep;
  model::Profile profile;
  profile.cost = model::QuadraticCost{0, 1'000'000'000, 0};  // 1 ms a token
  PullAgents agents(config, profile);
  const auto offers = [&agents] {
    std::vector<Event> out;
    agents.take_pulls(out);
    std::vector<std::int64_t> left;
    for (const Event& event : out) {
      for (const auto& rank : std::get<Pull>(event).ranks) left.push_back(rank.quota_left.value / 1'000'000);
    }
    return left;
  };
  const RankId first{EngineId{0}, 0};
  for (std::uint32_t r = 0; r < 2; ++r) agents.observe(Event{Joined{{Role::kPrefill, EngineId{0}, r}, 50}});
  offers();
  agents.observe(Action{Grant{RequestId{1}, first, TokenCount{10}, TokenCount{0}, Nanos{10'000'000}, 1}});
  EXPECT_TRUE(offers().empty()) << "one budget is not more than one budget";
  agents.observe(Action{Grant{RequestId{2}, first, TokenCount{30}, TokenCount{0}, Nanos{30'000'000}, 1}});
  EXPECT_EQ(offers(), (std::vector<std::int64_t>{20 - 10 - 15, 20 - 15}));
  PrefillStepped step;
  step.from = first;
  step.chunks.push_back({RequestId{2}, TokenCount{20}, TokenCount{0}, Nanos{20'000'000}});
  agents.observe(Event{step});
  EXPECT_EQ(offers(), (std::vector<std::int64_t>{20 - 10 - 5, 20 - 5}));
  agents.observe(Event{Lost{{Role::kPrefill, EngineId{0}, 1}}});
  agents.observe(Event{Joined{{Role::kPrefill, EngineId{0}, 0}, 50}});
  EXPECT_EQ(offers().at(0), 20) << "what died with the group is off the books";
}

}  // namespace
}  // namespace trimtab::cluster
