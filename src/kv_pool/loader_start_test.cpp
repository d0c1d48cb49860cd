#include "kv_pool/loader_start.h"

#include <gtest/gtest.h>

#include "config/profile.h"
#include "kv_pool/test_support.h"
#include "policy/cost/cost_model.h"

namespace trimtab::kv_pool {
namespace {

TEST(LoaderStart, WhatTheOperatorChoseReachesTheStore) {
  LoaderOptions options;
  options.eviction = "s3_fifo";
  options.ttl = base::Nanos{5'000};
  options.racks = {3, 1, 2};
  const policy::CostModel cost(model::CostSpec{}, model::QuotaScope::kWholeStep);
  options.cost = &cost;
  StoreTier::Options tier;
  tell(options, tier);
  EXPECT_EQ(tier.eviction, "s3_fifo");
  EXPECT_EQ(tier.cost, &cost);
  EXPECT_EQ(tier.ttl, base::Nanos{5'000});
  EXPECT_EQ(tier.store.racks, (std::vector<std::uint32_t>{3, 1, 2}));
  EXPECT_EQ(tier.store.write_policy, kv_store::WritePolicy::kTen);
  options.writes_all = true;
  tell(options, tier);
  EXPECT_EQ(tier.store.write_policy, kv_store::WritePolicy::kAll);
}

/// In memory alone: of two equal chances the block that costs more to compute again stays.
TEST(LoaderStart, APoolInMemorySavesTimeWhereItIsAskedTo) {
  const auto profile = config::load_profile("deepseek-v4.1-flash", "profiles");
  ASSERT_TRUE(profile.has_value());
  const policy::CostModel cost(*profile);
  for (const bool time : {false, true}) {
    LoaderOptions options;
    options.cost = time ? &cost : nullptr;
    const auto order = memory_order(options, 16).value();
    const auto store = [&](eviction::Slot slot, std::uint32_t position) {
      eviction::Block block;
      block.key = slot + 1;
      block.position = position;
      order->stored(slot, block, eviction::Access{base::Nanos{1}});
    };
    store(0, 7'000);
    store(1, 0);
    const auto first = order->victims(base::Bytes{1}, base::Nanos{2});
    EXPECT_EQ(first.front(), time ? 1U : 0U);
  }
}

/// Racks that cannot keep the rule are refused by the loader itself: they are not said in vain.
TEST(LoaderStart, RacksOfWhichOneIsTooLargeAreRefused) {
  const test::TempDirectory directory;
  LoaderOptions options;
  options.socket_path = directory.path("kv.sock");
  options.memory_bytes = 16 * 4'096;
  options.file_bytes = 64 << 20;
  options.kv.block_bytes = base::Bytes{4'096};
  for (std::uint32_t i = 0; i < 13; ++i) options.targets.push_back(directory.path(std::to_string(i)));
  options.racks = {0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5};
  const std::atomic<bool> stop{true};
  const auto refused = run_loader(options, stop);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("rack 0 has 8 of 13 nodes"), std::string::npos)
      << refused.error().message;
  options.racks.clear();
  const auto served = run_loader(options, stop);
  EXPECT_TRUE(served) << served.error().message;
}

}  // namespace
}  // namespace trimtab::kv_pool
