#include "kv_pool/preflight.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "kv_pool/loader.h"
#include "kv_pool/pool_client.h"

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

void run_until_its_map_is_kept(const LoaderOptions& options) {
  std::atomic<bool> stop{false};
  std::thread loader([&] { EXPECT_TRUE(run_loader(options, stop)); });
  constexpr base::Nanos kPatience{30'000'000'000};
  auto client = PoolClient::connect(options.socket_path, kPatience);
  EXPECT_TRUE(client);
  const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(kPatience.value);
  while (client && std::chrono::steady_clock::now() < end) {
    const auto report = client->report();
    if (report && report->map_settled != 0) break;
    ::usleep(10'000);
  }
  stop = true;
  loader.join();
}

/// Racks by which no pool can be made are refused before there is one, and never once there is.
TEST_F(Preflight, RacksThatBreakTheRuleAreRefusedUntilAPoolIsThere) {
  std::vector<std::string> places;
  for (int i = 0; i < 12; ++i) places.push_back(in(std::to_string(i)));
  const std::vector<std::uint32_t> even{0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5},
      heavy{0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5};
  constexpr std::uint64_t kBytes = 64 << 20, kShard = 4'096;
  EXPECT_TRUE(check_racks(places, even, kBytes, kShard));
  EXPECT_TRUE(check_racks(places, {}, kBytes, kShard));
  const auto bad = check_racks(places, heavy, kBytes, kShard);
  ASSERT_FALSE(bad);
  EXPECT_TRUE(says(bad.error().message, "pool.racks = [0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5]"))
      << bad.error().message;
  EXPECT_TRUE(says(bad.error().message, "rack 0 has 3 of 12 nodes")) << bad.error().message;
  EXPECT_FALSE(std::filesystem::exists(in("0"))) << "looked only";
  places[11] = "tcp://127.0.0.1:1";
  EXPECT_TRUE(check_racks(places, heavy, kBytes, kShard)) << "a server that does not answer may be a pool's";
  places[11] = in("11");

  LoaderOptions options;
  options.socket_path = in("kv.sock");
  options.memory_bytes = 16 * 4'096;
  options.file_bytes = kBytes;
  options.kv.block_bytes = base::Bytes{4'096};
  options.targets = places;
  options.racks = heavy;
  const std::atomic<bool> at_once{true};
  EXPECT_FALSE(run_loader(options, at_once));
  EXPECT_FALSE(check_racks(places, heavy, kBytes, kShard)) << "targets are there, and no pool";
  options.racks = even;
  run_until_its_map_is_kept(options);
  EXPECT_TRUE(check_racks(places, heavy, kBytes, kShard)) << "the pool goes by its map";
  options.racks = heavy;
  const auto served = run_loader(options, at_once);
  EXPECT_TRUE(served) << served.error().message;
}

}  // namespace
}  // namespace trimtab::kv_pool
