#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/units.h"
#include "kv_code/stripe.h"
#include "kv_store/places.h"
#include "kv_target/target.h"

namespace trimtab::kv_store {

/// How a shard is asked for: piece p is the bytes from end[p - 1] to end[p] of it.
struct Pieces {
  std::vector<std::size_t> ends;

  std::uint32_t count() const { return static_cast<std::uint32_t>(ends.size()); }
  std::size_t begin(std::uint32_t piece) const { return piece == 0 ? 0 : ends[piece - 1]; }
  std::size_t bytes(std::uint32_t piece) const { return ends[piece] - begin(piece); }
};
/// The header and the first `first_layers` layers, up to a whole `unit` where that is not all, then the rest;
/// 0 or all of them: in one piece.
Pieces make_pieces(const kv_code::StripeLayout& layout, std::uint32_t first_layers, std::size_t unit = 1);

/// The read of one block: which shards to ask for, when to hedge, when it is over. Pure: `step` takes what
/// happened and the time, and says what to do.
///
/// `at_start` shards are asked for in the given order; ten whole ones of one writing end it. When one comes
/// back missing or damaged the next is asked for at once; when ten are not there after `hedge_after`, one
/// more is, once. Answers after the end change nothing. It ends exactly once: done, unreadable (as soon as
/// ten can no longer come together), by `kTime` at or after the deadline, or cancelled. The owner tells all
/// answers that are there before it tells the time: after a standstill of the process they count.
///
/// Weakness: a shard that was asked for is waited for until the deadline when no other is left.
class StripeRead {
 public:
  struct Plan {
    std::vector<std::uint8_t> order;  // shards that may be asked for, best first; the others count as missing
    std::uint32_t at_start = 11;
    base::Nanos hedge_after = base::kForever;
    base::Nanos deadline = base::kForever;  // an instant
    bool all = false;                       // waits for every shard in `order`: a scrub
  };
  struct Event {
    enum class Kind : std::uint8_t { kStart, kAnswer, kTime, kCancel } kind = Kind::kStart;
    std::uint8_t shard = 0, piece = 0;
    kv_target::Outcome outcome = kv_target::Outcome::kDone;
    std::uint64_t bytes = 0;
    /// Where the shard's bytes lie, from its first on; stays there while the read lives.
    std::span<const std::byte> shard_bytes;
  };
  enum class End : std::uint8_t { kDone, kUnreadable, kLate, kCancelled };
  struct Actions {
    ShardSet submit = 0;             // all pieces of these
    std::uint32_t layers_ready = 0;  // so far
    base::Nanos wake = base::kForever;
    std::optional<End> ended;  // once
  };

  StripeRead(const kv_code::StripeLayout& layout, BlockKey key, const Pieces& pieces, Plan plan);
  Actions step(const Event& event, base::Nanos now);

  const kv_code::StripeReader& reader() const { return reader_; }
  /// Before the first step: `StripeReader::place_into`.
  void place_into(std::span<std::byte> block, std::uint32_t from_layer) {
    reader_.place_into(block, from_layer);
  }
  /// Shards that answered with something unusable, or with nothing.
  ShardSet missing() const { return missing_; }
  ShardSet damaged() const { return damaged_; }
  ShardSet failed() const { return failed_; }
  bool hedged() const { return hedged_; }
  bool over() const { return over_; }

 private:
  enum class Shard : std::uint8_t { kIdle, kAsked, kWhole, kBad };
  void answer(const Event& event);
  void bad(std::uint32_t shard, ShardSet& kind);
  void ask_next(Actions& actions);
  Actions end(Actions actions, End how);
  bool idle_left() const { return next_ < plan_.order.size(); }

  const kv_code::StripeLayout* layout_;
  const Pieces* pieces_;
  Plan plan_;
  kv_code::StripeReader reader_;
  std::array<Shard, kShards> shards_{};
  std::array<std::uint32_t, kShards> arrived_{};  // pieces, bit by bit
  std::size_t next_ = 0;                          // in the order
  std::uint32_t asked_ = 0;
  base::Nanos hedge_at_ = base::kForever;
  ShardSet missing_ = 0, damaged_ = 0, failed_ = 0;
  bool hedged_ = false, over_ = false;
};

}  // namespace trimtab::kv_store
