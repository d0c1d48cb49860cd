#include "supervisor/supervisor.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

namespace trimtab::supervisor {
namespace {

using ::testing::HasSubstr;

class SupervisorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = std::filesystem::temp_directory_path() / ("trimtab-supervisor-" + std::to_string(getpid()));
    std::filesystem::create_directories(dir_);
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }
  std::filesystem::path dir_;
};

// A real group of two shells: the first dies at once on its first life; the group restarts, and SIGTERM ends
// it all.
TEST_F(SupervisorTest, RestartsARealGroupAndStopsOnSigterm) {
  const std::string mark = dir_ / "mark";
  const std::string stale = dir_ / "stale";
  std::ofstream(stale) << "left by a dead group";
  SupervisorOptions options;
  options.log_dir = dir_ / "logs";
  options.watch.backoff_first = base::Nanos{10'000'000};
  options.plan = {
      {"a",
       "g",
       {"sh", "-c", "if [ -e " + mark + " ]; then sleep 100; else touch " + mark + "; exit 3; fi"},
       {stale},
       0},
      {"b", "g", {"sleep", "100"}, {}, 5}};
  std::vector<std::string> seen;
  const auto on_change = [&](const std::string& name, const std::string& what) {
    seen.push_back(name + ": " + what);
    if (what == "started again (restart 1)" && name == "b") kill(getpid(), SIGTERM);
  };
  ASSERT_TRUE(supervise(options, on_change).has_value());
  EXPECT_THAT(seen, ::testing::Contains("a: exited with 3"));
  EXPECT_THAT(seen, ::testing::Contains("b: killed by signal 15 (Terminated)"));
  EXPECT_THAT(seen, ::testing::Contains("a: started again (restart 1)"));
  EXPECT_FALSE(std::filesystem::exists(stale));
}

// What a process said before it ended by itself is said with its end, and told to whoever asks; of one that
// was stopped because of it nothing is.
TEST_F(SupervisorTest, TellsWhyAProcessEndedAtOnce) {
  SupervisorOptions options;
  options.log_dir = dir_ / "logs";
  options.ends_dir = dir_;
  options.watch.backoff_first = base::Nanos{10'000'000};
  options.plan = {{"a 0", "g", {"sh", "-c", "echo begins; echo 'no such place' >&2; exit 3"}, {}, 0},
                  {"b", "g", {"sleep", "100"}, {}, 0}};
  const std::string log = (dir_ / "logs/a-0.log").string();
  std::vector<std::string> seen;
  std::vector<obs::ProcessEnd> told;
  const auto on_change = [&](const std::string& name, const std::string& what) {
    seen.push_back(name + ": " + what);
    if (!what.starts_with("exited with 3, 2 times")) return;
    told = obs::read_process_ends(options.ends_dir);
    kill(getpid(), SIGTERM);
  };
  ASSERT_TRUE(supervise(options, on_change).has_value());
  EXPECT_THAT(seen, ::testing::Contains("a 0: exited with 3; " + log + " says: no such place"));
  EXPECT_THAT(seen,
              ::testing::Contains("a 0: exited with 3, 2 times in a row; " + log + " says: no such place"));
  EXPECT_THAT(seen, ::testing::Contains("b: killed by signal 15 (Terminated)"));
  ASSERT_EQ(told.size(), 1U) << "b was told to end";
  EXPECT_EQ(told[0].name, "a 0");
  EXPECT_EQ(told[0].times, 2U);
  EXPECT_EQ(told[0].said, "no such place");
  EXPECT_EQ(told[0].started_ns, 0) << "it does not run";
}

// A child that stops itself keeps its sockets and answers nobody: it is ended and started again.
TEST_F(SupervisorTest, EndsAProcessThatStandsStill) {
  const std::string mark = dir_ / "mark";
  SupervisorOptions options;
  options.log_dir = dir_ / "logs";
  options.watch.backoff_first = base::Nanos{10'000'000};
  options.watch.stopped_max = base::Nanos{50'000'000};
  options.plan = {
      {"a",
       "g",
       {"sh", "-c", "if [ -e " + mark + " ]; then sleep 100; else touch " + mark + "; kill -STOP $$; fi"},
       {},
       0}};
  std::vector<std::string> seen;
  const auto on_change = [&](const std::string& name, const std::string& what) {
    seen.push_back(name + ": " + what);
    if (what == "started again (restart 1)") kill(getpid(), SIGTERM);
  };
  ASSERT_TRUE(supervise(options, on_change).has_value());
  EXPECT_THAT(seen, ::testing::Contains("a: stands still, stopped by a signal: it is ended"));
  EXPECT_THAT(seen, ::testing::Contains("a: killed by signal 9 (Killed)"));
}

TEST(Preflight, ATakenPortIsOneClearLine) {
  EXPECT_TRUE(check_port_free("127.0.0.1", 0).has_value());
  const auto bad = check_port_free("not-an-address", 80);
  ASSERT_FALSE(bad.has_value());
  EXPECT_THAT(bad.error().message, HasSubstr("not-an-address"));
}

TEST(Preflight, TooLittleMemoryNamesBothNumbers) {
  EXPECT_TRUE(check_memory(1, 1, "/tmp").has_value());
  const auto bad = check_memory(INT64_MAX, 1, "/tmp");
  ASSERT_FALSE(bad.has_value());
  EXPECT_THAT(bad.error().message, HasSubstr("MB are available"));
  EXPECT_FALSE(check_memory(1, INT64_MAX, "/tmp").has_value());
}

}  // namespace
}  // namespace trimtab::supervisor
