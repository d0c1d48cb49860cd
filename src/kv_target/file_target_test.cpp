#include "kv_target/file_target.h"

#include <gtest/gtest.h>

#include "kv_target/file/testing/temp_directory.h"
#include "kv_target/testing/conformance.h"

namespace trimtab::kv_target::testing {
namespace {

using file::testing::TempDirectory;

/// A target of files in a directory of its own, which lives as long as the target's `Maker`.
Maker maker(const std::string& name, FileTarget::Options options) {
  const auto directories = std::make_shared<std::vector<std::unique_ptr<TempDirectory>>>();
  const auto used = std::make_shared<FileTarget::Options>(options);
  const auto open = [used] {
    auto target = FileTarget::open(*used);
    EXPECT_TRUE(target) << (target ? "" : base::to_string(target.error()));
    return target ? std::unique_ptr<Target>(std::move(*target)) : nullptr;
  };
  return {name,
          [=](std::uint64_t capacity_bytes) {
            // Where O_DIRECT is to be tried, on a disk; otherwise where syncs cost nothing.
            directories->push_back(options.direct ? std::make_unique<TempDirectory>()
                                                  : std::make_unique<TempDirectory>(TempDirectory::memory()));
            used->directory = directories->back()->path();
            used->capacity_bytes = capacity_bytes;
            return open();
          },
          [=](std::unique_ptr<Target> target) {
            target.reset();
            return open();
          }};
}

FileTarget::Options options(bool uring, bool direct, bool registered = true,
                            std::uint32_t unit_bytes = 4096) {
  FileTarget::Options options;
  options.uring = uring;
  options.direct = direct;
  options.registered = registered;
  options.shard_bytes = 1U << 20;
  options.layout = {unit_bytes, 4U << 20};
  options.staging_bytes = 1U << 20;
  return options;
}

INSTANTIATE_TEST_SUITE_P(File, TargetConformance,
                         ::testing::Values(maker("uring_direct", options(true, true)),
                                           maker("uring_buffered", options(true, false)),
                                           maker("uring_not_registered", options(true, true, false)),
                                           maker("uring_sectors", options(true, true, true, 512)),
                                           maker("threads_direct", options(false, true)),
                                           maker("threads_buffered", options(false, false))),
                         [](const auto& one) { return one.param.name; });

FileTarget::Options in_memory(const TempDirectory& directory) {
  FileTarget::Options made = options(true, true);
  made.directory = directory.path();
  made.capacity_bytes = 8U << 20;
  return made;
}
std::unique_ptr<FileTarget> open(const FileTarget::Options& options) {
  auto target = FileTarget::open(options);
  EXPECT_TRUE(target) << (target ? "" : base::to_string(target.error()));
  return target ? std::move(*target) : nullptr;
}

TEST(FileTarget, ManyWritesShareTheirSyncs) {
  const TempDirectory directory(TempDirectory::memory());
  const auto target = open(in_memory(directory));
  std::vector<std::vector<std::byte>> contents;
  std::vector<Request> requests(300);
  for (std::uint64_t n = 0; n < 300; ++n) contents.push_back(content_of(shard_name(n), 12'000));
  for (std::uint64_t n = 0; n < 300; ++n) {
    requests[n].verb = Verb::kWrite;
    requests[n].name = shard_name(n);
    requests[n].content = contents[n];
    requests[n].tag = n;
  }
  Driver(*target).run(requests);
  EXPECT_EQ(target->counters().commits, 1U);
  EXPECT_EQ(target->counters().syncs, 2U) << "one extent file, and the log";
  for (Request& request : requests) request.verb = Verb::kErase;
  Driver(*target).run(requests);
  EXPECT_EQ(target->counters().syncs, 3U) << "erases need the log's only";
  // One by one, without waiting: what comes while a batch is under way is the next one.
  for (Request& request : requests) request.verb = Verb::kWrite;
  for (const Request& request : requests) target->submit({&request, 1});
  EXPECT_EQ(Driver(*target).wait_for(300).size(), 300U);
  EXPECT_LE(target->counters().commits, 4U) << "the first alone, then the rest together";
}

TEST(FileTarget, AFullTargetIsRefilledWhereNeighboursWereErased) {
  const TempDirectory directory(TempDirectory::memory());
  auto settings = in_memory(directory);
  const auto target = open(settings);
  Driver drive(*target);
  std::uint64_t n = 0;
  while (drive.write(shard_name(n), content_of(shard_name(n), 4'096)) == Outcome::kDone) ++n;
  ASSERT_EQ(n, 2'048U);
  for (std::uint64_t i = 0; i < n; ++i) {
    if (i % 5 > 0) {
      ASSERT_EQ(drive.erase(shard_name(i)), Outcome::kDone);
    }
  }
  EXPECT_EQ(target->counters().largest_hole_bytes, 4 * 4'096U);
  std::uint64_t larger = 0;
  while (drive.write(shard_name(9'000 + larger), content_of(shard_name(9'000 + larger), 16'000)) ==
         Outcome::kDone)
    ++larger;
  EXPECT_GE(larger, 2'048U / 5 - 2) << "each hole of four";
  for (std::uint64_t i = 0; i < n; i += 5)
    ASSERT_EQ(drive.content(shard_name(i)), content_of(shard_name(i), 4'096));
  for (std::uint64_t i = 0; i < larger; ++i)
    ASSERT_EQ(drive.content(shard_name(9'000 + i)), content_of(shard_name(9'000 + i), 16'000));
}

TEST(FileTarget, TheLogDoesNotGrowWithoutBound) {
  const TempDirectory directory(TempDirectory::memory());
  auto settings = in_memory(directory);
  settings.log_slack = 50;
  auto target = open(settings);
  Driver drive(*target);
  for (std::uint64_t i = 0; i < 600; ++i)
    ASSERT_EQ(drive.write(shard_name(i % 3), content_of(shard_name(i % 3), 100 + i)), Outcome::kDone);
  EXPECT_GE(target->counters().log_rewrites, 9U);
  EXPECT_EQ(target->space()->shards, 3U);
  const std::string epoch_before = std::to_string(target->changes({}, 10)->next.epoch);
  target.reset();
  target = open(settings);
  for (std::uint64_t i = 597; i < 600; ++i)
    EXPECT_EQ(Driver(*target).content(shard_name(i % 3)), content_of(shard_name(i % 3), 100 + i));
  EXPECT_EQ(target->space()->used_bytes, 3 * 4'096U);
  EXPECT_NE(std::to_string(target->changes({}, 10)->next.epoch), epoch_before) << "another opening";
}

TEST(FileTarget, AlignedMemoryIsReadAndWrittenWithoutACopy) {
  const TempDirectory directory;
  auto target = open(in_memory(directory));
  if (target->describe().find("O_DIRECT in units") == std::string::npos)
    GTEST_SKIP() << "no O_DIRECT here: " << target->describe();
  struct alignas(4096) Page {
    std::byte bytes[4096];
  };
  std::vector<Page> pages(32);
  const std::span<std::byte> memory(pages[0].bytes, 32 * 4'096);
  const auto content = content_of(shard_name(1), memory.size());
  std::copy(content.begin(), content.end(), memory.begin());
  Driver drive(*target);
  ASSERT_EQ(drive.write(shard_name(1), memory), Outcome::kDone);
  std::fill(memory.begin(), memory.end(), std::byte{0});
  EXPECT_EQ(drive.read(shard_name(1), memory).bytes, memory.size());
  EXPECT_TRUE(std::equal(memory.begin(), memory.end(), content.begin()));
  EXPECT_EQ(target->counters().straight, 2U);
  EXPECT_EQ(target->counters().staged, 0U);
  // The same with an end that is no whole unit: most of it goes straight.
  ASSERT_EQ(drive.write(shard_name(2), memory.first(memory.size() - 100)), Outcome::kDone);
  EXPECT_EQ(target->counters().straight, 3U);
  EXPECT_EQ(target->counters().staged, 1U);
}

TEST(FileTarget, PartsAreReadWithoutACopyIntoMemoryWithRoomForWholeUnits) {
  const TempDirectory directory;
  const auto target = open(in_memory(directory));
  const std::uint64_t unit = target->limits().read_unit_bytes;
  if (unit == 1) GTEST_SKIP() << "no O_DIRECT here: " << target->describe();
  EXPECT_EQ(4'096 % unit, 0U);
  struct alignas(4096) Page {
    std::byte bytes[4096];
  };
  std::vector<Page> pages(4);
  const std::span<std::byte> memory(pages[0].bytes, 4 * 4'096);
  const auto content = content_of(shard_name(1), 11'540);
  Driver drive(*target);
  ASSERT_EQ(drive.write(shard_name(1), content), Outcome::kDone);
  const auto staged = target->counters().staged;
  // The first unit, then all that follows: its end lies within a unit, for which there is room.
  EXPECT_EQ(drive.read(shard_name(1), memory.first(unit)).bytes, unit);
  EXPECT_EQ(drive.read(shard_name(1), memory.subspan(unit), unit).bytes, content.size() - unit);
  EXPECT_EQ(target->counters().staged, staged);
  EXPECT_TRUE(std::equal(content.begin(), content.end(), memory.begin()));
  // No room: nothing beyond the memory is touched.
  std::fill(memory.begin(), memory.end(), std::byte{9});
  EXPECT_EQ(drive.read(shard_name(1), memory.first(content.size())).bytes, content.size());
  EXPECT_EQ(target->counters().staged, staged + 1);
  EXPECT_TRUE(std::equal(content.begin(), content.end(), memory.begin()));
  EXPECT_TRUE(std::all_of(memory.begin() + static_cast<std::ptrdiff_t>(content.size()), memory.end(),
                          [](std::byte one) { return one == std::byte{9}; }));
}

TEST(FileTarget, ShardsLargerThanTheStagingMemoryGoInPieces) {
  const TempDirectory directory;
  auto settings = in_memory(directory);
  settings.staging_bytes = 32U << 10;
  settings.depth = 3;
  const auto target = open(settings);
  Driver drive(*target);
  const auto content = content_of(shard_name(1), (1U << 20) - 13);
  std::vector<std::byte> shifted(content.size() + 1);
  std::copy(content.begin(), content.end(), shifted.begin() + 1);
  ASSERT_EQ(drive.write(shard_name(1), std::span(shifted).subspan(1)), Outcome::kDone);
  EXPECT_EQ(drive.content(shard_name(1), 1U << 20), content);
  std::vector<std::byte> part(700'001);
  ASSERT_EQ(drive.read(shard_name(1), part, 123'457).bytes, part.size());
  EXPECT_TRUE(std::equal(part.begin(), part.end(), content.begin() + 123'457));
}

}  // namespace
}  // namespace trimtab::kv_target::testing
