#include "kv_pool/target_list.h"

#include <gtest/gtest.h>

#include "kv_pool/test_support.h"

namespace trimtab::kv_pool {
namespace {

constexpr std::uint64_t kShard = 12'000;

/// A pool is given more room, or less, in the configuration, and opens with all that it held.
TEST(TargetList, ADirectoryMayBeGivenAnotherRoom) {
  const test::TempDirectory directory;
  const std::string specs[] = {directory.path("a")};
  std::vector<std::byte> content(kShard, std::byte{7});
  std::vector<kv_target::Completion> done;
  const auto ask = [&](kv_target::Target& target, kv_target::Verb verb) {
    kv_target::Request request;
    request.verb = verb;
    request.name = {test::key(1), 3};
    request.content = content;
    request.buffer = content;
    target.submit({&request, 1});
    for (done.clear(); done.empty();) target.poll(done);
    return done.front().outcome;
  };
  const std::uint64_t rooms[] = {4ULL << 20, 4ULL << 30, 1ULL << 20};
  for (const std::uint64_t room : rooms) {
    auto opened = open_targets(specs, room, kShard);
    ASSERT_TRUE(opened) << room << ": " << base::to_string(opened.error());
    EXPECT_GE(opened->capacity_bytes, room);
    if (room == rooms[0]) {
      ASSERT_EQ(ask(*opened->targets[0], kv_target::Verb::kWrite), kv_target::Outcome::kDone);
    }
    EXPECT_EQ(ask(*opened->targets[0], kv_target::Verb::kRead), kv_target::Outcome::kDone);
  }
}

TEST(TargetList, RoomForNoShardIsRefused) {
  const test::TempDirectory directory;
  const std::string specs[] = {directory.path("a"), directory.path("b")};
  const auto refused = open_targets(specs, 2 * kShard, kShard);
  ASSERT_FALSE(refused) << "a shard takes whole units of 4 KiB";
  EXPECT_NE(refused.error().message.find("pool.file_bytes = 24000"), std::string::npos)
      << refused.error().message;
  EXPECT_FALSE(std::filesystem::exists(directory.path("a"))) << "nothing was made";
  EXPECT_TRUE(open_targets(specs, 2 * on_disk(kShard), kShard));
}

/// 3FS past its FUSE mount is asked for by name; a build without its library says what is missing.
TEST(TargetList, A3fsDirectoryIsReachedByItsRings) {
  const test::TempDirectory directory;
  const std::string inside = directory.path("kv");
  const auto target = open_target("usrbio:" + directory.path() + ":" + inside, 1 << 20, 4'096);
  ASSERT_FALSE(target) << "nothing here is a 3FS";
#ifdef TRIMTAB_USRBIO
  EXPECT_EQ(target.error().message.find("TRIMTAB_USRBIO"), std::string::npos);
#else
  EXPECT_NE(target.error().message.find("TRIMTAB_USRBIO"), std::string::npos) << target.error().message;
#endif
  EXPECT_EQ(directory_of("usrbio:/3fs/stage:/3fs/stage/kv"), "/3fs/stage/kv");
  for (const char* wrong : {"usrbio:/3fs/stage", "usrbio:/3fs/stage:/tmp/kv", "usrbio::/tmp/kv"}) {
    const auto refused = open_target(wrong, 1 << 20, 4'096);
    ASSERT_FALSE(refused) << wrong;
    EXPECT_NE(refused.error().message.find("usrbio:MOUNT:DIRECTORY"), std::string::npos) << wrong;
  }
}

}  // namespace
}  // namespace trimtab::kv_pool
