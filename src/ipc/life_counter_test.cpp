#include "ipc/life_counter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace trimtab::ipc {
namespace {

class LifeCounter : public testing::Test {
 protected:
  LifeCounter() : directory_(testing::TempDir() + "/lives-" + std::to_string(getpid())) {
    std::filesystem::create_directories(directory_);
  }
  ~LifeCounter() override { std::filesystem::remove_all(directory_); }
  std::string directory_;
};

TEST_F(LifeCounter, GrowsWithEveryLife) {
  const std::string path = directory_ + "/one";
  EXPECT_EQ(next_life(path).value(), 1U);
  EXPECT_EQ(next_life(path).value(), 2U);
  EXPECT_EQ(next_life(directory_ + "/other").value(), 1U) << "each file counts for itself";
  EXPECT_EQ(next_life(path).value(), 3U);
  // Cut off before the new number was in place: the old one stands.
  std::ofstream(path + ".part") << "77";
  EXPECT_EQ(next_life(path).value(), 4U);
}

TEST_F(LifeCounter, NeverBeginsAgain) {
  const std::string path = directory_ + "/torn";
  std::ofstream(path).flush();
  EXPECT_THAT(next_life(path).error().message, testing::HasSubstr("holds no number"));
  std::ofstream(path) << "twelve";
  EXPECT_EQ(next_life(path).error().code, base::Code::kIo);
  EXPECT_THAT(next_life(directory_ + "/none/here").error().message, testing::HasSubstr("cannot write"));
}

}  // namespace
}  // namespace trimtab::ipc
