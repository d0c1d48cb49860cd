#include "kv_pool/fetch_scheduler.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <set>
#include <string>

#include "base/prng.h"

namespace trimtab::kv_pool {
namespace {

constexpr base::Nanos kNow{1'000};
using Limits = FetchScheduler::Limits;

/// Starts what may start and says whose plans' blocks they were, as "client.plan" words.
std::string drain(FetchScheduler& scheduler, base::Nanos now = kNow) {
  std::string order;
  while (const auto pick = scheduler.pick(now)) {
    order += (order.empty() ? "" : " ") + std::to_string(pick->client) + "." + std::to_string(pick->plan);
    scheduler.hold(*pick, now);
  }
  return order;
}

TEST(FetchScheduler, PriorityThenDeadlineThenAge) {
  FetchScheduler scheduler(Limits{10, 10});
  scheduler.add(1, 1, 1, base::kForever, 0, kNow);
  scheduler.add(1, 2, 1, base::Nanos{9'000}, 0, kNow);
  scheduler.add(1, 3, 1, base::Nanos{8'000}, 0, kNow);
  scheduler.add(1, 4, 1, base::kForever, 5, kNow);
  scheduler.add(1, 5, 1, base::kForever, 0, kNow);
  EXPECT_EQ(drain(scheduler), "1.4 1.3 1.2 1.1 1.5");
}

TEST(FetchScheduler, EqualPlansShareByWhatTheirClientsHold) {
  FetchScheduler scheduler(Limits{10, 7});
  scheduler.add(1, 1, 10, base::kForever, 0, kNow);
  EXPECT_TRUE(scheduler.pick(kNow));
  scheduler.hold(*scheduler.pick(kNow), kNow);
  scheduler.hold(*scheduler.pick(kNow), kNow);
  scheduler.add(2, 1, 10, base::kForever, 0, kNow);
  EXPECT_EQ(drain(scheduler), "2.1 2.1 1.1 2.1 1.1") << "the newcomer catches up, then they alternate";
  scheduler.release(1, 1);
  EXPECT_EQ(drain(scheduler), "1.1");
}

TEST(FetchScheduler, OneClientCannotHoldAllHoweverUrgentItIs) {
  FetchScheduler scheduler(Limits{3, 5});
  scheduler.add(1, 1, 100, base::Nanos{1}, 99, kNow);
  scheduler.add(2, 1, 100, base::kForever, 0, kNow);
  EXPECT_EQ(drain(scheduler), "1.1 1.1 1.1 2.1 2.1");
}

TEST(FetchScheduler, APlanThatIsPutOffLetsOthersGoFirst) {
  FetchScheduler scheduler(Limits{3, 5});
  scheduler.add(1, 1, 2, base::kForever, 1, kNow);
  scheduler.add(1, 2, 2, base::kForever, 0, kNow);
  scheduler.put_off(*scheduler.pick(kNow));
  scheduler.hold(*scheduler.pick(kNow), kNow);
  scheduler.new_turn();
  EXPECT_EQ(drain(scheduler), "1.1 1.1");
}

TEST(FetchScheduler, WhoWaitsTooLongGoesFirstOnce) {
  FetchScheduler scheduler(Limits{100, 100, base::Nanos{500}});
  scheduler.add(1, 1, 50, base::kForever, 9, kNow);
  scheduler.add(2, 1, 50, base::kForever, 0, kNow);
  scheduler.hold(*scheduler.pick(kNow), kNow);
  const base::Nanos later = kNow + base::Nanos{400};
  EXPECT_EQ(scheduler.pick(later)->client, 1U);
  scheduler.hold(*scheduler.pick(later), later);
  const base::Nanos end = kNow + base::Nanos{500};
  EXPECT_EQ(scheduler.pick(end)->client, 2U);
  scheduler.hold(*scheduler.pick(end), end);
  EXPECT_EQ(scheduler.pick(end)->client, 1U) << "its clock begins anew";
}

TEST(FetchScheduler, DeadlinesAreTold) {
  FetchScheduler scheduler(Limits{3, 5});
  scheduler.add(1, 1, 2, base::Nanos{2'000}, 0, kNow);
  scheduler.add(1, 2, 2, base::Nanos{3'000}, 0, kNow);
  EXPECT_EQ(scheduler.next_deadline(), base::Nanos{2'000});
  EXPECT_TRUE(scheduler.late(base::Nanos{1'999}).empty());
  ASSERT_EQ(scheduler.late(base::Nanos{2'000}).size(), 1U);
  scheduler.close(1, 1);
  EXPECT_TRUE(scheduler.late(base::Nanos{2'000}).empty());
  EXPECT_EQ(scheduler.next_deadline(), base::Nanos{3'000});
  EXPECT_EQ(drain(scheduler), "1.2 1.2");
}

// Clients come, go, cancel, give back and hoard, with any priorities. The bounds always hold, and whoever
// goes gives everything back.
RC_GTEST_PROP(FetchSchedulerProperty, BoundsHoldAndNothingLeaks, ()) {
  base::Prng prng(*rc::gen::arbitrary<std::uint64_t>());
  const Limits limits{static_cast<std::uint32_t>(1 + prng.below(5)),
                      static_cast<std::uint32_t>(1 + prng.below(9)), base::Nanos{50}};
  FetchScheduler scheduler(limits);
  std::multiset<std::pair<ClientId, PlanId>> held;
  PlanId next = 1;
  for (std::int64_t step = 0; step < 300; ++step) {
    const base::Nanos now{step};
    const ClientId client = 1 + prng.below(3);
    const auto plans_of = held.lower_bound({client, 0});
    const bool holds = plans_of != held.end() && plans_of->first == client;
    switch (prng.below(7)) {
      case 0:
        scheduler.add(client, next++, static_cast<std::uint32_t>(1 + prng.below(6)),
                      base::Nanos{static_cast<std::int64_t>(prng.below(400))},
                      static_cast<std::int32_t>(prng.below(3)), now);
        break;
      case 1:
        if (!holds) break;
        scheduler.release(client, plans_of->second);
        held.erase(plans_of);
        break;
      case 2:
        if (!holds) break;
        scheduler.cancel(client, plans_of->second);
        held.erase({client, plans_of->second});
        break;
      case 3:
        if (prng.below(4) > 0) break;
        scheduler.leave(client);
        std::erase_if(held, [&](const auto& one) { return one.first == client; });
        break;
      default: {
        scheduler.new_turn();
        const auto pick = scheduler.pick(now);
        if (!pick) break;
        if (const auto how = prng.below(4); how == 0) {
          scheduler.skip(*pick, now);
        } else if (how == 1) {
          scheduler.put_off(*pick);
        } else {
          scheduler.hold(*pick, now);
          held.emplace(pick->client, pick->plan);
        }
      }
    }
    RC_ASSERT(scheduler.held() == held.size() && scheduler.held() <= limits.held_in_all);
    for (ClientId one = 1; one <= 3; ++one) RC_ASSERT(scheduler.held_by(one) <= limits.held_per_client);
  }
  for (ClientId one = 1; one <= 3; ++one) scheduler.leave(one);
  RC_ASSERT(scheduler.held() == 0U && scheduler.plans() == 0U);
}

// One slot, which each block holds for one tick, and plans of any priority that never end: every plan
// starts a block at least once in the patience and a tick for each plan.
RC_GTEST_PROP(FetchSchedulerProperty, NobodyStarves, ()) {
  base::Prng prng(*rc::gen::arbitrary<std::uint64_t>());
  const Limits limits{1, 1, base::Nanos{20}};
  FetchScheduler scheduler(limits);
  const std::uint64_t plans = 2 + prng.below(8);
  for (PlanId plan = 1; plan <= plans; ++plan)
    scheduler.add(1 + plan % 3, plan, 1'000'000, base::Nanos{static_cast<std::int64_t>(prng.below(1'000))},
                  static_cast<std::int32_t>(prng.below(3)), base::Nanos{0});
  std::map<PlanId, std::int64_t> last;
  for (std::int64_t tick = 0; tick < 300; ++tick) {
    const auto pick = scheduler.pick(base::Nanos{tick});
    RC_ASSERT(pick.has_value());
    scheduler.hold(*pick, base::Nanos{tick});
    scheduler.release(pick->client, pick->plan);
    last[pick->plan] = tick;
    for (PlanId plan = 1; plan <= plans; ++plan)
      RC_ASSERT(tick - last[plan] <= limits.patience.value + static_cast<std::int64_t>(plans));
  }
}

}  // namespace
}  // namespace trimtab::kv_pool
