#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "kv_target/file/testing/life.h"
#include "kv_target/file/testing/temp_directory.h"
#include "kv_target/file/testing/wrapped_engine.h"
#include "kv_target/file_target.h"

namespace trimtab::kv_target::file::testing {
namespace {

/// Ends the process in the middle of the operation, when its number has come.
WrappedEngine::Before end_at(int& countdown) {
  return [&countdown](const Io& io) -> std::optional<std::int64_t> {
    if (countdown-- > 0) return std::nullopt;
    const std::uint64_t half = io.bytes / 2 / 4096 * 4096;  // as O_DIRECT permits
    if (io.kind == Io::Kind::kWrite && ::pwrite(io.fd, io.memory, half, static_cast<off_t>(io.offset)) < 0)
      _exit(8);
    _exit(1);
  };
}

// Before and amid every operation of the kernel's, and at every step between them, for both engines.
TEST(Crash, EndingAtAnyStepLosesNothingConfirmedAndInventsNothing) {
  for (const bool uring : {true, false}) {
    int steps = 0;
    for (bool ended = false; !ended; ++steps) {
      ASSERT_LT(steps, 400);
      const TempDirectory directory(TempDirectory::memory());
      int words[2];
      ASSERT_EQ(pipe(words), 0);
      const pid_t child = fork();
      ASSERT_GE(child, 0);
      if (child == 0) {
        int countdown = steps;
        auto options = small(directory.path(), uring);
        options.on_step = [&](std::string_view) {
          if (countdown-- == 0) _exit(1);
        };
        options.wrap_engine = [&](std::unique_ptr<IoEngine> inner) {
          return std::make_unique<WrappedEngine>(std::move(inner), end_at(countdown));
        };
        auto target = FileTarget::open(options);
        if (!target) _exit(3);
        base::Prng prng(11);
        serve(**target, words[1], prng, 7, 0);
        _exit(0);
      }
      close(words[1]);
      History history;
      for (Word word; read(words[0], &word, sizeof word) == sizeof word;) listen(history, word);
      close(words[0]);
      int status = 0;
      waitpid(child, &status, 0);
      ASSERT_TRUE(WIFEXITED(status));
      ASSERT_LE(WEXITSTATUS(status), 1);
      ended = WEXITSTATUS(status) == 0;
      auto target = FileTarget::open(small(directory.path(), uring));
      ASSERT_TRUE(target) << base::to_string(target.error());
      std::string wrong;
      ASSERT_EQ(history.judge(**target, wrong), 0) << "ended at step " << steps << wrong;
    }
    EXPECT_GT(steps, 60) << "seven batches, and more than one new log";
  }
}

TEST(Crash, AStormOfKills) {
  const TempDirectory directory;
  History history;
  base::Prng prng(3);
  for (int life = 0; life < 12; ++life) {
    int words[2];
    ASSERT_EQ(pipe(words), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      close(words[0]);
      auto target = FileTarget::open(small(directory.path(), life % 2 == 0));
      if (!target) _exit(3);
      base::Prng of_child(100 + static_cast<std::uint64_t>(life));
      serve(**target, words[1], of_child, 100'000, static_cast<std::uint64_t>(life) << 32);
      _exit(0);
    }
    close(words[1]);
    // Killed after so many words; what it said until it was dead counts.
    std::uint64_t left = 20 + prng.below(300);
    for (Word word; read(words[0], &word, sizeof word) == sizeof word;) {
      listen(history, word);
      if (--left == 0) kill(child, SIGKILL);
    }
    close(words[0]);
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status)) << WEXITSTATUS(status);
    auto target = FileTarget::open(small(directory.path(), true));
    ASSERT_TRUE(target) << base::to_string(target.error());
    std::string wrong;
    ASSERT_EQ(history.judge(**target, wrong), 0) << "life " << life << wrong;
  }
}

}  // namespace
}  // namespace trimtab::kv_target::file::testing
