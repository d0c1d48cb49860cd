#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/prng.h"
#include "base/units.h"
#include "kv_target/memory_target.h"

namespace trimtab::kv_store::testing {

/// A target in memory whose answers come late, in any order, wrong, or never, as the test says. Time is the
/// test's. It carries a request out when its answer is due, as a distant machine would, so that memory is
/// touched late; one that dies forgets what it had not carried out, or carries it out without saying so.
class FaultyTarget final : public kv_target::Target {
 public:
  struct Faults {
    base::Nanos delay_least{20'000}, delay_most{200'000};
    base::Nanos slow{0};  // more for every request
    std::uint32_t fail_per_mille = 0;
    std::uint32_t corrupt_per_mille = 0;  // a byte of what was read is another one
    std::uint32_t truncate_per_mille = 0;
    bool dead = false;  // everything fails at once
    bool hung = false;  // nothing is answered
    // It says what it holds, takes more, and gives nothing of it back:
    bool sick = false;   // reads of that fail
    bool stuck = false;  // they are not answered until `unstick`
    std::string says{};  // its trouble
    bool lacks_room = false;
  };

  FaultyTarget(std::uint64_t seed, std::uint64_t capacity_bytes, std::uint64_t epoch = 1)
      : prng_(seed, 77), inner_({capacity_bytes, 16ULL << 20, epoch}) {}

  Faults faults;
  void set_time(base::Nanos now) { now_ = now; }
  void unstick() {
    faults.stuck = false;
    for (const kv_target::Request& request : stuck_) waiting_.emplace(std::pair{now_, ++order_}, request);
    stuck_.clear();
  }
  /// As a process that ends and comes back with what it held: it tells all of it anew.
  void restart() { ++lives_; }
  std::uint64_t reads = 0, corrupted = 0;
  /// A look behind the faults.
  kv_target::MemoryTarget& inner() { return inner_; }
  /// The earliest time at which something is due.
  base::Nanos due() const {
    if (faults.hung) return base::kForever;
    return waiting_.empty() ? base::kForever : waiting_.begin()->first.first;
  }

  void submit(std::span<const kv_target::Request> requests) override {
    for (const kv_target::Request& request : requests) {
      if (faults.stuck && holds(request)) {
        stuck_.push_back(request);
        continue;
      }
      const auto span = static_cast<std::uint64_t>((faults.delay_most - faults.delay_least).value + 1);
      base::Nanos at =
          now_ + faults.slow + faults.delay_least + base::Nanos{static_cast<std::int64_t>(prng_.below(span))};
      if (faults.dead) at = now_;
      // Requests for one shard keep their order.
      base::Nanos& last = last_of_[request.name];
      at = std::max(at, last + base::Nanos{1});
      last = at;
      waiting_.emplace(std::pair{at, ++order_}, request);
    }
  }

  std::size_t poll(std::vector<kv_target::Completion>& completed) override {
    std::size_t count = 0;
    while (!waiting_.empty() && !faults.hung && waiting_.begin()->first.first <= now_) {
      const kv_target::Request request = waiting_.begin()->second;
      waiting_.erase(waiting_.begin());
      completed.push_back(carry_out(request));
      ++count;
    }
    return count;
  }

  int wake_fd() const override { return 1'000'000; }  // never to be waited for: tests move the time
  void cancel(std::uint64_t) override {}
  base::Result<kv_target::Changes> changes(const kv_target::Cursor& since, std::uint32_t limit) override {
    if (faults.dead || faults.hung) return base::fail(base::Code::kUnavailable, "dead by the test", "test");
    // Its epoch is of the life in which it was told.
    kv_target::Cursor inner_since = since;
    inner_since.epoch -= lives_ << 32U;
    auto changes = inner_.changes(inner_since, limit);
    changes->next.epoch += lives_ << 32U;
    return changes;
  }
  kv_target::Limits limits() const override { return {16ULL << 20, bytes_in_flight, 256}; }
  base::Result<kv_target::Space> space() override { return inner_.space(); }
  bool durable() const override { return true; }
  std::string trouble() const override { return faults.dead ? "dead" : faults.says; }
  bool lacks_room() const override { return faults.lacks_room; }

  std::uint64_t bytes_in_flight = 8ULL << 20;

 private:
  kv_target::Completion carry_out(const kv_target::Request& request) {
    using kv_target::Outcome;
    const bool write = request.verb != kv_target::Verb::kRead;
    if (faults.dead) {
      // The write may have happened before it died.
      if (write && prng_.below(2) == 0) inner(request);
      return {request.tag, Outcome::kFailed, 0};
    }
    if (prng_.below(1'000) < faults.fail_per_mille) return {request.tag, Outcome::kFailed, 0};
    if (faults.sick && holds(request)) return {request.tag, Outcome::kFailed, 0};
    kv_target::Completion done = inner(request);
    if (write || done.outcome != Outcome::kDone) return done;
    ++reads;
    if (done.bytes > 0 && prng_.below(1'000) < faults.corrupt_per_mille) {
      request.buffer[prng_.below(done.bytes)] ^= std::byte{0x41};
      ++corrupted;
    }
    if (done.bytes > 0 && prng_.below(1'000) < faults.truncate_per_mille)
      done.bytes = prng_.below(done.bytes);
    return done;
  }
  bool holds(const kv_target::Request& read) {
    std::vector<std::byte> some(1);
    kv_target::Request look = read;
    look.buffer = some;
    look.offset = 0;
    return read.verb == kv_target::Verb::kRead && inner(look).outcome == kv_target::Outcome::kDone;
  }
  kv_target::Completion inner(const kv_target::Request& request) {
    kv_target::Request copied = request;
    copied.lend = false;  // the fault is in the caller's copy
    inner_.submit({&copied, 1});
    std::vector<kv_target::Completion> done;
    inner_.poll(done);
    return done.front();
  }

  base::Nanos now_{0};
  base::Prng prng_;
  kv_target::MemoryTarget inner_;
  std::uint64_t order_ = 0, lives_ = 0;
  std::map<std::pair<base::Nanos, std::uint64_t>, kv_target::Request> waiting_;
  std::map<kv_target::ShardName, base::Nanos> last_of_;
  std::vector<kv_target::Request> stuck_;
};

}  // namespace trimtab::kv_store::testing
