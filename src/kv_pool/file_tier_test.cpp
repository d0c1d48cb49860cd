#include "kv_pool/file_tier.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <map>

#include "kv_pool/test_support.h"

namespace trimtab::kv_pool {
namespace {

using test::block_of;
using test::key;

constexpr std::uint64_t kBytes = 5'000;  // not a multiple of the slots' alignment
constexpr std::uint64_t kStride = 8'192;

struct Block {
  std::vector<std::byte> content;
  FileEntry entry;
  FileTier::Store store() const { return {entry, content}; }
};
Block block(std::uint64_t n, std::uint32_t slot) {
  auto content = block_of(key(n), kBytes);
  const std::uint64_t checksum = content_checksum(key(n), content);
  return {std::move(content), {key(n), slot, checksum}};
}

base::Status write(FileTier& tier, std::vector<FileEntry> erased, const std::vector<Block>& blocks) {
  std::vector<FileTier::Store> stores;
  for (const Block& b : blocks) stores.push_back(b.store());
  return tier.write(erased, stores);
}

bool content_right(const FileTier& tier, const FileEntry& entry) {
  std::vector<std::byte> read(kBytes);
  return tier.read(entry.slot, read) && read == block_of(entry.key, kBytes) &&
         content_checksum(entry.key, read) == entry.checksum;
}

TEST(FileTier, RemembersAcrossRestarts) {
  test::TempDirectory directory;
  {
    auto tier = FileTier::open(directory.path("a/b"), 4 * kStride, kBytes);
    ASSERT_TRUE(tier) << base::to_string(tier.error());
    EXPECT_EQ(tier->slots(), 4U);
    ASSERT_TRUE(write(*tier, {}, {block(1, 0), block(2, 3)}));
    ASSERT_TRUE(write(*tier, {block(1, 0).entry}, {block(3, 0)}));
  }
  auto tier = FileTier::open(directory.path("a/b"), 4 * kStride, kBytes);
  ASSERT_TRUE(tier);
  ASSERT_EQ(tier->recovered(), (std::vector<FileEntry>{block(2, 3).entry, block(3, 0).entry}));
  for (const FileEntry& entry : tier->recovered()) EXPECT_TRUE(content_right(*tier, entry));
}

// The process ends at every step of every kind of write in turn; each time the log must name exactly what it
// may, and each named block must have its content.
TEST(FileTier, EndingAtAnyStepLosesNothingDurableAndInventsNothing) {
  int steps_seen = 0;
  for (int end_at = 0; end_at < 100; ++end_at) {
    test::TempDirectory directory;
    int acknowledged[2];
    ASSERT_EQ(pipe(acknowledged), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      auto tier = FileTier::open(directory.path(), 3 * kStride, kBytes);
      if (!tier) _exit(3);
      int step = 0;
      tier->on_step = [&](std::string_view) {
        if (step++ == end_at) _exit(1);
      };
      const auto acknowledge = [&](char what) { return ::write(acknowledged[1], &what, 1) == 1; };
      bool fine = write(*tier, {}, {block(1, 0), block(2, 1)}) && acknowledge('a') &&
                  write(*tier, {block(1, 0).entry}, {block(3, 0), block(4, 2)}) && acknowledge('b');
      // Enough changes that the log is written anew.
      const std::vector<FileEntry> many(4'200, block(4, 2).entry);
      fine = fine && write(*tier, many, {block(5, 2)});
      fine = fine && acknowledge('c');
      _exit(fine ? 0 : 2);
    }
    close(acknowledged[1]);
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFEXITED(status));
    ASSERT_LE(WEXITSTATUS(status), 1);
    std::string got(8, '\0');
    got.resize(static_cast<std::size_t>(std::max<ssize_t>(0, read(acknowledged[0], got.data(), got.size()))));
    close(acknowledged[0]);

    auto tier = FileTier::open(directory.path(), 3 * kStride, kBytes);
    ASSERT_TRUE(tier) << base::to_string(tier.error());
    std::map<BlockKey, FileEntry> found;
    for (const FileEntry& entry : tier->recovered()) {
      found[entry.key] = entry;
      EXPECT_TRUE(content_right(*tier, entry)) << "a phantom, ended at step " << end_at;
    }
    if (got.size() >= 1) {
      EXPECT_TRUE(found.contains(key(2))) << "a durable block is lost, step " << end_at;
    }
    if (got.size() >= 2) {
      EXPECT_TRUE(found.contains(key(3))) << end_at;
      EXPECT_FALSE(found.contains(key(1))) << "an erased block came back, step " << end_at;
    }
    if (got.size() >= 3) {
      EXPECT_TRUE(found.contains(key(5))) << end_at;
      EXPECT_FALSE(found.contains(key(4))) << end_at;
    }
    if (WEXITSTATUS(status) == 0) break;
    ++steps_seen;
  }
  EXPECT_GE(steps_seen, 20) << "three writes, one of them with a new log";
}

TEST(FileTier, TheLogDoesNotGrowWithoutBound) {
  test::TempDirectory directory;
  auto tier = FileTier::open(directory.path(), 2 * kStride, kBytes);
  ASSERT_TRUE(tier);
  ASSERT_TRUE(write(*tier, {}, {block(7, 1)}));
  const std::vector<FileEntry> erased(400, block(1, 0).entry);
  for (int i = 0; i < 30; ++i) ASSERT_TRUE(tier->write(erased, {}));
  struct stat info {};
  ASSERT_EQ(stat(directory.path("log").c_str(), &info), 0);
  EXPECT_LT(info.st_size, 5'000 * static_cast<off_t>(kLogRecordBytes));
  tier = FileTier::open(directory.path("other"), 2 * kStride, kBytes);  // lets go of the first
  auto again = FileTier::open(directory.path(), 2 * kStride, kBytes);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->recovered(), std::vector<FileEntry>{block(7, 1).entry});
}

TEST(FileTier, AnotherSizeKeepsWhatStillFits) {
  test::TempDirectory directory;
  {
    auto tier = FileTier::open(directory.path(), 4 * kStride, kBytes);
    ASSERT_TRUE(write(*tier, {}, {block(1, 0), block(2, 3)}));
  }
  {
    auto smaller = FileTier::open(directory.path(), 2 * kStride, kBytes);
    ASSERT_TRUE(smaller);
    EXPECT_EQ(smaller->recovered(), std::vector<FileEntry>{block(1, 0).entry});
  }
  auto larger = FileTier::open(directory.path(), 8 * kStride, kBytes);
  ASSERT_TRUE(larger);
  EXPECT_EQ(larger->recovered(), std::vector<FileEntry>{block(1, 0).entry}) << "what was cut off stays gone";
  EXPECT_EQ(larger->slots(), 8U);
}

TEST(FileTier, ALostBlocksFileIsNoPhantom) {
  test::TempDirectory directory;
  {
    auto first = FileTier::open(directory.path(), 4 * kStride, kBytes);
    ASSERT_TRUE(write(*first, {}, {block(1, 0)}));
  }
  ASSERT_EQ(unlink(directory.path("blocks").c_str()), 0);
  auto tier = FileTier::open(directory.path(), 4 * kStride, kBytes);
  ASSERT_TRUE(tier);
  EXPECT_TRUE(tier->recovered().empty());
  EXPECT_EQ(tier->dropped_records(), 1U);
}

void expect_error(const base::Result<FileTier>& tier, base::Code code, const std::string& words) {
  ASSERT_FALSE(tier);
  EXPECT_EQ(tier.error().code, code);
  EXPECT_NE(tier.error().message.find(words), std::string::npos) << tier.error().message;
}

TEST(FileTier, ErrorsAtStartNameTheCauseAndTheCure) {
  test::TempDirectory directory;
  const std::string path = directory.path("pool");
  {
    auto first = FileTier::open(path, 4 * kStride, kBytes);
    ASSERT_TRUE(first);
    expect_error(FileTier::open(path, 4 * kStride, kBytes), base::Code::kUnavailable,
                 "in use by another loader");
  }
  expect_error(FileTier::open(path, 4 * kStride, 9'000), base::Code::kInvalidArgument,
               "holds blocks of 5000 bytes, this model's have 9000");
  expect_error(FileTier::open(path, kStride - 1, kBytes), base::Code::kInvalidArgument, "pool.file_bytes");
  expect_error(FileTier::open(directory.path("huge"), 1ULL << 60, 1ULL << 40), base::Code::kResourceExhausted,
               "lower pool.file_bytes");
  expect_error(FileTier::open("/proc/no-such-place", 4 * kStride, kBytes), base::Code::kIo,
               "choose another pool.directory");
  std::ofstream(path + "/log") << "someone else's notes, long enough to be mistaken for a header";
  expect_error(FileTier::open(path, 4 * kStride, kBytes), base::Code::kInvalidArgument,
               "is not the log of a pool");
  std::ofstream(directory.path("file")) << "x";
  expect_error(FileTier::open(directory.path("file"), 4 * kStride, kBytes), base::Code::kIo,
               "pool directory");
}

/// Runs `body` in a child with a small file system of its own at `path`; skips where that is not permitted.
template <class Body>
void with_small_disk(const std::string& path, unsigned long flags, Body body) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (unshare(geteuid() == 0 ? CLONE_NEWNS : CLONE_NEWUSER | CLONE_NEWNS) != 0) _exit(77);
    if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) _exit(77);
    if (mount("pool", path.c_str(), "tmpfs", flags, "size=64k") != 0) _exit(77);
    body();
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "no mounts permitted here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(FileTier, AFullDiskIsAnErrorAtStart) {
  test::TempDirectory directory;
  with_small_disk(directory.path(), 0, [&] {
    expect_error(FileTier::open(directory.path(), 1 << 20, kBytes), base::Code::kResourceExhausted,
                 "lower pool.file_bytes");
  });
}

TEST(FileTier, AReadOnlyDiskIsAnErrorAtStart) {
  test::TempDirectory directory;
  with_small_disk(directory.path(), MS_RDONLY, [&] {
    expect_error(FileTier::open(directory.path(), 4 * kStride, kBytes), base::Code::kIo, "cannot be written");
  });
}

}  // namespace
}  // namespace trimtab::kv_pool
