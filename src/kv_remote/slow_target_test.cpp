#include <gtest/gtest.h>
#include <poll.h>

#include "kv_remote/testing/local_server.h"
#include "kv_remote/testing/proxy.h"
#include "kv_store/store_wait.h"
#include "kv_store/striped_store.h"
#include "kv_store/testing/fleet.h"

namespace trimtab::kv_remote {
namespace {

using kv_store::StoreEvent;
using kv_store::StripedStore;
using kv_store::TargetId;
using kv_store::testing::block_of;
using kv_store::testing::key_of;
using testing::LocalServer;
using testing::Proxy;

/// Nothing in these tests ends because time passed: whoever waits for the silent one waits for ever.
constexpr base::Nanos kNever{3'600'000'000'000};

class Now final : public base::Clock {
 public:
  base::Nanos now() const override { return steady_now(); }
};

NetworkOptions patient(const std::string& server) {
  NetworkOptions options;
  options.server = server;
  options.request_timeout = options.question_timeout = kNever;
  options.follow_in_background = true;
  return options;
}

kv_target::Completion carry_out(NetworkTarget& target, const kv_target::Request& request) {
  target.submit({&request, 1});
  std::vector<kv_target::Completion> done;
  while (target.poll(done) == 0) {
    pollfd ready{target.wake_fd(), POLLIN, 0};
    ::poll(&ready, 1, 100);
  }
  return done.front();
}

kv_target::Request write_of(const kv_target::ShardName& name, std::span<const std::byte> content) {
  kv_target::Request request;
  request.verb = kv_target::Verb::kWrite;
  request.name = name;
  request.content = content;
  return request;
}

TEST(FollowInBackgroundTest, OnlyTheFirstAnswerOfAConnectionIsWaitedFor) {
  LocalServer server;
  Proxy proxy(server.address());
  auto target = std::move(*NetworkTarget::open(patient(proxy.address())));
  ASSERT_TRUE(target->wait_until_connected(base::Nanos{60'000'000'000}));
  auto writer = server.client();
  const std::vector<std::byte> bytes(100, std::byte{7});
  ASSERT_EQ(carry_out(*writer, write_of({key_of(1), 3}, bytes)).outcome, kv_target::Outcome::kDone);

  auto told = target->changes({}, 100);
  ASSERT_TRUE(told.has_value());
  ASSERT_EQ(told->changes.size(), 1U) << "who begins to follow knows all from the start";
  proxy.silent = true;
  ASSERT_EQ(carry_out(*writer, write_of({key_of(2), 4}, bytes)).outcome, kv_target::Outcome::kDone);
  for (int i = 0; i < 3; ++i) {
    const auto again = target->changes(told->next, 100);
    ASSERT_TRUE(again.has_value());
    EXPECT_TRUE(again->changes.empty());
    EXPECT_EQ(again->next, told->next);
  }
  proxy.silent = false;
  kv_target::Changes later = *told;
  for (later.changes.clear(); later.changes.empty();) {
    const auto answer = target->changes(later.next, 100);
    ASSERT_TRUE(answer.has_value());
    later = *answer;
    pollfd ready{target->wake_fd(), POLLIN, 0};
    ::poll(&ready, 1, 20);
  }
  ASSERT_EQ(later.changes.size(), 1U);
  EXPECT_EQ(later.changes[0].name, (kv_target::ShardName{key_of(2), 4}));
}

/// What was asked before, and is answered with what was so then, must not undo what the caller did since.
TEST(FollowInBackgroundTest, AnswersOlderThanOwnWritesAndErasesTellNothingOfThem) {
  LocalServer server;
  auto target = std::move(*NetworkTarget::open(patient(server.address())));
  ASSERT_TRUE(target->wait_until_connected(base::Nanos{60'000'000'000}));
  auto other = server.client();
  const auto first = target->changes({}, 100);
  ASSERT_TRUE(first.has_value());
  const std::vector<std::byte> bytes(100, std::byte{7});
  const kv_target::ShardName name{key_of(1), 0}, another{key_of(2), 0};
  kv_target::Request erase;
  erase.verb = kv_target::Verb::kErase;
  erase.name = name;
  ASSERT_EQ(carry_out(*target, write_of(name, bytes)).outcome, kv_target::Outcome::kDone);
  ASSERT_TRUE(target->changes(first->next, 100)->changes.empty()) << "asked now, answered with the put";
  ASSERT_EQ(carry_out(*target, erase).outcome, kv_target::Outcome::kDone);
  const auto after_erase = target->changes(first->next, 100);
  ASSERT_TRUE(after_erase.has_value());
  EXPECT_TRUE(after_erase->changes.empty()) << "the put from before the erase";
  ASSERT_TRUE(target->changes(after_erase->next, 100)->changes.empty())
      << "asked now, answered with the erase";
  ASSERT_EQ(carry_out(*target, write_of(name, bytes)).outcome, kv_target::Outcome::kDone);
  ASSERT_EQ(carry_out(*other, write_of(another, bytes)).outcome, kv_target::Outcome::kDone);
  kv_target::Cursor cursor = after_erase->next;
  for (bool seen = false; !seen;) {
    const auto answer = target->changes(cursor, 100);
    ASSERT_TRUE(answer.has_value());
    for (const kv_target::Change& change : answer->changes) {
      ASSERT_TRUE(change.name == another || change.bytes != 0) << "the erase from before the second write";
      seen |= change.name == another;
    }
    cursor = answer->next;
    pollfd ready{target->wake_fd(), POLLIN, 0};
    ::poll(&ready, 1, 20);
  }
}

/// Thirteen targets, some of them behind a proxy that can fall silent.
class SilentTargets : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kBlocks = 150;

  void open(std::uint32_t behind_proxies) {
    std::vector<std::unique_ptr<kv_target::Target>> targets;
    for (std::uint32_t i = 0; i < 13; ++i) {
      servers_.push_back(std::make_unique<LocalServer>());
      std::string address = servers_.back()->address();
      if (i < behind_proxies) {
        proxies_.push_back(std::make_unique<Proxy>(address));
        address = proxies_.back()->address();
      }
      auto target = NetworkTarget::open(patient(address));
      ASSERT_TRUE(target && (*target)->wait_until_connected(base::Nanos{60'000'000'000}));
      targets.push_back(std::move(*target));
    }
    kv_store::StoreOptions options;
    options.layout = kv_store::testing::layout_of({1'024, 1'024, 2'048});
    options.memory_bytes = 64ULL << 20;
    options.read_timeout = options.write_timeout = kNever;
    options.targets.request_timeout = options.targets.health.probe_timeout = kNever;
    store_ = std::move(*StripedStore::open(std::move(targets), options, steady_now()));
    for (std::uint64_t n = 0; n < kBlocks; ++n) {
      const auto block = block_of(n, 4'096);
      const auto handle = store_->write(key_of(n), block, base::kForever, steady_now());
      ASSERT_TRUE(kv_store::wait_for(*store_, clock_, handle, base::Nanos{60'000'000'000}, events_));
    }
    events_.clear();
  }

  void read_all() {
    std::vector<std::vector<std::byte>> to(kBlocks, std::vector<std::byte>(4'096));
    std::vector<StripedStore::BlockRead> reads;
    for (std::uint64_t n = 0; n < kBlocks; ++n) reads.push_back({key_of(n), to[n]});
    const auto handle = store_->read(reads, base::kForever, 0, steady_now());
    ASSERT_TRUE(kv_store::wait_for(*store_, clock_, handle, base::Nanos{120'000'000'000}, events_))
        << "somebody waits for a target that is silent";
    for (std::uint64_t n = 0; n < kBlocks; ++n) ASSERT_EQ(to[n], block_of(n, 4'096)) << n;
    events_.clear();
  }

  Now clock_;
  std::vector<std::unique_ptr<LocalServer>> servers_;
  std::vector<std::unique_ptr<Proxy>> proxies_;
  std::vector<StoreEvent> events_;
  std::unique_ptr<StripedStore> store_;
};

TEST_F(SilentTargets, ForOneNobodyWaits) {
  ASSERT_NO_FATAL_FAILURE(open(1));
  proxies_[0]->silent = true;
  ASSERT_NO_FATAL_FAILURE(read_all());
  EXPECT_EQ(store_->counters().reads, kBlocks);
  EXPECT_EQ(store_->counters().targets_died, 0U) << "all reads ended while it was still waited for";
  EXPECT_GT(store_->channels().requests_in_flight(), 0U) << "its answers are still out";
  ASSERT_NO_FATAL_FAILURE(read_all()) << "nor by later reads";
  proxies_[0]->silent = false;
}

TEST_F(SilentTargets, ForTwoTheTwelfthShardIsAskedForAsAHedge) {
  ASSERT_NO_FATAL_FAILURE(open(2));
  proxies_[0]->silent = proxies_[1]->silent = true;
  ASSERT_NO_FATAL_FAILURE(read_all());
  EXPECT_EQ(store_->counters().targets_died, 0U);
  EXPECT_GT(store_->counters().hedges, 0U) << "eleven were asked, nine of them answer";
  EXPECT_GT(store_->counters().reads_degraded, 0U);
  proxies_[0]->silent = proxies_[1]->silent = false;
}

}  // namespace
}  // namespace trimtab::kv_remote
