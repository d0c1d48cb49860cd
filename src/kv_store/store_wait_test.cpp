#include "kv_store/store_wait.h"

#include <gtest/gtest.h>

#include <chrono>

#include "kv_store/testing/fleet.h"
#include "kv_target/memory_target.h"

namespace trimtab::kv_store {
namespace {

class SteadyClock final : public base::Clock {
 public:
  base::Nanos now() const override {
    return base::Nanos{std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1)};
  }
};

TEST(StoreWaitTest, WaitsForAWriteAndARead) {
  const SteadyClock clock;
  std::vector<std::unique_ptr<kv_target::Target>> targets;
  for (std::uint64_t t = 0; t < 12; ++t)
    targets.push_back(std::make_unique<kv_target::MemoryTarget>(
        kv_target::MemoryTarget::Options{1ULL << 24, 1ULL << 20, t + 1}));
  auto store = StripedStore::open(std::move(targets), testing::Fleet::small(), clock.now());
  ASSERT_TRUE(store);
  const auto block = testing::block_of(1, 1'400);
  std::vector<StoreEvent> events;
  const auto write = (*store)->write(testing::key_of(1), block, base::kForever, clock.now());
  ASSERT_TRUE(wait_for(**store, clock, write, base::Nanos{20'000'000'000}, events));
  EXPECT_EQ(events.back().kind, StoreEvent::Kind::kWritten);
  std::vector<std::byte> to(1'400);
  const StripedStore::BlockRead one{testing::key_of(1), to};
  const auto read = (*store)->read({&one, 1}, base::kForever, 0, clock.now());
  ASSERT_TRUE(wait_for(**store, clock, read, base::Nanos{20'000'000'000}, events));
  EXPECT_EQ(to, block);
  EXPECT_TRUE((*store)->idle());
  const auto never = wait_for(**store, clock, 99, base::Nanos{2'000'000}, events);
  ASSERT_FALSE(never);
  EXPECT_EQ(never.error().code, base::Code::kDeadlineExceeded);
}

TEST(StoreWaitTest, RefusesOptionsThatCannotWork) {
  const auto open = [](auto change) {
    StoreOptions options = testing::Fleet::small();
    change(options);
    std::vector<std::unique_ptr<kv_target::Target>> targets;
    targets.push_back(std::make_unique<kv_target::MemoryTarget>(kv_target::MemoryTarget::Options{}));
    return StripedStore::open(std::move(targets), options, base::Nanos{0}).has_value();
  };
  EXPECT_TRUE(open([](StoreOptions&) {}));
  EXPECT_FALSE(open([](StoreOptions& options) { options.memory_bytes = 1'000; }));
  EXPECT_FALSE(open([](StoreOptions& options) { options.reads_at_start = 9; }));
  EXPECT_FALSE(open([](StoreOptions& options) { options.repair_jobs = 0; }));
  EXPECT_FALSE(open([](StoreOptions& options) { options.layout = {}; }));
}

}  // namespace
}  // namespace trimtab::kv_store
