#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "kv_target/file/testing/child.h"
#include "kv_target/file/testing/small_target.h"
#include "kv_target/file/testing/temp_directory.h"
#include "kv_target/file/testing/wrapped_engine.h"
#include "kv_target/file_target.h"
#include "kv_target/testing/conformance.h"

namespace trimtab::kv_target::file::testing {
namespace {

Outcome outcome_of_read(Target& target, std::uint64_t n) {
  std::vector<std::byte> buffer(20'000);
  return Driver(target).read(shard_name(n), buffer).outcome;
}
void change_byte(const std::string& path, off_t at) {
  const Descriptor file(::open(path.c_str(), O_RDWR));
  char byte = 0;
  ASSERT_EQ(pread(file.get(), &byte, 1, at), 1);
  byte ^= 4;
  ASSERT_EQ(pwrite(file.get(), &byte, 1, at), 1);
  fsync(file.get());
}

TEST(FileFault, AFlippedBitIsDamageToThatShardOnly) {
  const TempDirectory directory(TempDirectory::memory());
  auto target = open(plain(directory.path()));
  ASSERT_EQ(write(*target, 1), Outcome::kDone);
  ASSERT_EQ(write(*target, 2), Outcome::kDone);
  change_byte(directory.path("extents.000000"), 11'999);
  EXPECT_EQ(outcome_of_read(*target, 1), Outcome::kDamaged);
  EXPECT_EQ(read(*target, 2), content(2));
  EXPECT_EQ(target->counters().damaged, 1U);
  EXPECT_EQ(write(*target, 1, 5), Outcome::kDone) << "whoever finds it writes it again";
  EXPECT_EQ(read(*target, 1), content(1, 5));
}

TEST(FileFault, ATruncatedExtentFileIsDamageAndThenMissing) {
  const TempDirectory directory(TempDirectory::memory());
  auto target = open(plain(directory.path()));
  for (std::uint64_t n = 0; n < 4; ++n) ASSERT_EQ(write(*target, n), Outcome::kDone);
  ASSERT_EQ(truncate(directory.path("extents.000000").c_str(), 4 * 4096), 0);
  EXPECT_EQ(read(*target, 0), content(0));
  EXPECT_EQ(outcome_of_read(*target, 1), Outcome::kDamaged) << "half of it is there";
  EXPECT_EQ(outcome_of_read(*target, 3), Outcome::kDamaged);
  target.reset();
  target = open(plain(directory.path()));
  EXPECT_EQ(target->counters().dropped_records, 3U);
  EXPECT_EQ(read(*target, 0), content(0));
  EXPECT_EQ(outcome_of_read(*target, 1), Outcome::kMissing);
  EXPECT_EQ(target->space()->shards, 1U);
  for (std::uint64_t n = 1; n < 40; ++n)
    ASSERT_EQ(write(*target, n), Outcome::kDone) << "its room is used again";
}

TEST(FileFault, ADamagedLogRecordCostsItsShardOnly) {
  const TempDirectory directory(TempDirectory::memory());
  auto target = open(plain(directory.path()));
  for (std::uint64_t n = 0; n < 4; ++n) ASSERT_EQ(write(*target, n), Outcome::kDone);
  target.reset();
  change_byte(directory.path("log"), static_cast<off_t>(kRecordsBegin + 2 * kRecordBytes + 9));
  target = open(plain(directory.path()));
  EXPECT_EQ(target->counters().dropped_records, 1U);
  for (std::uint64_t n = 0; n < 4; ++n) EXPECT_EQ(read(*target, n).has_value(), n != 2) << n;
}

TEST(FileFault, AFullDiskRefusesWritesAndServesTheRest) {
  const TempDirectory directory(TempDirectory::memory());
  with_small_disk(directory.path(), "3m", [&] {
    auto options = plain(directory.path());
    options.capacity_bytes = 64U << 20;
    auto target = open(options);
    ASSERT_TRUE(target);
    std::uint64_t n = 0;
    while (n < 1'000 && write(*target, n) == Outcome::kDone) ++n;
    EXPECT_GT(n, 40U) << "what the disk has is used, though it is less than a whole file";
    ASSERT_LT(n, 250U);
    EXPECT_NE(target->trouble().find("No space left"), std::string::npos) << target->trouble();
    EXPECT_TRUE(target->lacks_room()) << "which erasing ends";
    for (std::uint64_t i = 0; i < n; ++i) EXPECT_EQ(read(*target, i), content(i)) << i;
    EXPECT_EQ(Driver(*target).erase(shard_name(3)), Outcome::kDone) << "needs no room";
    EXPECT_EQ(write(*target, 5'000), Outcome::kDone);
    EXPECT_TRUE(target->trouble().empty()) << target->trouble();
    EXPECT_FALSE(target->lacks_room());
    for (int opening = 0; opening < 2; ++opening) {
      target.reset();
      target = open(options);  // with no room for a new log
      ASSERT_TRUE(target);
      EXPECT_EQ(read(*target, 0), content(0));
      EXPECT_EQ(read(*target, 3), std::nullopt);
      EXPECT_EQ(read(*target, 5'000 + static_cast<std::uint64_t>(opening)),
                content(5'000 + static_cast<std::uint64_t>(opening)));
      EXPECT_EQ(Driver(*target).erase(shard_name(7 + static_cast<std::uint64_t>(opening))), Outcome::kDone);
      EXPECT_EQ(write(*target, 5'001 + static_cast<std::uint64_t>(opening)), Outcome::kDone);
    }
  });
}

TEST(FileFault, RoomThatOthersGiveBackIsUsed) {
  const TempDirectory directory(TempDirectory::memory());
  with_small_disk(directory.path(), "6m", [&] {
    std::ofstream(directory.path("other")) << std::string(4U << 20, 'x');
    auto options = plain(directory.path());
    auto target = open(options);
    ASSERT_TRUE(target);
    std::uint64_t n = 0;
    while (n < 1'000 && write(*target, n) == Outcome::kDone) ++n;
    ASSERT_LT(n, 100U);
    std::filesystem::remove(directory.path("other"));
    std::uint64_t refused = 0;
    while (refused < 100 && write(*target, n) != Outcome::kDone) ++refused;
    EXPECT_LT(refused, 100U) << "asked for again, now and then";
    EXPECT_EQ(read(*target, n), content(n));
  });
}

/// Fails operations on `file` with `reason` while it is set.
struct Fault {
  std::string file;
  Io::Kind kind = Io::Kind::kWrite;
  int reason = 0;
  std::function<std::unique_ptr<IoEngine>(std::unique_ptr<IoEngine>)> wrap() {
    return [this](std::unique_ptr<IoEngine> inner) {
      return std::make_unique<WrappedEngine>(
          std::move(inner), [this](const Io& io) -> std::optional<std::int64_t> {
            if (reason == 0 || io.kind != kind || file_of(io).find(file) != 0) return std::nullopt;
            return -reason;
          });
    };
  }
};

struct FaultCase {
  Fault fault;
  Outcome outcome;
  std::string words;
};

TEST(FileFault, WhatFailsIsRefusedSaidAndOvercome) {
  const std::vector<FaultCase> cases{
      {{"extents", Io::Kind::kWrite, ENOSPC}, Outcome::kFull, "No space left"},
      {{"extents", Io::Kind::kWrite, EROFS}, Outcome::kFailed, "Read-only file system"},
      {{"extents", Io::Kind::kSync, EIO}, Outcome::kFailed, "syncing an extent file: Input/output error"},
      {{"log", Io::Kind::kWrite, ENOSPC}, Outcome::kFull, "writing the log: No space left"},
      {{"log", Io::Kind::kWrite, EACCES}, Outcome::kFailed, "writing the log: Permission denied"},
      {{"log", Io::Kind::kSync, EIO}, Outcome::kFailed, "syncing the log: Input/output error"},
  };
  for (const FaultCase& one : cases) {
    SCOPED_TRACE(one.words);
    const TempDirectory directory(TempDirectory::memory());
    Fault fault = one.fault;
    fault.reason = 0;
    auto options = plain(directory.path());
    options.wrap_engine = fault.wrap();
    auto target = open(options);
    ASSERT_EQ(write(*target, 1), Outcome::kDone);
    ASSERT_EQ(write(*target, 2), Outcome::kDone);
    const std::uint64_t used = target->space()->used_bytes;

    fault.reason = one.fault.reason;
    EXPECT_EQ(write(*target, 1, 7), one.outcome);
    EXPECT_NE(target->trouble().find(one.words), std::string::npos) << target->trouble();
    EXPECT_NE(write(*target, 3), Outcome::kDone) << "and again";
    EXPECT_EQ(read(*target, 1), content(1)) << "reads go on";
    EXPECT_EQ(read(*target, 3), std::nullopt);
    EXPECT_EQ(target->space()->used_bytes, used) << "what was refused takes no room";

    fault.reason = 0;
    EXPECT_EQ(write(*target, 3), Outcome::kDone);
    EXPECT_EQ(Driver(*target).erase(shard_name(2)), Outcome::kDone);
    EXPECT_TRUE(target->trouble().empty()) << target->trouble();
    // All of the room is of use again, that of the refused writes too.
    std::uint64_t more = 0;
    while (more < 1'000 && write(*target, 100 + more) == Outcome::kDone) ++more;
    EXPECT_EQ(more, 4 * (256 / 3) - 2U);
    target.reset();
    target = open(plain(directory.path()));
    EXPECT_EQ(read(*target, 1), content(1));
    EXPECT_EQ(read(*target, 2), std::nullopt);
    EXPECT_EQ(read(*target, 3), content(3));
  }
}

TEST(FileFault, AReadErrorIsSaidAndPasses) {
  const TempDirectory directory(TempDirectory::memory());
  Fault fault{"extents", Io::Kind::kRead, 0};
  auto options = plain(directory.path());
  options.wrap_engine = fault.wrap();
  auto target = open(options);
  ASSERT_EQ(write(*target, 1), Outcome::kDone);
  fault.reason = EIO;
  EXPECT_EQ(outcome_of_read(*target, 1), Outcome::kFailed);
  EXPECT_EQ(target->trouble(), "reading an extent file: Input/output error");
  fault.reason = 0;
  EXPECT_EQ(read(*target, 1), content(1));
  EXPECT_EQ(target->trouble(), "");
}

TEST(FileFault, PermissionLostWhileServing) {
  const TempDirectory directory(TempDirectory::memory());
  in_child([&] {
    if (geteuid() == 0) {  // whom permissions do not bind
      if (chown(directory.path().c_str(), 65'534, 65'534) != 0 || setresuid(65'534, 65'534, 65'534) != 0)
        return kSkip;
    }
    auto options = plain(directory.path());
    options.log_slack = 4;
    auto target = open(options);
    EXPECT_EQ(write(*target, 0), Outcome::kDone);
    EXPECT_EQ(chmod(directory.path().c_str(), 0500), 0);
    std::uint64_t n = 1;  // the first file has room yet; no new one can be made, nor a new log
    while (n < 1'000 && write(*target, n) == Outcome::kDone) ++n;
    EXPECT_EQ(n, 256U / 3);
    EXPECT_EQ(write(*target, n), Outcome::kFailed);
    EXPECT_NE(target->trouble().find("Permission denied"), std::string::npos) << target->trouble();
    for (std::uint64_t i = 0; i < 30; ++i) EXPECT_EQ(Driver(*target).erase(shard_name(i)), Outcome::kDone);
    EXPECT_EQ(target->counters().log_rewrites, 0U);
    EXPECT_EQ(read(*target, 40), content(40));
    EXPECT_EQ(chmod(directory.path().c_str(), 0700), 0);
    for (std::uint64_t i = 0; i < 100; ++i) EXPECT_EQ(write(*target, i), Outcome::kDone);
    return 0;
  });
}

void expect_error(const FileTarget::Options& options, base::Code code, const std::string& words) {
  const auto target = FileTarget::open(options);
  ASSERT_FALSE(target);
  EXPECT_EQ(target.error().code, code) << target.error().message;
  EXPECT_NE(target.error().message.find(words), std::string::npos) << target.error().message;
}

TEST(FileFault, ErrorsAtTheStartNameTheCauseAndTheCure) {
  const TempDirectory directory(TempDirectory::memory());
  const auto options = plain(directory.path("a/b"));
  {
    const auto target = open(options);
    auto hasty = options;
    hasty.owner_patience = base::Nanos{0};
    expect_error(hasty, base::Code::kUnavailable, "in use by another process");
    ASSERT_EQ(write(*target, 1), Outcome::kDone);
  }
  auto other = options;
  other.layout = {512, 2U << 20};
  expect_error(other, base::Code::kInvalidArgument,
               "was made with units of 4096 bytes in files of 1048576 bytes");
  other.layout = {1000, 10'000};
  expect_error(other, base::Code::kInvalidArgument, "a power of two");
  other = options;
  other.capacity_bytes = 100;
  expect_error(other, base::Code::kInvalidArgument, "a target of 100 bytes");
  expect_error(plain("/proc/no-such-place"), base::Code::kIo, "choose another");
  EXPECT_EQ(read(*open(options), 1), content(1)) << "refusing touches nothing";
  std::ofstream(directory.path("a/b/log")) << std::string(10'000, 'x');
  expect_error(options, base::Code::kInvalidArgument, "is not the log of a target");
  with_small_disk(directory.path(), "64k", [&] {
    expect_error(plain(directory.path()), base::Code::kResourceExhausted, "No space left");
  });
}

TEST(FileFault, TheCapacityMayChange) {
  const TempDirectory directory(TempDirectory::memory());
  auto options = plain(directory.path());
  options.capacity_bytes = 24 * 4096;
  auto target = open(options);
  std::uint64_t n = 0;
  while (write(*target, n) == Outcome::kDone) ++n;
  EXPECT_EQ(n, 8U);
  target.reset();
  options.capacity_bytes = 12 * 4096;
  target = open(options);
  for (std::uint64_t i = 0; i < n; ++i) EXPECT_EQ(read(*target, i), content(i)) << "nothing is dropped";
  EXPECT_EQ(write(*target, 50), Outcome::kFull);
  for (std::uint64_t i = 0; i < 5; ++i) EXPECT_EQ(Driver(*target).erase(shard_name(i)), Outcome::kDone);
  EXPECT_EQ(write(*target, 50), Outcome::kDone);
  EXPECT_EQ(write(*target, 51), Outcome::kFull);
  target.reset();
  options.capacity_bytes = 3U << 20;
  target = open(options);
  for (n = 100; write(*target, n) == Outcome::kDone;) ++n;
  EXPECT_EQ(n - 100, 3 * (256 / 3) - 4U);
  EXPECT_EQ(read(*target, 50), content(50));
}

// Nothing in the format, nor the order of anything, comes from a clock: files dated decades ahead and back
// change nothing.
TEST(FileFault, ClocksMayJump) {
  const TempDirectory directory(TempDirectory::memory());
  for (std::uint64_t version = 1; version <= 4; ++version) {
    auto target = open(plain(directory.path()));
    if (version > 1) {
      EXPECT_EQ(read(*target, 1), content(1, version - 1));
    }
    ASSERT_EQ(write(*target, 1, version), Outcome::kDone);
    target.reset();
    const timespec when{version % 2 == 0 ? 10 : 4'000'000'000, 0};
    for (const auto& file : std::filesystem::directory_iterator(directory.path())) {
      const timespec both[2] = {when, when};
      ASSERT_EQ(utimensat(AT_FDCWD, file.path().c_str(), both, 0), 0);
    }
  }
  EXPECT_EQ(read(*open(plain(directory.path())), 1), content(1, 4));
}

}  // namespace
}  // namespace trimtab::kv_target::file::testing
