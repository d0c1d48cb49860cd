#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/prng.h"
#include "kv_target/target.h"

/// What every target must do, whatever it is made of. A room that has one writes
///   INSTANTIATE_TEST_SUITE_P(Memory, TargetConformance, ::testing::Values(memory_maker()));
/// in a test file that includes this header. The tests themselves are in conformance_tests.h, which one file
/// of a test program includes.
namespace trimtab::kv_target::testing {

struct Maker {
  std::string name;
  /// A fresh, empty target with room for about `capacity_bytes`; what it needs to live stays with it.
  std::function<std::unique_ptr<Target>(std::uint64_t capacity_bytes)> make;
  /// Ends the target as an orderly stop does and opens it again on what it kept; absent: keeps nothing.
  std::function<std::unique_ptr<Target>(std::unique_ptr<Target>)> reopen;
};
inline void PrintTo(const Maker& maker, std::ostream* out) { *out << maker.name; }

inline ShardName shard_name(std::uint64_t n, std::uint8_t shard = 0) {
  return {{base::mix(11, n), base::mix(12, n)}, shard};
}
/// The one right content of a name at its `version`-th writing.
inline std::vector<std::byte> content_of(const ShardName& name, std::size_t bytes,
                                         std::uint64_t version = 0) {
  base::Prng prng(name.key.high + version, name.key.low + name.shard);
  std::vector<std::byte> content(bytes);
  for (std::size_t i = 0; i < bytes; i += 8) {
    const std::uint64_t word = prng.next();
    std::memcpy(content.data() + i, &word, std::min<std::size_t>(8, bytes - i));
  }
  return content;
}

/// Submits one request at a time, or many, and waits for them (30 s at most: then the test fails).
class Driver {
 public:
  explicit Driver(Target& target) : target_(target) {}

  /// By tag. Fails the test when one does not come or comes twice.
  std::map<std::uint64_t, Completion> run(std::span<const Request> requests) {
    target_.submit(requests);
    return wait_for(requests.size());
  }
  /// Waits for `count` completions of what was submitted before.
  std::map<std::uint64_t, Completion> wait_for(std::size_t count) {
    std::map<std::uint64_t, Completion> by_tag;
    for (int rounds = 0; by_tag.size() < count && rounds < 3'000; ++rounds) {
      std::vector<Completion> some;
      if (target_.poll(some) == 0 && target_.wake_fd() >= 0) {
        pollfd wait{target_.wake_fd(), POLLIN, 0};
        ::poll(&wait, 1, 10);
      }
      for (const Completion& completion : some)
        EXPECT_TRUE(by_tag.emplace(completion.tag, completion).second) << "twice: tag " << completion.tag;
    }
    EXPECT_EQ(by_tag.size(), count) << target_.trouble();
    return by_tag;
  }
  Completion one(Request request) {
    request.tag = ++tag_;
    const auto done = run({&request, 1});
    return done.empty() ? Completion{0, Outcome::kFailed, 0} : done.begin()->second;
  }
  Outcome write(const ShardName& name, std::span<const std::byte> content) {
    Request request;
    request.verb = Verb::kWrite;
    request.name = name;
    request.content = content;
    return one(request).outcome;
  }
  Outcome erase(const ShardName& name) {
    Request request;
    request.verb = Verb::kErase;
    request.name = name;
    return one(request).outcome;
  }
  Completion read(const ShardName& name, std::span<std::byte> buffer, std::uint64_t offset = 0) {
    Request request;
    request.name = name;
    request.offset = offset;
    request.buffer = buffer;
    return one(request);
  }
  /// The whole shard; nothing when it is missing.
  std::optional<std::vector<std::byte>> content(const ShardName& name, std::size_t up_to = 1U << 20) {
    std::vector<std::byte> bytes(up_to);
    const Completion done = read(name, bytes);
    if (done.outcome != Outcome::kDone) return std::nullopt;
    bytes.resize(done.bytes);
    return bytes;
  }
  /// Follows the changes from `cursor` to their end into `held` (name to bytes).
  void follow(Cursor& cursor, std::map<ShardName, std::uint32_t>& held, std::uint32_t page = 7) {
    for (bool more = true; more;) {
      const auto answer = target_.changes(cursor, page);
      ASSERT_TRUE(answer.has_value()) << base::to_string(answer.error());
      if (answer->complete) held.clear();
      for (const Change& change : answer->changes) {
        if (change.bytes == 0)
          held.erase(change.name);
        else
          held[change.name] = change.bytes;
      }
      cursor = answer->next;
      more = answer->more;
    }
  }

 private:
  Target& target_;
  std::uint64_t tag_ = 1ULL << 40;
};

class TargetConformance : public ::testing::TestWithParam<Maker> {
 protected:
  std::unique_ptr<Target> make(std::uint64_t capacity_bytes = 32ULL << 20) {
    return GetParam().make(capacity_bytes);
  }
};

}  // namespace trimtab::kv_target::testing
