#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "kv_store/buffer_pool.h"
#include "kv_store/latency.h"
#include "kv_store/ops.h"
#include "kv_store/target_health.h"
#include "kv_target/target.h"

namespace trimtab::kv_store {

/// The targets of a store, each behind a queue and credits: no more bytes and requests are under way at one
/// than it and the configuration allow, the others wait in order. A request that is out too long is answered
/// kFailed and counts against the target's health; its memory stays until the target itself lets go of it.
/// Only time in which somebody polled counts: a process that was stopped for an hour has not waited that
/// long.
///
/// A target that died is asked for something that it lately failed to give: one that still lists its shards,
/// and takes new ones, but cannot read (its disk fails, its mount hangs) is not believed again for that.
class Channels {
 public:
  struct Options {
    std::uint64_t target_bytes_in_flight = 8ULL << 20;
    base::Nanos request_timeout{1'000'000'000};
    TargetHealth::Options health;
  };
  struct Outgoing {
    kv_target::Request request;  // its tag is set here
    Ticket ticket;
    BufferPool::Id buffer = BufferPool::kNone;  // held until the target is done with it
    std::shared_ptr<const void> memory;         // the same, of what is not in the pool
    bool later = false;                         // waits behind others: the rest of a block's shards
  };
  /// What became of a target in a `poll`.
  struct Turn {
    TargetId target = 0;
    TargetHealth::Action action = TargetHealth::Action::kNone;  // kDied, kRevive
  };

  Channels(std::vector<std::unique_ptr<kv_target::Target>> targets, const Options& options, BufferPool& pool,
           const OpTable& ops);
  ~Channels();

  /// Queued; handed to the target by the next `flush` for which there is credit. A target that is not usable
  /// answers kFailed at the next `poll`.
  void send(TargetId target, const Outgoing& outgoing, base::Nanos now);
  void flush(base::Nanos now);
  /// Completions, timeouts, probes. True when there was anything.
  bool poll(base::Nanos now, std::vector<Answer>& answers, std::vector<Turn>& turns);
  /// Drops what waits for operations that are over, and with it the hold on their memory.
  void purge();

  /// Ends the old target (nothing of it comes back any more) and begins with another, believed alive.
  void replace(TargetId id, std::unique_ptr<kv_target::Target> target, std::vector<Answer>& answers);
  void add(std::unique_ptr<kv_target::Target> target);
  /// The owner could not follow a revived target's changes, or had another sign that it fails.
  void failed(TargetId id, base::Nanos now, std::vector<Answer>& answers, std::vector<Turn>& turns);

  std::uint32_t count() const { return static_cast<std::uint32_t>(channels_.size()); }
  kv_target::Target& target(TargetId id) { return *channels_[id].target; }
  const Latency& latency(TargetId id) const { return channels_[id].latency; }
  TargetHealth::State health(TargetId id) const { return channels_[id].health.state(); }
  bool usable(TargetId id) const { return channels_[id].health.usable(); }
  /// Completes within `submit`: nothing to wait for, no use in hedging.
  bool immediate(TargetId id) const { return channels_[id].immediate; }
  /// Its reads may end beyond the shard's end (`Limits::read_unit_bytes`).
  bool reads_units(TargetId id) const { return channels_[id].reads_units; }
  std::uint64_t bytes_in_flight(TargetId id) const { return channels_[id].bytes; }
  std::size_t requests_in_flight() const { return out_; }
  base::Nanos next_wake() const;

  struct Counters {
    std::uint64_t requests = 0, timeouts = 0, failures = 0, late = 0;
  };
  const Counters& counters() const { return counters_; }

 private:
  struct Slot {
    Ticket ticket;
    kv_target::Verb verb = kv_target::Verb::kRead;
    TargetId target = 0;
    kv_target::ShardName name;
    BufferPool::Id buffer = BufferPool::kNone;
    std::shared_ptr<const void> memory;
    std::uint64_t bytes = 0;
    base::Nanos since{0};
    std::uint32_t generation = 0;
    bool used = false, answered = false, probe = false;
  };
  /// First in, first out, in one piece of memory: thousands of requests wait for their turn at once.
  class Line {
   public:
    bool empty() const { return first_ == all_.size(); }
    Outgoing& front() { return all_[first_]; }
    void push_back(const Outgoing& one) { all_.push_back(one); }
    void pop_front() {
      all_[first_].memory.reset();
      if (2 * ++first_ >= all_.size()) compact();
    }
    void clear() { all_.clear(), first_ = 0; }
    auto begin() const { return all_.begin() + static_cast<std::ptrdiff_t>(first_); }
    auto end() const { return all_.end(); }
    template <class Over>
    void erase_if(const Over& over) {
      compact();
      std::erase_if(all_, over);
    }

   private:
    void compact() {
      all_.erase(all_.begin(), begin());
      first_ = 0;
    }
    std::vector<Outgoing> all_;
    std::size_t first_ = 0;
  };
  struct Channel {
    Channel(std::unique_ptr<kv_target::Target> of, const TargetHealth::Options& health_options)
        : target(std::move(of)), health(health_options) {}
    std::unique_ptr<kv_target::Target> target;
    TargetHealth health;
    Latency latency;
    Line waiting, later;
    std::uint32_t in_a_row = 0;  // of `waiting` while something was in `later`
    std::uint64_t bytes = 0, bytes_most = 0;
    std::uint32_t requests = 0, requests_most = 0;
    bool immediate = false, reads_units = false;
    bool asking = false;  // after a failed write: a small read is under way since `asked`
    base::Nanos asked{0};
    std::vector<std::byte> probe_buffer;
    std::deque<kv_target::ShardName> unread;  // the latest that could not be read since one could
  };
  void open(Channel& channel);
  /// The queue whose first is due; null when nothing waits.
  static Line* due(Channel& channel);
  void release(BufferPool::Id buffer);
  std::uint32_t slot_for(TargetId target, const Outgoing& outgoing, base::Nanos now);
  void free_slot(std::uint32_t slot);
  /// Takes what was lent out of the completion.
  void complete(TargetId id, kv_target::Completion& completion, base::Nanos now, std::vector<Answer>& answers,
                std::vector<Turn>& turns);
  void observe(TargetId id, TargetHealth::Event event, base::Nanos now, std::vector<Answer>& answers,
               std::vector<Turn>& turns);
  void give_up(TargetId id, std::vector<Answer>& answers);
  /// Between two polls far apart this process stood still, not the targets: it shifts what was out.
  void forgive_standstill(base::Nanos now);
  void check_time(base::Nanos now, std::vector<Answer>& answers, std::vector<Turn>& turns);
  void probe(TargetId id, base::Nanos now);
  static void note_unread(Channel& channel, const kv_target::ShardName& name);
  /// After a write that failed; the answer to a small read counts.
  void ask_alive(TargetId id, base::Nanos now);

  Options options_;
  BufferPool& pool_;
  const OpTable& ops_;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_;
  std::vector<Answer> refused_;
  std::vector<TargetId> dirty_;
  std::vector<kv_target::Request> batch_;
  std::vector<kv_target::Completion> completed_;
  std::size_t out_ = 0;
  base::Nanos next_check_{0}, last_poll_{0};
  Counters counters_;
  std::vector<Channel> channels_;  // last: targets end before the memory they may write into
};

}  // namespace trimtab::kv_store
