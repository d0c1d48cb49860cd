#include "obs/process_ends.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace trimtab::obs {
namespace {

using base::Nanos;

constexpr Nanos seconds(std::int64_t count) { return Nanos{count * 1'000'000'000}; }

TEST(ProcessEnds, AreReadAsTheyWereWrittenAndDamagedOnesAreNone) {
  const auto folder = std::filesystem::temp_directory_path() / ("trimtab_ends_" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  EXPECT_TRUE(read_process_ends(folder).empty()) << "nothing has ended";
  write_process_ends(folder, {{"kv-loader", 7, 3, "exited with 1", "no such place", "/logs/kv-loader.log", 5},
                              {"gateway", 1, 1, "exited with 2", "", "", 0}});
  const auto ends = read_process_ends(folder);
  ASSERT_EQ(ends.size(), 2U);
  EXPECT_EQ(to_words(ends[0]),
            "kv-loader exited with 1, 3 times in a row; /logs/kv-loader.log says: no such place");
  EXPECT_EQ(to_words(ends[1]), "gateway exited with 2");
  EXPECT_EQ(ends[0].times, 7U);
  EXPECT_EQ(ends[0].started_ns, 5);
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    EXPECT_EQ(entry.path().filename(), "ends") << "nothing else is left";
    std::fstream(entry.path(), std::ios::in | std::ios::out).seekp(20).put('?');
  }
  EXPECT_TRUE(read_process_ends(folder).empty());
  std::filesystem::remove_all(folder);
}

TEST(ProcessEnds, AlarmWhileAProcessIsAwayOrEndsAgainAndAgain) {
  ProcessEnd end{"kv-loader", 1, 1, "exited with 1", "", "", 0};
  EXPECT_TRUE(is_alarming(end, seconds(100))) << "it does not run";
  end.started_ns = (seconds(100)).value;
  EXPECT_FALSE(is_alarming(end, seconds(100))) << "once, and it is back";
  end.in_a_row = 2;
  EXPECT_TRUE(is_alarming(end, seconds(101))) << "it may end again";
  EXPECT_FALSE(is_alarming(end, seconds(100) + kHealthyAfter)) << "it has not";
}

}  // namespace
}  // namespace trimtab::obs
