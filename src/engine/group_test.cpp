#include "engine/group.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>

#include "base/prng.h"

namespace trimtab::engine {
namespace {

constexpr base::Nanos kPatience{10'000'000'000};

class GroupTest : public testing::Test {
 protected:
  void SetUp() override { path_ = "/dev/shm/trimtab-group-test-" + std::to_string(getpid()); }
  void TearDown() override { ipc::Segment::remove(path_); }

  /// Runs `body` as every rank in a process of its own; the exit codes.
  std::vector<pid_t> spawn(std::uint32_t ranks, const std::function<int(Group&)>& body,
                           GroupShape shape = {}) {
    shape.ranks = ranks;
    shape.experts = 4;
    shape.hidden = 32;
    std::vector<pid_t> children;
    for (std::uint32_t r = 0; r < ranks; ++r) {
      const pid_t child = fork();
      if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        auto group = Group::join(path_, r, shape, kPatience);
        int code = 100;
        if (group) code = body(*group);
        if (group && code == 0) group->leave();
        group = base::fail(base::Code::kInternal, "");  // the destructor runs
        _exit(code);
      }
      children.push_back(child);
    }
    return children;
  }
  static int reap(pid_t child) {
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  std::string path_;
};

TEST_F(GroupTest, GathersEveryRanksValuesAThousandTimes) {
  for (const std::uint32_t ranks : {1U, 2U, 3U, 5U}) {
    const auto children = spawn(ranks, [ranks](Group& group) {
      base::Prng prng(group.rank());
      for (std::int64_t step = 0; step < 1000; ++step) {
        if (prng.below(50) == 0) usleep(100);
        auto all = group.all_gather({step, group.rank(), -step, step * group.rank()});
        if (!all || all->size() != ranks) return 1;
        for (std::uint32_t r = 0; r < ranks; ++r) {
          if ((*all)[r] != Group::Values{step, r, -step, step * r}) return 2;
        }
      }
      return 0;
    });
    for (const pid_t child : children) EXPECT_EQ(reap(child), 0) << ranks << " ranks";
  }
}

TEST_F(GroupTest, WhatIsWrittenBeforeABarrierIsReadAfterIt) {
  const auto children = spawn(3, [](Group& group) {
    for (int step = 0; step < 300; ++step) {
      float* mine = group.inputs() + group.rank() * 32;
      for (int i = 0; i < 32; ++i)
        mine[i] = static_cast<float>(step * 100) + static_cast<float>(group.rank());
      if (!group.barrier()) return 1;
      for (std::uint32_t r = 0; r < 3; ++r)
        for (std::uint32_t i = 0; i < 32; ++i)
          if (group.inputs()[r * 32 + i] != static_cast<float>(step * 100) + static_cast<float>(r)) return 2;
      group.outputs(3)[group.rank()] = static_cast<float>(step);
      if (!group.barrier()) return 1;
      for (std::uint32_t r = 0; r < 3; ++r)
        if (group.outputs(3)[r] != static_cast<float>(step)) return 3;
    }
    return 0;
  });
  for (const pid_t child : children) EXPECT_EQ(reap(child), 0);
}

TEST_F(GroupTest, ADeadRankEndsTheWaitsOfItsPeers) {
  const auto children = spawn(3, [](Group& group) {
    if (group.rank() == 1) {
      if (!group.barrier()) return 9;
      pause();
    }
    if (!group.barrier()) return 9;
    return group.barrier() ? 8 : 42;  // rank 1 never comes
  });
  usleep(200'000);
  kill(children[1], SIGKILL);
  EXPECT_EQ(reap(children[0]), 42);
  EXPECT_EQ(reap(children[2]), 42);
  reap(children[1]);
}

TEST_F(GroupTest, ARankThatGivesUpEndsSleepersToo) {
  const auto children = spawn(2, [](Group& group) {
    if (group.rank() == 1) return 7;  // leaves without agreement
    return group.sleep(group.doorbell()) ? (group.barrier() ? 8 : 42) : 42;
  });
  EXPECT_EQ(reap(children[1]), 7);
  EXPECT_EQ(reap(children[0]), 42);
}

TEST_F(GroupTest, ABarrierEveryoneReachedHoldsThoughAPeerLeavesRightAfterIt) {
  for (int round = 0; round < 50; ++round) {
    const auto children = spawn(3, [](Group& group) {
      if (group.rank() == 0) usleep(2'000);  // the others have parked by now
      if (!group.barrier()) return 9;
      return 7;  // leaves without agreement, at once
    });
    for (const pid_t child : children) EXPECT_EQ(reap(child), 7);
  }
}

TEST_F(GroupTest, TheDoorbellWakesEveryone) {
  const auto children = spawn(3, [](Group& group) {
    const std::uint32_t seen = group.doorbell();
    if (!group.barrier()) return 1;
    if (group.rank() == 2) {
      usleep(50'000);
      group.ring();
    }
    return group.sleep(seen) ? 0 : 2;
  });
  for (const pid_t child : children) EXPECT_EQ(reap(child), 0);
}

TEST_F(GroupTest, AStaleFileIsNotJoined) {
  GroupShape shape{2, 4, 32};
  const pid_t dead = fork();
  if (dead == 0) {  // a creator that died: its file stays
    (void)Group::join(path_, 0, shape, base::Nanos{1'000'000});
    _exit(0);
  }
  reap(dead);
  auto late = Group::join(path_, 1, shape, base::Nanos{100'000'000});
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, base::Code::kUnavailable);
}

TEST_F(GroupTest, RanksOfDifferentShapesDoNotMeet) {
  const pid_t first = fork();
  if (first == 0) _exit(Group::join(path_, 0, {2, 4, 32}, base::Nanos{2'000'000'000}) ? 0 : 5);
  auto other = Group::join(path_, 1, {2, 4, 64}, kPatience);
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code, base::Code::kInvalidArgument);
  EXPECT_NE(other.error().message.find("hidden 64"), std::string::npos);
  EXPECT_EQ(reap(first), 5);
}

}  // namespace
}  // namespace trimtab::engine
