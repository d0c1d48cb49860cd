#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include "engine/rank_harness.h"
#include "engine/tiny_gguf.h"

namespace trimtab::engine {
namespace {

using model::RequestId;

/// How the processes of a group live and die; `rank_test.cpp` holds what they compute.
class RankLifeTest : public testing::Test {
 protected:
  void SetUp() override {
    path_ = testing::TempDir() + "/life-" + std::to_string(getpid()) + ".gguf";
    ASSERT_TRUE(TinyGguf().write(path_));
    setup_.model_path = path_;
    setup_.pool = false;
  }
  void TearDown() override { std::filesystem::remove(path_); }
  static std::vector<std::int32_t> tokens(std::size_t count, std::int32_t first) {
    std::vector<std::int32_t> ids(count);
    for (std::size_t i = 0; i < count; ++i) ids[i] = static_cast<std::int32_t>(i * 37 % 600) + first;
    return ids;
  }
  std::string path_;
  RankHarness::Setup setup_;
};

double processor_seconds(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string text((std::istreambuf_iterator<char>(stat)), {});
  std::istringstream fields(text.substr(text.rfind(')') + 2));
  std::string skipped;
  for (int i = 0; i < 11; ++i) fields >> skipped;
  long user = 0, system = 0;
  fields >> user >> system;
  return static_cast<double>(user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

TEST_F(RankLifeTest, IdleGroupsSleep) {
  setup_.prefill_ranks = setup_.decode_ranks = 2;
  RankHarness harness(setup_);
  ASSERT_TRUE(harness.start());
  RankHarness::Ask ask;
  ask.tokens = tokens(50, 1);
  ASSERT_EQ(harness.run(RequestId{1}, ask).failure, "");
  std::vector<RankHarness::Place> places = {RankHarness::prefill(0), RankHarness::prefill(1),
                                            RankHarness::decode(0), RankHarness::decode(1)};
  double used = 1;
  // They store a block first, when they come to it.
  for (int looks = 0; looks < 30 && used > 0.04; ++looks) {
    double before = 0, after = 0;
    for (const auto& place : places) before += processor_seconds(harness.pid(place));
    usleep(1'000'000);
    for (const auto& place : places) after += processor_seconds(harness.pid(place));
    used = after - before;
  }
  EXPECT_LE(used, 0.04) << "four idle ranks used the processor for a second";
  EXPECT_EQ(harness.run(RequestId{2}, ask).failure, "") << "and they wake again";
}

TEST_F(RankLifeTest, ARankThatWaitsForItsPeersCanBeStopped) {
  const std::string shm = "/dev/shm/trimtab-lonely-" + std::to_string(getpid());
  std::filesystem::create_directories(shm);
  RankOptions options;
  options.config.prefill.kv_blocks = 1;
  options.profile.context_limit = base::TokenCount{2048};
  options.model_path = path_;
  options.runtime_dir = options.shm_dir = shm;
  const pid_t child = fork();
  if (child == 0) _exit(run_rank(options));  // one of two ranks: the other never comes
  while (!std::filesystem::exists(shm + "/group-p0")) usleep(1'000);
  kill(child, SIGTERM);
  int status = -1;
  pid_t ended = 0;
  for (int tries = 0; tries < 60'000 && ended == 0; ++tries) {
    usleep(1'000);
    ended = waitpid(child, &status, WNOHANG);
  }
  EXPECT_EQ(status, 0);
  if (ended == 0) kill(child, SIGKILL);
  std::filesystem::remove_all(shm);
}

TEST_F(RankLifeTest, ADeadRankEndsItsPeers) {
  setup_.prefill_ranks = 3;
  RankHarness harness(setup_);
  ASSERT_TRUE(harness.start());
  RankHarness::Ask ask;
  ask.tokens = tokens(1500, 1);
  harness.start_prefill(RequestId{1}, ask);  // mid-step, most likely
  kill(harness.pid(RankHarness::prefill(1)), SIGKILL);
  EXPECT_EQ(harness.exit_code(RankHarness::prefill(0), 10), 1);
  EXPECT_EQ(harness.exit_code(RankHarness::prefill(2), 10), 1);
  EXPECT_EQ(harness.exit_code(RankHarness::decode(0), 0.3), std::nullopt) << "another group goes on";
  kill(harness.pid(RankHarness::decode(0)), SIGTERM);
  EXPECT_EQ(harness.exit_code(RankHarness::decode(0), 10), 0);
}

}  // namespace
}  // namespace trimtab::engine
