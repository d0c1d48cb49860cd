#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "kv_target/file/testing/history.h"
#include "kv_target/file/testing/temp_directory.h"
#include "kv_target/file/testing/wrapped_engine.h"
#include "kv_target/file_target.h"

namespace trimtab::kv_target::file::testing {
namespace {

FileTarget::Options small(const std::string& directory, bool uring) {
  FileTarget::Options options;
  options.directory = directory;
  options.capacity_bytes = 48 * 4096;
  options.layout.file_bytes = 16 * 4096;
  options.uring = uring;
  options.staging_bytes = 1 << 16;
  options.log_slack = 8;
  return options;
}

/// What the child tells before it asks, and after it was answered.
struct Word {
  std::uint64_t n = 0, version = 0, what = 0;  // 0: asks; 1: done; 2: refused
};
void say(int fd, const Word& word) {
  if (::write(fd, &word, sizeof word) != sizeof word) _exit(9);
}
void listen(History& history, const Word& word) {
  word.what == 0 ? history.asked(word.n, word.version) : history.confirmed(word.n, word.what == 1);
}

/// One batch after another of writes and erases of nine shards, as the numbers will have it.
void serve(FileTarget& target, int fd, base::Prng& prng, int batches, std::uint64_t first_version) {
  std::uint64_t version = first_version;
  for (int batch = 0; batch < batches; ++batch) {
    std::vector<std::vector<std::byte>> contents(6);
    std::vector<Request> requests(6);
    std::vector<std::uint64_t> shards(6);
    for (std::uint64_t i = 0; i < 6; ++i) {
      shards[i] = prng.below(9);
      const bool erases = prng.below(3) == 0;
      say(fd, {shards[i], erases ? 0 : ++version, 0});
      contents[i] = History::content(shards[i], version);
      requests[i].name = shard_name(shards[i]);
      requests[i].verb = erases ? Verb::kErase : Verb::kWrite;
      requests[i].content = contents[i];
      requests[i].tag = i;
    }
    target.submit(requests);
    for (std::size_t ended = 0; ended < 6;) {
      std::vector<Completion> some;
      pollfd wait{target.wake_fd(), POLLIN, 0};
      if (target.poll(some) == 0) ::poll(&wait, 1, 100);
      for (const Completion& one : some) {
        const bool done = one.outcome == Outcome::kDone || one.outcome == Outcome::kMissing;
        say(fd, {shards[one.tag], 0, done ? 1U : 2U});
      }
      ended += some.size();
    }
  }
}

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
