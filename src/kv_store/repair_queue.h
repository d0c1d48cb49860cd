#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>

#include "base/units.h"
#include "kv_store/places.h"

namespace trimtab::kv_store {

/// How many bytes a second background work may move. `spend` may overdraw; then `ready` waits until the debt
/// is paid. At most a second's worth is saved up.
class ByteRate {
 public:
  explicit ByteRate(std::uint64_t bytes_per_second) : rate_(static_cast<std::int64_t>(bytes_per_second)) {}
  bool ready(base::Nanos now) { return refill(now), saved_ > 0; }
  void spend(std::uint64_t bytes) { saved_ -= static_cast<std::int64_t>(bytes); }
  /// When `ready` will be true.
  base::Nanos ready_at(base::Nanos now);

 private:
  void refill(base::Nanos now);

  std::int64_t rate_, saved_ = 1;
  base::Nanos at_{0};
};

enum class RepairReason : std::uint8_t {
  kLacking,     // written with fewer than twelve shards, or a target came back or was replaced
  kDamaged,     // a read met a bad shard
  kUnreadable,  // gives no block: to be erased when that is still so at a second look
};

/// Blocks to mend: each once, oldest first, bounded. What finds no room is dropped and counted: the next
/// scrub meets it again.
class RepairQueue {
 public:
  explicit RepairQueue(std::uint32_t capacity) : capacity_(capacity) {}

  struct Job {
    BlockKey key;
    RepairReason reason = RepairReason::kLacking;
    base::Nanos not_before{0};
    std::uint32_t tries = 0;
  };
  void push(const Job& job);
  void drop(BlockKey key) { jobs_.erase(key); }
  /// The oldest that may be done now.
  std::optional<Job> pop(base::Nanos now);
  std::size_t size() const { return jobs_.size(); }
  std::uint64_t dropped() const { return dropped_; }
  /// None may be done before.
  base::Nanos quiet_until() const { return jobs_.empty() ? base::kForever : quiet_until_; }
  bool empty() const { return jobs_.empty(); }

 private:
  struct Entry {
    Job job;
    std::uint64_t order = 0;
  };
  std::uint32_t capacity_;
  std::uint64_t last_ = 0, dropped_ = 0;
  base::Nanos quiet_until_{0};  // none may be done before
  std::map<BlockKey, Entry> jobs_;
  std::deque<std::pair<BlockKey, std::uint64_t>> order_;  // may name jobs that are gone
};

}  // namespace trimtab::kv_store
