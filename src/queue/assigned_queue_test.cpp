#include "queue/assigned_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>
#include <set>

namespace trimtab::queue {
namespace {

using base::Nanos;
using model::EngineId;
using model::RequestId;
using policy::QueueItem;

model::PrefillConfig config(std::string assignment) {
  model::PrefillConfig config;
  config.engines = 3;
  config.ranks = 2;
  config.assignment = std::move(assignment);
  config.lease_ms = 1'000;
  return config;
}

QueueItem item(std::uint64_t id, std::int64_t quota_ms = 10, std::int64_t arrival = 0) {
  return {RequestId{id},  base::TokenCount{100}, Nanos{quota_ms * 1'000'000}, 1,
          Nanos{arrival}, base::kForever};
}

std::unique_ptr<cluster::TierQueue> open_queue(const std::string& assignment) {
  auto queue = std::move(*AssignedQueue::make(config(assignment), 5));
  const policy::TierRange all{model::TierId{0}, model::TierId{3}, model::TierId{3}};
  const std::vector<policy::EngineTiers> engines{{EngineId{0}, all}, {EngineId{1}, all}, {EngineId{2}, all}};
  queue->assign(engines);
  return queue;
}

const std::vector<policy::RankOffer> kRoom{{Nanos{600'000'000}, 100}, {Nanos{600'000'000}, 100}};

TEST(AssignedQueue, PushedWorkWaitsForItsRankHoweverIdleOthersAre) {
  auto queue = open_queue("round_robin");
  for (std::uint64_t id = 1; id <= 6; ++id) queue->push(item(id));
  queue->pull(EngineId{1}, kRoom);
  std::set<std::uint64_t> got;
  while (const auto grant = queue->next(Nanos{0})) {
    EXPECT_EQ(grant->engine, EngineId{1});
    got.insert(grant->item.id.value);
  }
  EXPECT_EQ(got, (std::set<std::uint64_t>{3, 4}));
  EXPECT_EQ(queue->queued(), 4U);
}

TEST(AssignedQueue, DualPathWaitsInOneQueueForARankBelowTheCeiling) {
  auto queue_config = config("dualpath");
  queue_config.dualpath_ceiling_tokens = 150;
  auto queue = std::move(*AssignedQueue::make(queue_config, 5));
  const policy::TierRange all{model::TierId{0}, model::TierId{3}, model::TierId{3}};
  queue->assign(std::vector<policy::EngineTiers>{{EngineId{2}, all}});
  queue->pull(EngineId{2}, kRoom);
  for (std::uint64_t id = 1; id <= 6; ++id) queue->push(item(id));
  // 100 tokens each: a rank with 200 is above 150.
  int granted = 0;
  while (queue->next(Nanos{0})) ++granted;
  EXPECT_EQ(granted, 4);
  queue->ack(RequestId{1});
  EXPECT_TRUE(queue->next(Nanos{0}).has_value());
  EXPECT_FALSE(queue->next(Nanos{0}).has_value());
}

TEST(AssignedQueue, LeasesRunOutAndLostEnginesGiveBack) {
  auto queue = open_queue("least_work");
  queue->push(item(1));
  for (std::uint32_t e = 0; e < 3; ++e) queue->pull(EngineId{e}, kRoom);
  const auto grant = queue->next(Nanos{0});
  ASSERT_TRUE(grant);
  EXPECT_EQ(queue->next_event(Nanos{0}), Nanos{1'000'000'000});
  EXPECT_TRUE(queue->extend(RequestId{1}, Nanos{500'000'000}));
  EXPECT_TRUE(queue->expire(Nanos{1'400'000'000}).empty());
  EXPECT_EQ(queue->expire(Nanos{1'500'000'000}).size(), 1U);
  EXPECT_EQ(queue->queued(), 1U);
  const auto again = queue->next(Nanos{2'000'000'000});
  ASSERT_TRUE(again);
  const auto returned = queue->lose(again->engine);
  ASSERT_EQ(returned.size(), 1U);
  const auto third = queue->next(Nanos{3'000'000'000});
  ASSERT_TRUE(third);
  EXPECT_NE(third->engine, again->engine);
}

TEST(AssignedQueue, RefusesWhatItIsNot) {
  EXPECT_THAT(AssignedQueue::make(config("leest_work"), 1).error().message, testing::HasSubstr("least_work"));
  EXPECT_FALSE(AssignedQueue::make(config("pull"), 1).has_value());
  EXPECT_TRUE(make_queue(config("pull"), 1).has_value());
}

// Whatever happens, nothing is lost, granted twice, or left in an account.
RC_GTEST_PROP(AssignedQueue, NothingIsLost, ()) {
  auto queue = open_queue(*rc::gen::element<std::string>("random", "round_robin", "power_of_two",
                                                         "least_requests", "least_work", "dualpath"));
  std::set<std::uint64_t> queued, leased;
  std::uint64_t next = 1;
  const auto steps = *rc::gen::container<std::vector<std::uint8_t>>(120, rc::gen::arbitrary<std::uint8_t>());
  std::int64_t now = 0;
  for (const std::uint8_t step : steps) {
    now += 1'000'000;
    if (step < 100) {
      queue->push(item(next, 1 + step, now));
      queued.insert(next++);
    } else if (step < 170) {
      queue->pull(EngineId{step % 3U}, kRoom);
      while (const auto grant = queue->next(Nanos{now})) {
        RC_ASSERT(queued.erase(grant->item.id.value) == 1);
        leased.insert(grant->item.id.value);
      }
    } else if (step < 200 && !leased.empty()) {
      RC_ASSERT(queue->ack(RequestId{*leased.begin()}));
      leased.erase(leased.begin());
    } else if (step < 220 && !leased.empty()) {
      RC_ASSERT(queue->nack(RequestId{*leased.begin()}));
      queued.insert(*leased.begin());
      leased.erase(leased.begin());
    } else if (step < 240 && !queued.empty()) {
      RC_ASSERT(queue->ack(RequestId{*queued.begin()}));
      queued.erase(queued.begin());
    }
    RC_ASSERT(queue->queued() == queued.size());
    RC_ASSERT(queue->leased() == leased.size());
  }
  for (const std::uint64_t id : leased) RC_ASSERT(queue->ack(RequestId{id}));
  for (const std::uint64_t id : queued) RC_ASSERT(queue->ack(RequestId{id}));
  for (std::uint32_t tier = 0; tier < queue->tiers(); ++tier) {
    RC_ASSERT(queue->depth(model::TierId{tier}) == 0U);
    RC_ASSERT(queue->queued_quota(model::TierId{tier}) == Nanos{0});
  }
}

}  // namespace
}  // namespace trimtab::queue
