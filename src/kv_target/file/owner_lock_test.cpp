#include "kv_target/file/owner_lock.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <thread>

#include "kv_target/file/testing/small_target.h"
#include "kv_target/file/testing/temp_directory.h"

namespace trimtab::kv_target::file::testing {
namespace {

constexpr base::Nanos kAtOnce{0}, kLong{60'000'000'000};

/// A process that owns something, until it is killed.
class Owner {
 public:
  template <class Take>
  explicit Owner(Take take) {
    int ready[2];
    EXPECT_EQ(::pipe(ready), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      const auto held = take();
      if (held) (void)!::write(ready[1], "1", 1);
      for (;;) ::pause();
    }
    ::close(ready[1]);
    char word = 0;
    EXPECT_EQ(::read(ready[0], &word, 1), 1) << "it could not take what it is to own";
    ::close(ready[0]);
  }
  ~Owner() {
    if (killer_.joinable()) killer_.join();
    if (pid_ > 0) kill();
  }
  /// What a supervisor does that starts the next one as soon as this one is dead.
  void kill_while_it_is_waited_for() {
    killer_ = std::jthread([this] {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      kill();
    });
  }
  pid_t pid() const { return pid_; }

 private:
  void kill() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  pid_t pid_ = 0;
  std::jthread killer_;
};

TEST(OwnerLock, AnOwnerThatEndsWithinTheWaitIsNoRefusal) {
  const TempDirectory directory(TempDirectory::memory());
  Owner owner([&] { return take_lock(directory.path("lock")); });
  EXPECT_FALSE(take_lock(directory.path("lock"), LockFile::kMake, kAtOnce)) << "it is there";
  owner.kill_while_it_is_waited_for();
  EXPECT_TRUE(take_lock(directory.path("lock"), LockFile::kMake, kLong));
}

TEST(OwnerLock, OneThatStaysIsNamedWithTheVainWait) {
  const TempDirectory directory(TempDirectory::memory());
  const Owner owner([&] { return take_lock(directory.path("lock")); });
  const auto lock = take_lock(directory.path("lock"), LockFile::kMake, base::Nanos{300'000'000});
  ASSERT_FALSE(lock);
  EXPECT_TRUE(lock.error().is_held());
  EXPECT_EQ(lock.error().held, fmt::format("process {}, kv_target_test; waited 0.3 s for it", owner.pid()));
}

TEST(OwnerLock, TheDescriptorsEndGivesItBack) {
  const TempDirectory directory(TempDirectory::memory());
  {
    const auto lock = take_lock(directory.path("lock"));
    ASSERT_TRUE(lock);
    const auto again = take_lock(directory.path("lock"), LockFile::kFind, kAtOnce);
    ASSERT_FALSE(again) << "within one process too";
    EXPECT_TRUE(again.error().is_held());
  }
  EXPECT_TRUE(take_lock(directory.path("lock"), LockFile::kFind, kAtOnce));
}

TEST(OwnerLock, AFileThatIsOnlyToBeFoundIsNotMade) {
  const TempDirectory directory(TempDirectory::memory());
  const auto lock = take_lock(directory.path("lock"), LockFile::kFind);
  ASSERT_FALSE(lock);
  EXPECT_EQ(lock.error().reason, ENOENT);
  EXPECT_FALSE(lock.error().is_held());
  EXPECT_FALSE(std::filesystem::exists(directory.path("lock")));
}

TEST(OwnerLock, ATargetWaitsForTheKilledOwnerOfItsDirectory) {
  const TempDirectory directory(TempDirectory::memory());
  auto options = plain(directory.path("a"));
  Owner owner([&] {
    auto target = FileTarget::open(options);
    if (target && write(**target, 1) != Outcome::kDone) target = tl::unexpected(base::Error{});
    return target;
  });
  options.owner_patience = kAtOnce;
  const auto refused = FileTarget::open(options);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, base::Code::kUnavailable);
  const std::string who = fmt::format("process {}, ", owner.pid());
  EXPECT_NE(refused.error().message.find(who), std::string::npos) << refused.error().message;
  options.owner_patience = kLong;
  owner.kill_while_it_is_waited_for();
  const auto next = open(options);
  ASSERT_TRUE(next);
  EXPECT_EQ(read(*next, 1), content(1)) << "and what it had confirmed is there";
}

}  // namespace
}  // namespace trimtab::kv_target::file::testing
