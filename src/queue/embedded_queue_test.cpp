#include "queue/embedded_queue.h"

#include <gtest/gtest.h>

namespace trimtab::queue {
namespace {

using base::Nanos;
using model::EngineId;
using model::RequestId;
using namespace base;  // literals

class EmbeddedQueueTest : public ::testing::Test {
 protected:
  EmbeddedQueueTest() {
    model::PrefillConfig config;
    config.tier_bounds_tokens = {512};
    config.lease_ms = 1'000;
    config.aging_ms = 60'000;
    auto made = EmbeddedQueue::make(config);
    queue_ = std::move(made).value();
    const policy::EngineTiers all[] = {{EngineId{0}, {model::TierId{0}, model::TierId{1}, model::TierId{1}}}};
    queue_->assign(all);
  }
  void push(std::uint64_t id, std::int64_t context, Nanos arrival) {
    queue_->push({RequestId{id}, TokenCount{context}, 1_ms, 1, arrival, kForever});
  }
  void ask() {
    const policy::RankOffer offer[] = {{100_ms, 100}};
    queue_->pull(EngineId{0}, offer);
  }
  std::unique_ptr<cluster::TierQueue> queue_;
};

TEST_F(EmbeddedQueueTest, RefusesATierListThatDoesNotAscend) {
  model::PrefillConfig config;
  config.tier_bounds_tokens = {512, 512};
  EXPECT_FALSE(EmbeddedQueue::make(config));
}

TEST_F(EmbeddedQueueTest, APullBeforeTheWorkIsRememberedAndServed) {
  ask();
  EXPECT_FALSE(queue_->next(0_s));
  push(1, 100, 1_s);
  const auto grant = queue_->next(1_s);
  ASSERT_TRUE(grant);
  EXPECT_EQ(grant->item.id, RequestId{1});
  EXPECT_EQ(queue_->leased(), 1U);
  EXPECT_EQ(queue_->queued(), 0U);
  EXPECT_TRUE(queue_->ack(RequestId{1}));
  EXPECT_EQ(queue_->leased(), 0U);
  EXPECT_FALSE(queue_->ack(RequestId{1}));
}

TEST_F(EmbeddedQueueTest, GivenBackWorkKeepsItsPlace) {
  push(1, 100, 1_s);
  push(2, 100, 2_s);
  ask();
  ASSERT_EQ(queue_->next(3_s)->item.id, RequestId{1});
  EXPECT_TRUE(queue_->nack(RequestId{1}));
  EXPECT_FALSE(queue_->nack(RequestId{1})) << "queued, not leased";
  EXPECT_EQ(queue_->depth(model::TierId{0}), 2U);
  EXPECT_EQ(queue_->next(3_s)->item.id, RequestId{1});
}

TEST_F(EmbeddedQueueTest, ADeadPullersWorkReturnsUnlessItsLeaseWasExtended) {
  push(1, 100, 0_s);
  push(2, 100, 0_s);
  ask();
  ASSERT_TRUE(queue_->next(0_s));
  ASSERT_TRUE(queue_->next(0_s));
  EXPECT_TRUE(queue_->extend(RequestId{2}, 900_ms));
  EXPECT_EQ(queue_->next_event(100_ms), 1_s);
  const auto back = queue_->expire(1_s);
  ASSERT_EQ(back.size(), 1U);
  EXPECT_EQ(back[0].item.id, RequestId{1});
  EXPECT_EQ(queue_->queued(), 1U);
  EXPECT_EQ(queue_->leased(), 1U);
  EXPECT_FALSE(queue_->nack(RequestId{1})) << "it is queued again already";
}

TEST_F(EmbeddedQueueTest, ALostEnginesWorkReturnsAndItsPullIsForgotten) {
  push(1, 100, 0_s);
  ask();
  ASSERT_TRUE(queue_->next(0_s));
  EXPECT_EQ(queue_->lose(EngineId{0}).size(), 1U);
  EXPECT_FALSE(queue_->next(1_s));
  EXPECT_EQ(queue_->queued(), 1U);
}

}  // namespace
}  // namespace trimtab::queue
