#include "kv_store/store_wait.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <tuple>

#include "kv_store/testing/fleet.h"
#include "kv_target/file/testing/temp_directory.h"
#include "kv_target/file_target.h"
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

using kv_target::file::testing::TempDirectory;

std::unique_ptr<StripedStore> over_directories(const TempDirectory& in, const base::Clock& clock) {
  std::vector<std::unique_ptr<kv_target::Target>> targets;
  for (int t = 0; t < 12; ++t) {
    kv_target::FileTarget::Options options;
    options.directory = in.path(std::to_string(t));
    options.capacity_bytes = 4U << 20;
    options.shard_bytes = 64U << 10;
    options.layout.file_bytes = 1U << 20;
    options.uring = false;
    options.staging_bytes = 256U << 10;
    auto target = kv_target::FileTarget::open(options);
    EXPECT_TRUE(target.has_value()) << (target ? "" : base::to_string(target.error()));
    if (!target) return nullptr;
    targets.push_back(std::move(*target));
  }
  StoreOptions options = testing::Fleet::small();
  options.targets.request_timeout = base::Nanos{20'000'000'000};  // of a machine that is busy otherwise
  auto store = StripedStore::open(std::move(targets), options, clock.now());
  EXPECT_TRUE(store.has_value());
  return store ? std::move(*store) : nullptr;
}

void walk_to_the_end(StripedStore& store, const base::Clock& clock, WalkKind kind) {
  store.start_walk(kind, clock.now());
  std::vector<StoreEvent> events;
  for (int i = 0; i < 20'000 && !(store.walk()->done() && store.repairs_waiting() == 0); ++i)
    std::ignore = wait_for(store, clock, UINT64_MAX, base::Nanos{1'000'000}, events);
  ASSERT_TRUE(store.walk()->done());
}

/// Everything ends and begins again, with two of twelve directories gone: nothing is lost, and what was lost
/// of it is written again.
TEST(StoreWaitTest, AStoreOverDirectoriesOutlivesARestartAndTwoLostDisks) {
  const SteadyClock clock;
  const TempDirectory directory(TempDirectory::memory());
  std::vector<StoreEvent> events;
  constexpr std::uint64_t kBlocks = 24;
  {
    const auto store = over_directories(directory, clock);
    ASSERT_TRUE(store);
    for (std::uint64_t n = 0; n < kBlocks; ++n) {
      const auto block = testing::block_of(n, 1'400);
      const auto handle = store->write(testing::key_of(n), block, base::kForever, clock.now());
      ASSERT_TRUE(wait_for(*store, clock, handle, base::Nanos{30'000'000'000}, events));
      ASSERT_EQ(events.back().kind, StoreEvent::Kind::kWritten);
    }
  }
  events.clear();  // another store counts its handles from 1 again
  for (const char* lost : {"3", "8"}) std::filesystem::remove_all(directory.path(lost));
  events.clear();  // the next store counts its handles from the beginning
  const auto store = over_directories(directory, clock);
  ASSERT_TRUE(store);
  const auto read_all = [&] {
    for (std::uint64_t n = 0; n < kBlocks; ++n) {
      std::vector<std::byte> to(1'400);
      const StripedStore::BlockRead one{testing::key_of(n), to};
      ASSERT_TRUE(store->index().present(one.key));
      const auto handle = store->read({&one, 1}, base::kForever, 0, clock.now());
      ASSERT_TRUE(wait_for(*store, clock, handle, base::Nanos{30'000'000'000}, events));
      ASSERT_EQ(to, testing::block_of(n, 1'400)) << n;
    }
  };
  read_all();
  walk_to_the_end(*store, clock, WalkKind::kRebuild);
  EXPECT_EQ(store->counters().shards_repaired, kBlocks * 2);
  walk_to_the_end(*store, clock, WalkKind::kScrub);
  EXPECT_EQ(store->walk()->cursor().shards_bad, 0U);
  EXPECT_EQ(store->space().shards, kBlocks * 12);
  read_all();
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
