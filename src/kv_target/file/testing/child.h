#pragma once

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

namespace trimtab::kv_target::file::testing {

/// What a child's body answers where something it needs is not permitted here.
inline constexpr int kSkip = 77;

/// Runs `body` in a process of its own, which may give up rights for good. Its failures are the test's.
template <class Body>
void in_child(Body body) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const int answer = body();
    _exit(answer != 0 ? answer : ::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kSkip) GTEST_SKIP() << "not permitted here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

/// The same with a small file system of its own at `path`.
template <class Body>
void with_small_disk(const std::string& path, const std::string& size, Body body) {
  in_child([&] {
    if (unshare(geteuid() == 0 ? CLONE_NEWNS : CLONE_NEWUSER | CLONE_NEWNS) != 0) return kSkip;
    if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return kSkip;
    if (mount("target", path.c_str(), "tmpfs", 0, ("size=" + size).c_str()) != 0) return kSkip;
    body();
    return 0;
  });
}

}  // namespace trimtab::kv_target::file::testing
