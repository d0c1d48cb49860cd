#include "kv_pool/preflight.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

namespace trimtab::kv_pool {
namespace {

class Preflight : public ::testing::Test {
 protected:
  Preflight() { std::filesystem::create_directories(root_); }
  ~Preflight() override { std::filesystem::remove_all(root_); }
  std::string in(const std::string& name) const { return (root_ / name).string(); }
  static std::string refusal(std::vector<std::string> specs, std::uint64_t bytes) {
    const auto checked = check_places(specs, bytes);
    EXPECT_FALSE(checked);
    return checked ? "" : checked.error().message;
  }
  static bool says(const std::string& text, const std::string& words) {
    return text.find(words) != std::string::npos;
  }

  std::filesystem::path root_ =
      std::filesystem::temp_directory_path() / ("trimtab_preflight_" + std::to_string(::getpid()));
};

TEST_F(Preflight, MakesDirectoriesAndLeavesNothingElse) {
  const auto notes = check_places(std::vector<std::string>{in("a/b"), "tcp://10.0.0.1:7701"}, 1 << 20);
  ASSERT_TRUE(notes) << notes.error().message;
  EXPECT_TRUE(notes->empty());
  EXPECT_TRUE(std::filesystem::is_empty(in("a/b")));
}

TEST_F(Preflight, TwoOnOneFileSystemAreToldOf) {
  const auto notes = check_places(std::vector<std::string>{in("a"), "dir:" + in("b")}, 1 << 20);
  ASSERT_TRUE(notes);
  ASSERT_EQ(notes->size(), 1U);
  EXPECT_TRUE(says(notes->front(), in("a")) && says(notes->front(), in("b"))) << notes->front();
}

TEST_F(Preflight, ADirectoryUnderTwoNamesIsRefused) {
  std::filesystem::create_directories(in("a"));
  std::filesystem::create_directory_symlink(in("a"), in("other"));
  const std::string said = refusal({in("a"), in("other")}, 1 << 20);
  EXPECT_TRUE(says(said, in("a")) && says(said, in("other"))) << said;
}

TEST_F(Preflight, MoreThanTheFileSystemHoldsIsRefusedWithTheMostThatFits) {
  struct statvfs room {};
  ASSERT_EQ(::statvfs(root_.c_str(), &room), 0);
  const std::uint64_t free_bytes = std::uint64_t{room.f_bavail} * room.f_frsize;
  // Each by itself would fit.
  const std::string said = refusal({in("a"), in("b")}, free_bytes + (free_bytes >> 2));
  EXPECT_TRUE(says(said, "pool.file_bytes = " + std::to_string(free_bytes + (free_bytes >> 2)))) << said;
  EXPECT_TRUE(says(said, in("b")) && says(said, "or less")) << said;
}

TEST_F(Preflight, WhatThePoolHoldsAlreadyCountsAsRoom) {
  std::filesystem::create_directories(in("a"));
  constexpr std::uint64_t kHeld = 64ULL << 20;
  const int fd = ::open(in("a/extents.000000").c_str(), O_RDWR | O_CREAT, 0600);
  ASSERT_EQ(::posix_fallocate(fd, 0, kHeld), 0);
  ::close(fd);
  struct statvfs room {};
  ASSERT_EQ(::statvfs(root_.c_str(), &room), 0);
  const std::uint64_t free_bytes = std::uint64_t{room.f_bavail} * room.f_frsize;
  const std::vector<std::string> places{in("a")};
  const auto enough = check_places(places, free_bytes + kHeld / 2);
  ASSERT_TRUE(enough);
  EXPECT_TRUE(enough->empty());
  // One that is there already goes on with less.
  const auto less = check_places(places, 2 * free_bytes + kHeld);
  ASSERT_TRUE(less);
  ASSERT_EQ(less->size(), 1U);
  EXPECT_TRUE(says(less->front(), in("a")) && says(less->front(), "or less")) << less->front();
}

TEST_F(Preflight, ADirectoryHasOneOwner) {
  std::filesystem::create_directories(in("a"));
  const int fd = ::open(in("a/lock").c_str(), O_RDWR | O_CREAT, 0600);
  ASSERT_EQ(::flock(fd, LOCK_EX | LOCK_NB), 0);
  const std::string said = refusal({in("a")}, 1 << 20);
  EXPECT_TRUE(says(said, in("a")) && says(said, "tcp://")) << said;
  ::close(fd);
  EXPECT_TRUE(check_places(std::vector<std::string>{in("a")}, 1 << 20)) << "its lock was let go";
}

TEST_F(Preflight, AnOwnerThatIsGoingIsWaitedFor) {
  std::filesystem::create_directories(in("a"));
  const int fd = ::open(in("a/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_EQ(::flock(fd, LOCK_EX | LOCK_NB), 0);
  std::thread going([fd] {
    ::usleep(200'000);
    ::close(fd);
  });
  EXPECT_TRUE(check_places(std::vector<std::string>{in("a")}, 1 << 20));
  going.join();
}

TEST_F(Preflight, APlaceThatCannotBeADirectoryIsNamed) {
  std::ofstream(in("file")) << "not a directory";
  const std::string said = refusal({in("file/pool")}, 1 << 20);
  EXPECT_TRUE(says(said, in("file/pool")) && says(said, "pool.targets")) << said;
}

}  // namespace
}  // namespace trimtab::kv_pool
