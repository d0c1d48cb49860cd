// A process that is stopped (SIGSTOP, a suspended machine, a debugger) finds its clock far ahead when it goes
// on: every deadline has passed, and answers that came meanwhile wait to be told.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "kv_store/testing/fleet.h"

namespace trimtab::kv_store {
namespace {

using namespace testing;  // the fleet's

constexpr base::Nanos kHour{3'600'000'000'000};

/// Blocks 0 to 19 are there; reads of them and writes of 100 to 109 are under way.
class Standstill : public ::testing::Test {
 protected:
  void begin(base::Nanos deadline) {
    for (std::uint64_t n = 0; n < 20; ++n) ASSERT_EQ(fleet_.write(n), Kind::kWritten);
    for (std::uint64_t n = 0; n < 20; ++n) {
      bytes_[n].resize(fleet_.block_bytes());
      const StripedStore::BlockRead one{key_of(n), bytes_[n]};
      reads_[fleet_.store->read({&one, 1}, deadline, 0, fleet_.now)] = n;
    }
    for (std::uint64_t n = 100; n < 110; ++n) {
      bytes_[n] = block_of(n, fleet_.block_bytes());
      writes_[fleet_.store->write(key_of(n), bytes_[n], deadline, fleet_.now)] = n;
    }
    fleet_.store->poll(fleet_.now, fleet_.events);
    ASSERT_GT(fleet_.store->channels().requests_in_flight(), 12U * 30U);
  }
  void expect_all_done() {
    for (const auto& [handle, n] : reads_) {
      EXPECT_EQ(fleet_.wait(handle).kind, Kind::kRead) << n;
      EXPECT_EQ(bytes_[n], block_of(n, fleet_.block_bytes())) << n;
    }
    for (const auto& [handle, n] : writes_) EXPECT_EQ(fleet_.wait(handle).kind, Kind::kWritten) << n;
    for (std::uint64_t n = 100; n < 110; ++n) EXPECT_EQ(fleet_.read(n), block_of(n, fleet_.block_bytes()));
    EXPECT_EQ(fleet_.store->counters().targets_died, 0U);
    EXPECT_EQ(fleet_.store->channels().counters().timeouts, 0U);
  }

  Fleet fleet_{12};
  std::map<std::uint64_t, std::vector<std::byte>> bytes_;
  std::map<StripedStore::Handle, std::uint64_t> reads_, writes_;
};

TEST_F(Standstill, WhatArrivedMeanwhileCountsBeforeAnyDeadlineDoes) {
  begin(base::kForever);  // 5 s for reads, 10 s for writes
  fleet_.now += kHour;
  for (auto* target : fleet_.targets) target->set_time(fleet_.now);
  fleet_.store->poll(fleet_.now, fleet_.events);
  const auto ends = std::ranges::count_if(fleet_.events, [](const StoreEvent& event) { return event.last; });
  EXPECT_EQ(ends, 30) << "one poll tells all of it";
  expect_all_done();
}

TEST_F(Standstill, TargetsAreNotBlamedForIt) {
  begin(fleet_.now + kHour);
  fleet_.now += kSecond * 600;  // 12,000 request timeouts, and no answer is there yet
  fleet_.store->poll(fleet_.now, fleet_.events);
  for (TargetId id = 0; id < 12; ++id)
    EXPECT_EQ(fleet_.store->channels().health(id), TargetHealth::State::kAlive) << id;
  expect_all_done();
  for (TargetId id = 0; id < 12; ++id) {
    const base::Nanos slowest = fleet_.store->channels().latency(id).quantile(1'000, base::Nanos{0});
    EXPECT_LT(slowest, base::Nanos{50'000'000}) << "later hedges would wait for it";
  }
}

TEST_F(Standstill, WhatIsLateAllTheSameFailsAndHarmsNobodyElse) {
  begin(base::kForever);
  fleet_.now += kHour;  // no answer is there yet
  fleet_.store->poll(fleet_.now, fleet_.events);
  for (const auto& [handle, n] : reads_) EXPECT_EQ(fleet_.wait(handle).kind, Kind::kReadFailed) << n;
  for (const auto& [handle, n] : writes_) EXPECT_EQ(fleet_.wait(handle).kind, Kind::kWriteFailed) << n;
  fleet_.pass(kSecond);  // and late answers change nothing
  EXPECT_EQ(fleet_.store->counters().targets_died, 0U);
  for (std::uint64_t n = 0; n < 20; ++n) EXPECT_EQ(fleet_.read(n), block_of(n, fleet_.block_bytes()));
  for (std::uint64_t n = 100; n < 110; ++n) {
    EXPECT_EQ(fleet_.read(n), std::nullopt);
    EXPECT_EQ(fleet_.write(n), Kind::kWritten);
    EXPECT_EQ(fleet_.read(n), block_of(n, fleet_.block_bytes()));
  }
}

TEST(StandstillTest, ASilentTargetIsFoundByAnOwnerThatPollsSeldom) {
  StoreOptions options = Fleet::small();
  options.feed_interval = kHour;  // whose questions would find it, too
  Fleet fleet(12, options);
  fleet.targets[3]->faults.hung = true;
  std::vector<std::vector<std::byte>> blocks;
  for (std::uint64_t n = 0; n < 5; ++n) blocks.push_back(block_of(n, fleet.block_bytes()));
  for (std::uint64_t n = 0; n < 5; ++n)
    fleet.store->write(key_of(n), blocks[n], fleet.now + kHour, fleet.now);
  for (int i = 0; i < 10 && fleet.store->counters().targets_died == 0; ++i) {
    fleet.store->poll(fleet.now, fleet.events);
    fleet.now += kSecond;  // twenty times what a request may take
    for (auto* target : fleet.targets) target->set_time(fleet.now);
  }
  EXPECT_EQ(fleet.store->counters().targets_died, 1U);
  EXPECT_FALSE(fleet.store->channels().usable(3));
  EXPECT_GE(fleet.store->channels().counters().timeouts, 3U);
}

}  // namespace
}  // namespace trimtab::kv_store
