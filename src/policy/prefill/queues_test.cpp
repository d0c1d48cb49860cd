#include "policy/prefill/queues.h"

#include <gtest/gtest.h>

namespace trimtab::policy {
namespace {

using base::Nanos;
using base::TokenCount;
using model::EngineId;
using model::RequestId;
using model::TierId;

constexpr std::int64_t kMilli = 1'000'000;

QueueItem item(std::uint64_t id, std::int64_t context, std::int64_t quota_ms, std::int64_t arrival_ms = 0) {
  QueueItem result;
  result.id = RequestId{id};
  result.context = TokenCount{context};
  result.quota = Nanos{quota_ms * kMilli};
  result.arrival = Nanos{arrival_ms * kMilli};
  return result;
}

Nanos ms(std::int64_t value) { return Nanos{value * kMilli}; }

EngineTiers engine(std::uint32_t id, std::uint32_t first, std::uint32_t last) {
  return {EngineId{id}, {TierId{first}, TierId{last}, TierId{last}}};
}

PrefillQueues queues(const QueueConfig& config, const std::vector<EngineTiers>& engines) {
  auto made = PrefillQueues::make(config);
  if (!made) ADD_FAILURE() << base::to_string(made.error());
  made->set_engines(engines);
  return std::move(*made);
}

std::vector<RankOffer> offer(std::vector<std::int64_t> left_ms, std::int64_t blocks = INT64_MAX) {
  std::vector<RankOffer> ranks;
  for (const std::int64_t left : left_ms) ranks.push_back({ms(left), blocks});
  return ranks;
}

std::vector<std::uint64_t> served(PrefillQueues& q, Nanos now) {
  std::vector<std::uint64_t> ids;
  while (const auto grant = q.serve(now)) ids.push_back(grant->item.id.value);
  return ids;
}

// The worked example (system facts, section 15): the engine of tier 64K-256K with the most quota left pulls
// it; the rank with the least load takes it.
TEST(WorkedExample, TierEngineAndRank) {
  auto q = queues({}, {engine(0, 0, 1), engine(1, 2, 2), engine(2, 2, 2), engine(3, 3, 3)});
  q.pull(EngineId{0}, offer({600, 600, 600, 600}));
  q.pull(EngineId{1}, offer({100, 90, 0, 120}));
  q.pull(EngineId{2}, offer({200, 150, 250, -80}));
  q.pull(EngineId{3}, offer({600, 600, 600, 600}));
  auto turn = item(7, 100'000, 152, 1000);
  const auto queued = q.enqueue(turn);
  EXPECT_EQ(q.tiers().name(queued.tier), "64K-256K");
  EXPECT_EQ(queued.depth, 1U);
  EXPECT_EQ(queued.queued_quota, ms(152));
  const auto grant = q.serve(ms(1005));
  ASSERT_TRUE(grant);
  EXPECT_EQ(grant->engine, EngineId{2});
  EXPECT_EQ(grant->engine_left, ms(600)) << "ranks that are overfull do not lower what the others can take";
  EXPECT_EQ(grant->rank, 2U);
  EXPECT_EQ(grant->rank_runner_up, 0U);
  EXPECT_EQ(grant->queue_time, ms(5));
  EXPECT_EQ(
      to_string(*grant),
      "pulled by prefill engine 2 with 600 ms of quota left; rank 2 has most of it (250 ms), then rank 0 "
      "(200 ms); waited 5.0 ms, smallest key of tier 2");
  EXPECT_FALSE(q.serve(ms(1005)));
  EXPECT_EQ(q.leased(), 1U);
}

TEST(LeastLoadedRank, MostQuotaLeftThenTheLowestRank) {
  EXPECT_FALSE(least_loaded_rank({}, 0));
  EXPECT_FALSE(least_loaded_rank(offer({0, -5}), 0));
  auto choice = least_loaded_rank(offer({10, 30, 30, 20}), 0);
  EXPECT_EQ(choice->rank, 1U);
  EXPECT_EQ(choice->runner_up, 2U);
  choice = least_loaded_rank(offer({10}), 0);
  EXPECT_FALSE(choice->runner_up);
  auto ranks = offer({50, 20});
  ranks[0].blocks_free = 3;
  EXPECT_EQ(least_loaded_rank(ranks, 4)->rank, 1U) << "a rank without the memory is no candidate";
}

TEST(PrefillQueues, FirstComeFirstServedTiesById) {
  auto q = queues({}, {engine(0, 0, 3)});
  q.enqueue(item(3, 10, 1, 5));
  q.enqueue(item(9, 10, 1, 4));
  q.enqueue(item(1, 10, 1, 5));
  q.pull(EngineId{0}, offer({100}));
  EXPECT_EQ(served(q, ms(6)), (std::vector<std::uint64_t>{9, 1, 3}));
}

TEST(PrefillQueues, AnEngineTakesUntilItsQuotaIsFilledAndMayOvershoot) {
  auto q = queues({}, {engine(0, 0, 3)});
  for (std::uint64_t id = 0; id < 5; ++id) q.enqueue(item(id, 10, 40, 0));
  q.pull(EngineId{0}, offer({100}));
  EXPECT_EQ(served(q, ms(0)), (std::vector<std::uint64_t>{0, 1, 2}))
      << "20 ms left are enough to start a third";
  q.pull(EngineId{0}, offer({-20}));
  EXPECT_TRUE(served(q, ms(0)).empty());
  q.pull(EngineId{0}, offer({1}));
  EXPECT_EQ(served(q, ms(0)).size(), 1U);
}

TEST(PrefillQueues, WaitingPullsAreServedByLargestRemainingQuotaThenId) {
  auto q = queues({}, {engine(5, 0, 3), engine(2, 0, 3), engine(8, 0, 3)});
  q.pull(EngineId{5}, offer({100}));
  q.pull(EngineId{2}, offer({100}));
  q.pull(EngineId{8}, offer({150}));
  std::vector<std::uint32_t> order;
  for (std::uint64_t id = 0; id < 3; ++id) {
    q.enqueue(item(id, 10, 90, 0));
    order.push_back(q.serve(ms(0))->engine.value);
  }
  EXPECT_EQ(order, (std::vector<std::uint32_t>{8, 2, 5}));
}

TEST(PrefillQueues, ALaterPullReplacesTheEarlierAndWithdrawEndsIt) {
  auto q = queues({}, {engine(0, 0, 3)});
  q.pull(EngineId{0}, offer({100}));
  q.pull(EngineId{0}, offer({0}));
  q.enqueue(item(1, 10, 1));
  EXPECT_FALSE(q.serve(ms(0)));
  q.pull(EngineId{0}, offer({1}));
  q.withdraw(EngineId{0});
  EXPECT_FALSE(q.serve(ms(0)));
  q.pull(EngineId{77}, offer({1}));
  EXPECT_FALSE(q.serve(ms(0))) << "an engine that is not in service gets nothing";
}

TEST(PrefillQueues, AnEngineServesItsTiersOnlyUnlessNearlyIdle) {
  QueueConfig config;
  config.help_below_ratio = 0;
  auto q = queues(config, {engine(0, 0, 0), engine(1, 2, 3)});
  q.pull(EngineId{0}, offer({600}));
  q.enqueue(item(1, 100'000, 1));
  EXPECT_FALSE(q.serve(ms(0)));

  config.help_below_ratio = 0.5;
  auto helping = queues(config, {engine(0, 1, 1), engine(1, 2, 3)});
  helping.enqueue(item(1, 100'000, 1));
  helping.pull(EngineId{0}, offer({300}));
  EXPECT_FALSE(helping.serve(ms(0))) << "filled to half of two budgets: no help";
  helping.pull(EngineId{0}, offer({301}));
  const auto grant = helping.serve(ms(0));
  ASSERT_TRUE(grant);
  EXPECT_TRUE(grant->helped);
  // Own work goes first.
  helping.enqueue(item(2, 100'000, 1, 0));
  helping.enqueue(item(3, 20'000, 1, 5));
  helping.pull(EngineId{0}, offer({600}));
  EXPECT_EQ(served(helping, ms(5)), (std::vector<std::uint64_t>{3, 2}));
}

TEST(PrefillQueues, AGrantCarriesTheLargerTiersCap) {
  QueueConfig config;
  config.tier_caps = {ms(100), ms(200), ms(250)};
  auto q = queues(config, {engine(0, 0, 1), engine(1, 3, 3)});
  q.pull(EngineId{0}, offer({600}));
  q.enqueue(item(1, 10, 1));
  EXPECT_EQ(q.serve(ms(0))->batch_cap, ms(200)) << "tier 0 under tier 1's cap";
  q.enqueue(item(2, 300'000, 1));
  q.pull(EngineId{1}, offer({600}));
  EXPECT_EQ(q.serve(ms(0))->batch_cap, ms(300)) << "the last tier has none of its own: the step budget";
}

TEST(PrefillQueues, AgedWorkGoesFirstWhateverTierOrKey) {
  QueueConfig config;
  config.order = "arrival_plus_work";
  config.aging = ms(1000);
  config.help_below_ratio = 0;
  auto q = queues(config, {engine(0, 0, 0), engine(1, 3, 3)});
  q.enqueue(item(1, 300'000, 50'000, 0));  // its key is 50 s
  q.enqueue(item(2, 10, 1, 900));
  q.pull(EngineId{0}, offer({600}));
  EXPECT_EQ(q.serve(ms(999))->item.id, RequestId{2}) << "not its tier, not aged";
  EXPECT_EQ(q.next_event(ms(999)), ms(1000));
  q.enqueue(item(3, 10, 1, 950));
  const auto grant = q.serve(ms(1000));
  ASSERT_TRUE(grant);
  EXPECT_EQ(grant->item.id, RequestId{1});
  EXPECT_TRUE(grant->aged);
  EXPECT_EQ(grant->request_runner_up, RequestId{3});
}

TEST(PrefillQueues, NothingStarvesUnderShortWork) {
  QueueConfig config;
  config.order = "edf";
  config.order_config.tier_targets = {ms(2000), ms(1'000'000)};
  config.order_config.target_bounds_tokens = {1000};
  config.tier_bounds_tokens = {1000};
  config.aging = ms(3000);
  auto q = queues(config, {engine(0, 0, 1)});
  q.enqueue(item(0, 5000, 100, 0));
  std::uint64_t next = 1;
  for (std::int64_t now = 0; now < 5000; now += 100) {
    // Short work comes exactly as fast as it is served.
    q.enqueue(item(next++, 10, 100, now));
    q.pull(EngineId{0}, offer({100}));
    const auto grant = q.serve(ms(now));
    ASSERT_TRUE(grant);
    if (grant->item.id == RequestId{0}) {
      EXPECT_EQ(now, 3000);
      return;
    }
  }
  FAIL() << "the long request starved";
}

TEST(PrefillQueues, OrdersByTheirKeys) {
  const auto first = [](const std::string& order, std::vector<QueueItem> items) {
    QueueConfig config;
    config.order = order;
    auto q = queues(config, {engine(0, 0, 3)});
    for (const auto& each : items) q.enqueue(each);
    q.pull(EngineId{0}, offer({100'000}));
    return served(q, ms(3000));
  };
  auto urgent = item(3, 10, 1, 2000);
  urgent.deadline = ms(2100);
  // Keys: fifo 0, 1, 2 s; edf 2 + 1.5 x 3 = 6.5, 1 + 2 = 3.0, 2.1 s; arrival + work 3, 1.001, 2.001 s.
  const std::vector<QueueItem> items = {item(1, 10, 3000, 0), item(2, 10, 1, 1000), urgent};
  EXPECT_EQ(first("fifo", items), (std::vector<std::uint64_t>{1, 2, 3}));
  EXPECT_EQ(first("edf", items), (std::vector<std::uint64_t>{3, 2, 1}));
  EXPECT_EQ(first("arrival_plus_work", items), (std::vector<std::uint64_t>{2, 3, 1}));
  // edf: a longer tier may wait longer.
  EXPECT_EQ(first("edf", {item(1, 300'000, 1, 0), item(2, 10, 1, 1000)}), (std::vector<std::uint64_t>{2, 1}));
}

TEST(PrefillQueues, EveryOrderIsRegisteredAndMisspellingsAreNamed) {
  EXPECT_EQ(queue_orders().size(), 3U);
  for (const QueueOrder& order : queue_orders()) EXPECT_EQ(*find_queue_order(order.name), &order);
  const auto wrong = find_queue_order("fifoo");
  ASSERT_FALSE(wrong);
  EXPECT_NE(wrong.error().message.find("did you mean 'fifo'"), std::string::npos);
}

TEST(PrefillQueues, RemoveForgetsQueuedAndLeased) {
  auto q = queues({}, {engine(0, 0, 3)});
  for (std::uint64_t id = 0; id < 4; ++id) q.enqueue(item(id, 10, 10));
  q.pull(EngineId{0}, offer({10}));
  EXPECT_EQ(served(q, ms(0)), std::vector<std::uint64_t>{0});
  EXPECT_TRUE(q.remove(RequestId{0}));
  EXPECT_TRUE(q.remove(RequestId{1}));
  EXPECT_FALSE(q.remove(RequestId{1}));
  EXPECT_EQ(q.queued(), 2U);
  EXPECT_EQ(q.leased(), 0U);
  EXPECT_EQ(q.queued_quota(), ms(20));
  q.pull(EngineId{0}, offer({100}));
  EXPECT_EQ(served(q, ms(0)), (std::vector<std::uint64_t>{2, 3}));
}

TEST(PrefillQueues, LeasesExpireAndReturnToTheirOldPlace) {
  QueueConfig config;
  config.lease = ms(100);
  auto q = queues(config, {engine(0, 0, 3)});
  q.enqueue(item(1, 10, 1, 0));
  q.enqueue(item(2, 10, 1, 1));
  q.pull(EngineId{0}, offer({100}));
  EXPECT_EQ(q.serve(ms(10))->lease_until, ms(110));
  q.serve(ms(20));
  EXPECT_EQ(q.next_event(ms(20)), ms(110));
  EXPECT_TRUE(q.renew(RequestId{2}, ms(90)));
  EXPECT_TRUE(q.expire(ms(109)).empty());
  const auto back = q.expire(ms(110));
  ASSERT_EQ(back.size(), 1U);
  EXPECT_EQ(back[0].item.id, RequestId{1});
  EXPECT_EQ(back[0].engine, EngineId{0});
  EXPECT_FALSE(q.renew(RequestId{1}, ms(110))) << "queued again, no lease to renew";
  q.enqueue(item(3, 10, 1, 50));
  EXPECT_EQ(served(q, ms(120)), (std::vector<std::uint64_t>{1, 3})) << "before what came after it";
}

TEST(PrefillQueues, ALostEngineGivesBackAllItsWork) {
  auto q = queues({}, {engine(0, 0, 3), engine(1, 0, 3)});
  for (std::uint64_t id = 0; id < 4; ++id) q.enqueue(item(id, 10, 50, static_cast<std::int64_t>(id)));
  q.pull(EngineId{0}, offer({100}));
  EXPECT_EQ(served(q, ms(5)).size(), 2U);
  const auto back = q.lose_engine(EngineId{0});
  ASSERT_EQ(back.size(), 2U);
  EXPECT_EQ(back[0].item.id, RequestId{0});
  EXPECT_FALSE(q.serve(ms(5)));
  q.pull(EngineId{1}, offer({1000}));
  EXPECT_EQ(served(q, ms(5)), (std::vector<std::uint64_t>{0, 1, 2, 3}));
}

TEST(PrefillQueues, ARequestThatGrowsChangesTierAndKeepsItsArrival) {
  auto q = queues({}, {engine(0, 0, 0), engine(1, 1, 3)});
  q.enqueue(item(1, 16'000, 10, 0));
  auto grown = item(1, 17'000, 12, 99);
  EXPECT_TRUE(q.update(grown));
  EXPECT_EQ(q.depth(TierId{0}), 0U);
  EXPECT_EQ(q.depth(TierId{1}), 1U);
  EXPECT_EQ(q.queued_quota(TierId{1}), ms(12));
  q.pull(EngineId{1}, offer({100}));
  const auto grant = q.serve(ms(5));
  ASSERT_TRUE(grant);
  EXPECT_EQ(grant->queue_time, ms(5));
  EXPECT_FALSE(q.update(grown)) << "not queued any more";
}

TEST(PrefillQueues, DemandIsWhatCameAndWhatWaited) {
  auto q = queues({}, {engine(0, 0, 3)});
  q.enqueue(item(1, 10, 30));
  q.enqueue(item(2, 100'000, 70));
  EXPECT_EQ(q.close_round(), (std::vector<Nanos>{ms(30), ms(0), ms(70), ms(0)}));
  q.pull(EngineId{0}, offer({10}));
  EXPECT_EQ(served(q, ms(0)), std::vector<std::uint64_t>{1});
  q.enqueue(item(3, 10, 5));
  EXPECT_EQ(q.close_round(), (std::vector<Nanos>{ms(35), ms(0), ms(70), ms(0)}))
      << "request 1 waited when the round began";
  EXPECT_EQ(q.close_round(), (std::vector<Nanos>{ms(5), ms(0), ms(70), ms(0)}));
}

TEST(PrefillQueues, AHeadWithoutMemoryHoldsItsTierButNotTheOthers) {
  auto q = queues({}, {engine(0, 0, 3)});
  auto big = item(1, 100'000, 10, 0);
  big.blocks = 800;
  auto behind = item(2, 70'000, 10, 1);
  behind.blocks = 5;
  q.enqueue(big);
  q.enqueue(behind);
  q.pull(EngineId{0}, offer({600}, 100));
  EXPECT_FALSE(q.serve(ms(2))) << "no overtaking within the tier";
  auto other = item(3, 10, 10, 3);
  other.blocks = 1;
  q.enqueue(other);
  EXPECT_EQ(served(q, ms(3)), std::vector<std::uint64_t>{3}) << "a new head wakes the engine that was held";
  // Once aged, memory drains for it: the engine takes nothing else.
  q.enqueue(item(4, 10, 10, 4));
  EXPECT_FALSE(q.serve(ms(30'000)));
  q.pull(EngineId{0}, offer({600}, 800));
  EXPECT_EQ(q.serve(ms(30'000))->item.id, RequestId{1});
}

TEST(PrefillQueues, TheChosenRanksOfferShrinks) {
  auto q = queues({}, {engine(0, 0, 3)});
  q.pull(EngineId{0}, offer({100, 90}, 10));
  std::vector<std::uint32_t> ranks;
  for (std::uint64_t id = 0; id < 4; ++id) {
    auto each = item(id, 10, 15);
    each.blocks = 4;
    q.enqueue(each);
    const auto grant = q.serve(ms(0));
    ASSERT_TRUE(grant);
    ranks.push_back(grant->rank);
  }
  EXPECT_EQ(ranks, (std::vector<std::uint32_t>{0, 1, 0, 1}));
  auto more = item(9, 10, 15);
  more.blocks = 4;
  q.enqueue(more);
  EXPECT_FALSE(q.serve(ms(0))) << "2 blocks are left on each";
}

TEST(PrefillQueues, BadConfigurationsAreRefused) {
  const auto refused = [](auto change) {
    QueueConfig config;
    change(config);
    return !PrefillQueues::make(config).has_value();
  };
  EXPECT_TRUE(refused([](QueueConfig& c) { c.order = "lifo"; }));
  EXPECT_TRUE(refused([](QueueConfig& c) { c.tier_bounds_tokens = {5, 3}; }));
  EXPECT_TRUE(refused([](QueueConfig& c) { c.tier_caps.assign(5, ms(1)); }));
  EXPECT_TRUE(refused([](QueueConfig& c) { c.tier_caps = {ms(0)}; }));
  EXPECT_TRUE(refused([](QueueConfig& c) { c.lease = ms(0); }));
  EXPECT_FALSE(refused([](QueueConfig&) {}));
}

TEST(Orders, OneQueueKeepsTheTargetsOfTheContexts) {
  QueueConfig config;
  config.tier_bounds_tokens = {};
  config.order = "edf";
  auto q = queues(config, {engine(0, 0, 0)});
  q.enqueue(item(1, 100'000, 1, 0));     // target 8 s
  q.enqueue(item(2, 1'000, 1, 5'000));   // 5 + 2 s
  q.enqueue(item(3, 20'000, 1, 3'500));  // 3.5 + 4 s
  q.pull(EngineId{0}, offer({600}));
  EXPECT_EQ(served(q, ms(6'000)), (std::vector<std::uint64_t>{2, 3, 1}));
}

TEST(Orders, TheWeightOfOwnWorkIsConfiguration) {
  model::PrefillConfig config;
  EXPECT_EQ(QueueConfig::from(config).order_config.edf_work_percent, 150);
  config.order_work_percent = 40;
  const OrderConfig order = QueueConfig::from(config).order_config;
  const QueueOrder* key = *find_queue_order("arrival_plus_work");
  EXPECT_EQ(key->key(item(1, 10, 1'000, 500), order), ms(900));
}

}  // namespace
}  // namespace trimtab::policy
