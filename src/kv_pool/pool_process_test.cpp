// The pool with real processes: loaders and users that are killed, stopped and restarted.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "ipc/channel.h"
#include "ipc/steady_clock.h"
#include "kv_code/coder.h"
#include "kv_pool/loader_process.h"
#include "kv_pool/pool_client.h"
#include "kv_pool/pool_link.h"
#include "kv_pool/protocol.h"
#include "kv_pool/test_support.h"

namespace trimtab::kv_pool {
namespace {

using test::block_of;
using test::key;

constexpr std::uint64_t kBytes = 20'000;
constexpr base::Nanos kPatience{10'000'000'000};

class PoolProcess : public testing::Test {
 protected:
  void serve(std::uint64_t memory_slots, std::uint64_t file_slots) {
    LoaderOptions options;
    options.socket_path = directory_.path("kv.sock");
    if (file_slots > 0) options.targets = {directory_.path("pool")};
    options.memory_bytes = memory_slots * 20'480;
    options.file_bytes = file_slots * kv_code::kShards * 4'096;
    options.kv.block_bytes = base::Bytes{kBytes};
    options.eviction = "lru";
    loader_ = std::make_unique<test::LoaderProcess>(options);
  }
  void restart(int signal) {
    loader_->end(signal);
    loader_->start();
  }
  PoolClient client(ClientOptions options = {}) {
    auto connected = PoolClient::connect(directory_.path("kv.sock"), kPatience, options);
    EXPECT_TRUE(connected) << base::to_string(connected.error());
    return std::move(*connected);
  }
  static base::Status put(PoolClient& pool, std::uint64_t n) {
    return pool.put(key(n), block_of(key(n), kBytes));
  }
  /// kOk only with the right content.
  static base::Status get(PoolClient& pool, std::uint64_t n) {
    std::vector<std::byte> block(kBytes);
    auto got = pool.get(key(n), block);
    EXPECT_TRUE(!got || block == block_of(key(n), kBytes)) << "wrong content for key " << n;
    return got;
  }
  static base::Code code(const base::Status& status) {
    EXPECT_FALSE(status);
    return status ? base::Code::kInternal : status.error().code;
  }

  test::TempDirectory directory_;
  std::unique_ptr<test::LoaderProcess> loader_;
};

TEST_F(PoolProcess, WhatOneProcessPutsAnotherGets) {
  serve(8, 8);
  auto mine = client();
  auto other = client({kBytes});
  EXPECT_EQ(other.block_bytes(), kBytes);
  for (std::uint64_t n = 0; n < 3; ++n) ASSERT_TRUE(put(mine, n));
  const std::vector<BlockKey> chain = {key(0), key(1), key(2), key(3)};
  const auto before = other.match(chain);
  ASSERT_TRUE(before);
  EXPECT_EQ(before->blocks, 3U);
  for (std::uint64_t n = 0; n < 3; ++n) EXPECT_TRUE(get(other, n));
  EXPECT_EQ(code(get(other, 3)), base::Code::kNotFound);
  ASSERT_TRUE(put(other, 3));
  const auto after = mine.match(chain, false);
  EXPECT_EQ(after->blocks, 4U);
  EXPECT_GT(after->epoch, before->epoch);
  const auto stats = mine.stats();
  ASSERT_TRUE(stats);
  EXPECT_EQ(stats->clients, 2U);
  EXPECT_EQ(stats->blocks_hit, 3U);
  EXPECT_EQ(stats->blocks_missed, 1U);
  EXPECT_EQ(stats->pins, 0U);
  EXPECT_NE(to_json(*stats).find("\"puts_stored\": 4, "), std::string::npos) << to_json(*stats);
}

TEST_F(PoolProcess, AnOrderlyStopMakesEverythingDurable) {
  serve(8, 16);
  auto pool = client();
  for (std::uint64_t n = 0; n < 6; ++n) ASSERT_TRUE(put(pool, n));
  EXPECT_EQ(loader_->end(SIGTERM), 0);
  loader_->start();
  auto again = client();
  for (std::uint64_t n = 0; n < 6; ++n) EXPECT_TRUE(get(again, n));
}

// The loader is killed at random moments while blocks are put and flushed. After each restart every block
// that a flush confirmed is there, whatever else is there is right, and what was never put is not there.
TEST_F(PoolProcess, KilledAtRandomMoments) {
  const std::uint64_t seed = testing::UnitTest::GetInstance()->random_seed() + 7U;
  RecordProperty("seed", static_cast<int>(seed));
  base::Prng prng(seed);
  serve(6, 2'000);
  std::set<std::uint64_t> durable;
  std::uint64_t next = 0;
  std::uint64_t found_undurable = 0;
  // On a busy machine a round may be killed before it proves much: then there are more of them.
  for (int round = 0; round < 15 || (round < 100 && durable.size() <= 20); ++round) {
    auto pool = client();
    for (std::uint64_t n = 0; n < next + 3; ++n) {
      const std::vector<BlockKey> one = {key(n)};
      const auto match = pool.match(one);
      ASSERT_TRUE(match);
      if (durable.contains(n)) {
        EXPECT_EQ(match->blocks, 1U) << "lost durable block " << n << ", seed " << seed;
      }
      if (n >= next) {
        EXPECT_EQ(match->blocks, 0U) << "block " << n << " was never put";
      }
      if (match->blocks == 0) continue;
      EXPECT_TRUE(get(pool, n)) << "phantom block " << n << ", seed " << seed;
      if (!durable.contains(n)) ++found_undurable;
    }
    EXPECT_EQ(pool.stats()->corrupt, 0U);
    ASSERT_EQ(pool.stats()->file_evictions, 0U) << "the test itself asks too much";
    const pid_t killer = fork();
    if (killer == 0) {
      // Later and later, until on this machine at this time something has become durable before.
      usleep(static_cast<useconds_t>(prng.below(30'000 + 5'000 * static_cast<std::uint64_t>(round))));
      kill(loader_->pid(), SIGKILL);
      _exit(0);
    }
    prng.next();
    std::vector<std::uint64_t> unconfirmed;
    const std::uint64_t round_end = next + 100;  // so that all rounds fit the file and nothing is evicted
    while (next < round_end) {
      const auto stored = put(pool, next);
      if (!stored && stored.error().code == base::Code::kUnavailable) {
        ++next;  // it may be there or not
        break;
      }
      if (stored) unconfirmed.push_back(next++);
      if (prng.below(4) == 0 || !stored) {
        if (!pool.flush()) break;
        durable.insert(unconfirmed.begin(), unconfirmed.end());
        unconfirmed.clear();
      }
    }
    waitpid(killer, nullptr, 0);
    restart(SIGKILL);
  }
  EXPECT_GT(durable.size(), 20U) << "the kills came too early to prove anything";
  RecordProperty("blocks found that no flush had confirmed", static_cast<int>(found_undurable));
}

/// A user that dies while it holds a grant and a pin.
TEST_F(PoolProcess, AUserKilledMidPutLeavesNoEntryAndNoPin) {
  serve(2, 0);
  auto pool = client();
  ASSERT_TRUE(put(pool, 1));
  for (int i = 0; i < 5; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      auto channel = ipc::Channel::connect(directory_.path("kv.sock"), kPatience);
      const auto ask = [&](const auto& message) {
        return channel->send(wire::to_frame(message)) && channel->receive(kPatience).has_value();
      };
      const bool held =
          ask(protocol::Hello{}) && ask(protocol::Get{key(1)}) && ask(protocol::Put{key(2), 0, {}});
      if (held) kill(getpid(), SIGKILL);
      _exit(1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status));
  }
  // The socket's end may be seen after this question is; the next turn of the loader has seen it.
  auto stats = pool.stats();
  for (int i = 0; i < 100 && stats->clients > 1; ++i) stats = pool.stats();
  EXPECT_EQ(stats->clients, 1U);
  EXPECT_EQ(stats->pins, 0U);
  EXPECT_EQ(stats->puts_abandoned, 5U);
  EXPECT_EQ(pool.match(std::vector{key(2)})->blocks, 0U);
  ASSERT_TRUE(put(pool, 2));
  ASSERT_TRUE(put(pool, 3)) << "the block that the dead had pinned can go";
  EXPECT_TRUE(get(pool, 3));
}

TEST_F(PoolProcess, DamagedMemoryIsAMissCountedOnce) {
  serve(4, 0);
  auto pool = client();
  ASSERT_TRUE(put(pool, 1));
  auto other = PoolLink::dial(directory_.path("kv.sock"), 0, kPatience, kPatience);
  ASSERT_TRUE(other);
  (*other)->slot(0)->data()[777] ^= std::byte{4};
  EXPECT_EQ(code(get(pool, 1)), base::Code::kDataLoss);
  EXPECT_EQ(code(get(pool, 1)), base::Code::kNotFound);
  EXPECT_EQ(pool.stats()->corrupt, 1U);
  ASSERT_TRUE(put(pool, 1));
  EXPECT_TRUE(get(pool, 1));
}

// The disk fills up while serving: memory-only from then on, counted; nothing durable is lost.
TEST_F(PoolProcess, ADiskThatTakesNoMoreTurnsThePoolMemoryOnly) {
  serve(4, 8);
  auto pool = client();
  ASSERT_TRUE(put(pool, 1));
  ASSERT_TRUE(pool.flush());
  const rlimit none{0, 0};
  ASSERT_EQ(prlimit(loader_->pid(), RLIMIT_FSIZE, &none, nullptr), 0);
  ASSERT_TRUE(put(pool, 2));
  EXPECT_EQ(code(pool.flush()), base::Code::kIo);
  for (std::uint64_t n = 3; n < 10; ++n) EXPECT_TRUE(put(pool, n)) << "memory evicts as usual";
  EXPECT_TRUE(get(pool, 9));
  EXPECT_EQ(pool.match(std::vector{key(2)})->blocks, 0U) << "gone with its memory (LMCache#4991)";
  EXPECT_TRUE(get(pool, 1)) << "from the file, which can still be read";
  const auto stats = pool.stats();
  EXPECT_EQ(stats->memory_only, 1U);
  EXPECT_EQ(stats->file_errors, 1U) << "the disk is not asked again for every block";
  EXPECT_EQ(stats->dirty_entries, 0U);
  restart(SIGKILL);
  auto again = client();
  EXPECT_TRUE(get(again, 1));
  EXPECT_EQ(code(get(again, 2)), base::Code::kNotFound);
}

// The loader's own log lies on the disk that is full: it cannot say so, and goes on all the same.
TEST_F(PoolProcess, ADiskThatTakesNotEvenTheComplaintEndsNothing) {
  const int screen = dup(STDERR_FILENO);
  const int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
  ASSERT_GE(full, 0);
  dup2(full, STDERR_FILENO);
  serve(4, 8);
  dup2(screen, STDERR_FILENO);
  close(full);
  close(screen);
  auto pool = client();
  ASSERT_TRUE(put(pool, 1));
  ASSERT_TRUE(pool.flush());
  const rlimit none{0, 0};
  ASSERT_EQ(prlimit(loader_->pid(), RLIMIT_FSIZE, &none, nullptr), 0);
  ASSERT_TRUE(put(pool, 2));
  EXPECT_EQ(code(pool.flush()), base::Code::kIo);
  EXPECT_TRUE(get(pool, 2));
  EXPECT_EQ(loader_->end(SIGTERM), 0);
}

// One timeout, then failures at once; and the pool is used again when it answers again.
TEST_F(PoolProcess, AStoppedLoaderCostsOneTimeout) {
  serve(4, 0);
  ClientOptions options;
  options.timeout = base::Nanos{200'000'000};
  auto pool = client(options);
  ASSERT_TRUE(put(pool, 1));
  kill(loader_->pid(), SIGSTOP);
  const ipc::SteadyClock clock;
  const base::Nanos begin = clock.now();
  EXPECT_EQ(code(get(pool, 1)), base::Code::kUnavailable);
  const base::Nanos one = clock.now() - begin;
  EXPECT_GE(one, options.timeout);
  const base::Nanos later = clock.now();
  for (int i = 0; i < 100; ++i) EXPECT_EQ(code(put(pool, 2)), base::Code::kUnavailable);
  EXPECT_LT(clock.now() - later, options.timeout * 50) << "a hundred calls, hardly any of which waits";
  kill(loader_->pid(), SIGCONT);
  base::Status got = get(pool, 1);
  for (int i = 0; i < 3'000 && !got; ++i) {
    usleep(20'000);
    got = get(pool, 1);
  }
  EXPECT_TRUE(got);
}

TEST_F(PoolProcess, ARestartedLoaderIsFound) {
  serve(4, 8);
  auto pool = client();
  ASSERT_TRUE(put(pool, 1));
  ASSERT_TRUE(pool.flush());
  const auto before = pool.match(std::vector{key(1)});
  restart(SIGKILL);
  base::Status got = get(pool, 1);
  EXPECT_FALSE(got) << "the first call learns that the loader is gone";
  for (int i = 0; i < 3'000 && !got; ++i) {
    usleep(20'000);
    got = get(pool, 1);
  }
  EXPECT_TRUE(got);
  EXPECT_GT(pool.match(std::vector{key(1)})->epoch, before->epoch);
}

// Whoever withdraws what an answer claimed names its epoch: one of a later life must be larger, whatever a
// clock says, and however much was changed in the life before.
TEST_F(PoolProcess, EpochsGrowAcrossRestarts) {
  serve(2, 0);
  std::uint64_t before = 0;
  for (std::uint64_t life = 0; life < 3; ++life) {
    auto pool = client();
    const auto grows = [&] {
      const auto match = pool.match(std::vector<BlockKey>{key(1)});
      ASSERT_TRUE(match);
      EXPECT_GT(match->epoch, before) << "life " << life;
      EXPECT_EQ(match->epoch >> 42, life + 1) << "from the counter of lives, not from a clock";
      before = match->epoch;
    };
    grows();
    for (std::uint64_t n = 0; n < 20; ++n) {
      ASSERT_TRUE(put(pool, n));  // each pushes another out
      grows();
    }
    restart(life == 0 ? SIGKILL : SIGTERM);
  }
}

TEST_F(PoolProcess, StrangersAreRefusedAndHarmNobody) {
  serve(4, 0);
  auto pool = client();
  ASSERT_TRUE(put(pool, 1));
  const auto other = PoolClient::connect(directory_.path("kv.sock"), kPatience, {kBytes + 1});
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code, base::Code::kInvalidArgument);
  EXPECT_NE(other.error().message.find("blocks of 20000 bytes, this process has blocks of 20001"),
            std::string::npos);
  const std::vector<ipc::Frame> nonsense = {
      {999, {}},
      wire::to_frame(protocol::Commit{0, 0}),
      wire::to_frame(protocol::Unpin{0, 1}),
      wire::to_frame(protocol::Unpin{4'000'000'000U, 1}),
      wire::to_frame(protocol::Fetch{1, {}, 0, 0}),
      {static_cast<std::uint16_t>(protocol::Match::kType), {std::byte{9}}}};
  for (const bool polite : {false, true}) {
    for (const ipc::Frame& frame : nonsense) {
      auto channel = ipc::Channel::connect(directory_.path("kv.sock"), kPatience);
      if (polite) {
        ASSERT_TRUE(channel->send(wire::to_frame(protocol::Hello{})));
        ASSERT_TRUE(channel->receive(kPatience));
      }
      ASSERT_TRUE(channel->send(frame));
      const auto answer = channel->receive(kPatience);
      EXPECT_FALSE(answer) << "the connection is closed";
    }
  }
  EXPECT_TRUE(get(pool, 1));
  std::vector<std::byte> small(10);
  EXPECT_EQ(code(pool.get(key(1), small)), base::Code::kInvalidArgument);
}

// Four processes, more blocks than memory holds: everyone always reads the right content.
TEST_F(PoolProcess, ManyUsersOfAFewSlots) {
  serve(5, 20);
  std::vector<pid_t> children;
  for (std::uint64_t child = 0; child < 4; ++child) {
    const pid_t pid = fork();
    if (pid == 0) {
      auto pool = client();
      base::Prng prng(child);
      int hits = 0;
      for (int i = 0; i < 400; ++i) {
        const std::uint64_t n = prng.below(15);
        if (const auto got = get(pool, n)) {
          ++hits;
        } else if (got.error().code == base::Code::kNotFound) {
          const auto stored = put(pool, n);
          if (!stored && stored.error().code != base::Code::kResourceExhausted) _exit(3);
        } else if (got.error().code != base::Code::kResourceExhausted) {
          _exit(4);
        }
      }
      _exit(testing::Test::HasFailure() ? 1 : hits > 100 ? 0 : 2);
    }
    children.push_back(pid);
  }
  for (const pid_t pid : children) {
    int status = 0;
    waitpid(pid, &status, 0);
    EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 0);
  }
  auto pool = client();
  // Where the disk was slow, blocks found no slot: then the first five kept theirs until now.
  for (std::uint64_t n = 0; n < 15; ++n)
    if (!put(pool, n)) {
      ASSERT_TRUE(pool.flush());
      ASSERT_TRUE(put(pool, n));
    }
  ASSERT_TRUE(pool.flush());
  const auto stats = pool.stats();
  EXPECT_EQ(stats->pins, 0U);
  EXPECT_EQ(stats->corrupt, 0U);
  EXPECT_EQ(stats->file_entries, 15U);
}

}  // namespace
}  // namespace trimtab::kv_pool
