#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "base/units.h"
#include "kv_store/places.h"
#include "kv_target/target.h"

namespace trimtab::kv_store {

/// When a write counts.
enum class WritePolicy : std::uint8_t {
  kAll,  // all twelve shards are durable
  /// Ten or eleven will do where the other targets are dead by the health rule, full, or failed the shard
  /// three times; what lacks is queued for repair. Never because a target is late: of a block that counts
  /// with ten shards while two targets are merely slow, the loss of two others leaves eight.
  kTen,
};

/// The write of one block's twelve shards. Pure, like StripeRead. It ends exactly once: durable, with the
/// shards that lack; or failed, and then every shard that may have been written is to be erased, which
/// targets carry out after the write itself (requests for one shard keep their order).
/// Deadlines as for StripeRead: all answers that are there count before `kTime` does.
class StripeWrite {
 public:
  struct Plan {
    ShardSet places = kv_code::kAllShards;  // shards whose target can be written to; the others lack
    WritePolicy policy = WritePolicy::kTen;
    base::Nanos deadline = base::kForever;  // an instant; a shard that is still out then fails the write
  };
  struct Event {
    enum class Kind : std::uint8_t { kStart, kAnswer, kTime, kCancel } kind = Kind::kStart;
    std::uint8_t shard = 0;
    kv_target::Outcome outcome = kv_target::Outcome::kDone;
    bool usable = false;  // kFailed: its target is still relied on, so the shard is worth another try
  };
  enum class End : std::uint8_t { kDurable, kFull, kFailed, kLate, kCancelled };
  struct Actions {
    ShardSet submit = 0, erase = 0;
    base::Nanos wake = base::kForever;
    std::optional<End> ended;
  };

  explicit StripeWrite(const Plan& plan) : plan_(plan) {}
  Actions step(const Event& event, base::Nanos now);

  ShardSet written() const { return written_; }
  /// After kDurable: what is not known to be written.
  ShardSet lacking() const { return static_cast<ShardSet>(kv_code::kAllShards & ~written_); }
  bool over() const { return over_; }

 private:
  Actions end(End how);

  Plan plan_;
  ShardSet out_ = 0, written_ = 0;
  ShardSet uncertain_ = 0;  // failed or given up: written or not
  std::array<std::uint8_t, kShards> tries_{};
  bool full_ = false, over_ = false;
};

}  // namespace trimtab::kv_store
