#pragma once

#include <poll.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "kv_target/file/testing/history.h"
#include "kv_target/file_target.h"

namespace trimtab::kv_target::file::testing {

/// A target in a process that a test ends: small, so that files grow and logs are written anew soon.
inline FileTarget::Options small(const std::string& directory, bool uring) {
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
inline void say(int fd, const Word& word) {
  if (::write(fd, &word, sizeof word) != sizeof word) _exit(9);
}
inline void listen(History& history, const Word& word) {
  word.what == 0 ? history.asked(word.n, word.version) : history.confirmed(word.n, word.what == 1);
}

/// One batch after another of writes and erases of nine shards, as the numbers will have it.
inline void serve(FileTarget& target, int fd, base::Prng& prng, int batches, std::uint64_t first_version) {
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

}  // namespace trimtab::kv_target::file::testing
