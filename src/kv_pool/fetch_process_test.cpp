// Fetch plans with real processes: engines and loaders that are killed in the middle.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <set>

#include "ipc/steady_clock.h"
#include "kv_code/coder.h"
#include "kv_pool/loader_process.h"
#include "kv_pool/pool_client.h"
#include "kv_pool/test_support.h"

namespace trimtab::kv_pool {
namespace {

using test::block_of;
using test::key;

constexpr std::uint64_t kBytes = 16'384;
constexpr std::uint32_t kLayers = 4;
constexpr base::Nanos kPatience{20'000'000'000};

class FetchProcess : public testing::Test {
 protected:
  void serve(std::uint64_t slots, std::uint32_t ring_entries = 64) {
    LoaderOptions options;
    options.socket_path = directory_.path("kv.sock");
    options.targets = {directory_.path("pool")};
    options.memory_bytes = slots * kBytes;
    options.file_bytes = 500 * kv_code::kShards * 4'096;
    options.kv.block_bytes = base::Bytes{kBytes};
    options.kv.layer_bytes.assign(kLayers, base::Bytes{kBytes / kLayers});
    options.ring_entries = ring_entries;
    loader_ = std::make_unique<test::LoaderProcess>(options);
  }
  PoolClient client() {
    auto connected = PoolClient::connect(directory_.path("kv.sock"), kPatience, {kBytes, kPatience});
    EXPECT_TRUE(connected) << base::to_string(connected.error());
    return std::move(*connected);
  }
  /// Blocks 0 to n - 1, and none of them in memory any more.
  void fill(std::uint64_t n) {
    auto pool = client();
    for (std::uint64_t i = 0; i < n; ++i) {
      ASSERT_TRUE(pool.put(key(i), block_of(key(i), kBytes)));
      ASSERT_TRUE(pool.flush());
    }
    loader_->end(SIGTERM);
    loader_->start();
  }
  static std::vector<BlockKey> keys(std::uint64_t n) {
    std::vector<BlockKey> all;
    for (std::uint64_t i = 0; i < n; ++i) all.push_back(key(i));
    return all;
  }
  /// Takes all blocks of a ticket for blocks 0 to n - 1; how many were right.
  static std::uint32_t copy_all(FetchTicket& ticket, std::uint32_t n) {
    std::vector<FetchTicket::Finished> blocks;
    std::vector<std::byte> block(kBytes);
    std::uint32_t right = 0;
    for (std::uint32_t over = 0; over < n;) {
      blocks.clear();
      if (!ticket.finished(blocks, kPatience) || blocks.empty()) break;
      for (const auto& one : blocks) {
        ++over;
        if (one.status && ticket.copy(one.block, block) && block == block_of(key(one.block), kBytes)) ++right;
      }
    }
    return right;
  }
  /// The loader sees the end of a connection, or a message, in its own time.
  template <class Condition>
  static PoolStats stats_when(PoolClient& pool, Condition&& condition) {
    auto stats = pool.stats();
    for (int i = 0; i < 2'000 && stats && !condition(*stats); ++i) {
      usleep(5'000);
      stats = pool.stats();
    }
    return stats ? *stats : PoolStats{};
  }

  test::TempDirectory directory_;
  std::unique_ptr<test::LoaderProcess> loader_;
};

// The arena has 8 slots, one user may hold 4 of them, the ring has 4 entries.
TEST_F(FetchProcess, APlanMuchLargerThanArenaAndRingComesWhole) {
  serve(8, 4);
  fill(60);
  auto pool = client();
  EXPECT_EQ(pool.fetch_blocks_most(), 4U);
  auto ticket = pool.fetch(keys(60));
  ASSERT_TRUE(ticket);
  EXPECT_EQ(copy_all(*ticket, 60), 60U);
  const PoolStats stats = stats_when(pool, [](const PoolStats& s) { return s.plans_open == 0; });
  EXPECT_EQ(stats.plans_open + stats.pins + stats.blocks_held, 0U);
  EXPECT_EQ(stats.store_reads, 60U);
}

TEST_F(FetchProcess, ALoaderThatWasRestartedIsFoundByTheFirstFetch) {
  serve(32);
  fill(10);
  auto pool = client();
  ASSERT_TRUE(pool.stats());
  loader_->end(SIGKILL);
  loader_->start();
  auto listens = client();  // waits until it does
  auto ticket = pool.fetch(keys(10));
  ASSERT_TRUE(ticket) << base::to_string(ticket.error());
  EXPECT_EQ(copy_all(*ticket, 10), 10U);
}

TEST_F(FetchProcess, TwoEnginesShareAHit) {
  serve(128);
  fill(30);
  std::vector<pid_t> children;
  for (int i = 0; i < 2; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      auto pool = client();
      auto ticket = pool.fetch(keys(30));
      _exit(ticket && copy_all(*ticket, 30) == 30 ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 0);
  }
  auto pool = client();
  EXPECT_EQ(pool.stats()->store_reads, 30U);
}

TEST_F(FetchProcess, AnEngineKilledInTheMiddleGivesItsLeasesBack) {
  serve(16);
  fill(20);
  auto pool = client();
  for (int i = 0; i < 4; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      auto mine = client();
      auto ticket = mine.fetch(keys(20));
      std::vector<FetchTicket::Finished> blocks;
      while (ticket && blocks.size() < 5)
        if (!ticket->finished(blocks, kPatience)) _exit(1);
      kill(getpid(), SIGKILL);
    }
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status));
  }
  const PoolStats stats = stats_when(pool, [](const PoolStats& s) { return s.clients == 1; });
  EXPECT_EQ(stats.clients, 1U);
  EXPECT_EQ(stats.plans_open + stats.pins + stats.blocks_held, 0U);
  auto ticket = pool.fetch(keys(20));
  EXPECT_EQ(copy_all(*ticket, 20), 20U);
}

TEST_F(FetchProcess, ALoaderThatDiesFailsEveryTicketAndIsFoundAgain) {
  serve(8);
  fill(20);
  auto pool = client();
  auto whole = pool.fetch(keys(20));
  auto by_layer = pool.fetch(keys(3));
  ASSERT_TRUE(whole && by_layer);
  std::vector<FetchTicket::Finished> blocks;
  while (blocks.empty()) ASSERT_TRUE(whole->finished(blocks, kPatience));
  loader_->end(SIGKILL);
  base::Status status;
  std::vector<FetchTicket::Finished> rest;
  while (status) status = whole->finished(rest, kPatience);
  EXPECT_EQ(status.error().code, base::Code::kUnavailable);
  std::vector<FetchTicket::Arrival> arrivals;
  EXPECT_EQ(by_layer->take(0, arrivals, kPatience).error().code, base::Code::kUnavailable);
  std::vector<std::byte> block(kBytes);
  EXPECT_EQ(whole->copy(blocks[0].block, block).error().code, base::Code::kUnavailable)
      << "nothing of the old arena is given out";
  // Nothing is left behind but what the pool keeps on purpose.
  for (const auto& file : std::filesystem::directory_iterator(directory_.path()))
    EXPECT_THAT(file.path().filename().string(),
                testing::AnyOf("pool", "kv.sock", "kv.sock.lives", "kv.sock.lock"));
  loader_->start();
  auto again = pool.fetch(keys(20));
  for (int i = 0; i < 3'000 && !again; ++i) {
    usleep(20'000);
    again = pool.fetch(keys(20));
  }
  ASSERT_TRUE(again);
  EXPECT_EQ(copy_all(*again, 20), 20U);
  whole = std::move(again);  // the old one's end must not touch the new connection's plans
  const PoolStats stats = stats_when(pool, [](const PoolStats& s) { return s.plans_open == 0; });
  EXPECT_EQ(stats.plans_open + stats.pins, 0U);
}

TEST_F(FetchProcess, ATicketThatIsDroppedCancelsItsPlan) {
  serve(8);
  fill(20);
  auto pool = client();
  {
    auto ticket = pool.fetch(keys(20));
    std::vector<FetchTicket::Finished> blocks;
    while (blocks.size() < 2) ASSERT_TRUE(ticket->finished(blocks, kPatience));
  }
  const PoolStats stats = stats_when(pool, [](const PoolStats& s) { return s.plans_open == 0; });
  EXPECT_EQ(stats.plans_open + stats.pins, 0U);
  EXPECT_EQ(stats.fetch_plans_cancelled, 1U);
}

TEST_F(FetchProcess, ADeadlineThatPassesEndsThePlanAndNothingElse) {
  serve(8);
  fill(10);
  auto pool = client();
  const ipc::SteadyClock clock;
  auto hoarder = pool.fetch(keys(4));  // all that this user may hold
  std::vector<FetchTicket::Finished> held;
  while (held.size() < 4) ASSERT_TRUE(hoarder->finished(held, kPatience));
  auto late = pool.fetch(keys(10), clock.now() + base::Nanos{50'000'000});
  std::vector<FetchTicket::Finished> blocks;
  while (blocks.size() < 10) ASSERT_TRUE(late->finished(blocks, kPatience));
  for (const auto& one : blocks) EXPECT_EQ(one.status.error().code, base::Code::kDeadlineExceeded);
  std::vector<FetchTicket::Arrival> arrivals;
  EXPECT_EQ(late->take(0, arrivals, kPatience).error().code, base::Code::kDeadlineExceeded);
  std::vector<std::byte> block(kBytes);
  for (const auto& one : held) EXPECT_TRUE(hoarder->copy(one.block, block));
  EXPECT_EQ(pool.stats()->fetch_plans_late, 1U);
}

TEST_F(FetchProcess, EveryLayerIsGivenOnceForEveryBlock) {
  serve(64);
  fill(25);
  auto pool = client();
  auto ticket = pool.fetch(keys(25));
  ASSERT_TRUE(ticket);
  EXPECT_EQ(ticket->layers(), kLayers);
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
    std::set<std::uint32_t> seen;
    while (seen.size() < 25) {
      std::vector<FetchTicket::Arrival> arrivals;
      ASSERT_TRUE(ticket->take(layer, arrivals, kPatience));
      ASSERT_FALSE(arrivals.empty());
      for (const auto& one : arrivals) {
        EXPECT_TRUE(seen.insert(one.block).second) << one.block;
        const auto right = block_of(key(one.block), kBytes);
        const std::size_t offset = layer * kBytes / kLayers;
        EXPECT_EQ(std::memcmp(one.bytes + offset, right.data() + offset, kBytes / kLayers), 0);
      }
    }
  }
  std::vector<FetchTicket::Arrival> none;
  ASSERT_TRUE(ticket->take(0, none, base::Nanos{1'000'000}));
  EXPECT_TRUE(none.empty());
}

TEST_F(FetchProcess, DamageInTheArenaIsFoundByTheCopyAndWithdrawn) {
  serve(8);
  auto pool = client();
  ASSERT_TRUE(pool.put(key(0), block_of(key(0), kBytes)));
  auto ticket = pool.fetch(keys(1));
  std::vector<FetchTicket::Arrival> arrivals;
  ASSERT_TRUE(ticket->take(kLayers - 1, arrivals, kPatience));
  ASSERT_EQ(arrivals.size(), 1U);
  const_cast<std::byte*>(arrivals[0].bytes)[99] ^= std::byte{1};
  std::vector<FetchTicket::Finished> blocks;
  ASSERT_TRUE(ticket->finished(blocks, kPatience));
  std::vector<std::byte> block(kBytes);
  EXPECT_EQ(ticket->copy(0, block).error().code, base::Code::kDataLoss);
  EXPECT_EQ(pool.stats()->corrupt, 1U);
}

}  // namespace
}  // namespace trimtab::kv_pool
