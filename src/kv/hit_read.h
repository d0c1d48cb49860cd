#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/hit_rule.h"
#include "kv/prefix_index.h"
#include "model/profile.h"

namespace trimtab::kv {

/// How the reading of something that an answer promised ended.
enum class ReadResult : std::uint8_t {
  kRead,    // it is here and its checksum matched
  kGone,    // it was withdrawn after the answer
  kFailed,  // it could not be read: timed out, refused, corrupt, the place is down
};

/// The reading of one request's hit: block KV, and the window state at its end. An answer of an index is old
/// when it arrives; what it promised may be gone. Then the hit shrinks to what was read, the rest is
/// computed, and `withdrawals` tells the index which of its entries cannot be kept. Never waits, never holds
/// anything: a request whose reads do not end is ended by `give_up`.
class HitRead {
 public:
  struct Withdrawal {
    BlockKey key;
    std::uint64_t seen_epoch = 0;  // for PrefixIndex::withdraw: what was stored later stays
  };
  enum class Outcome : std::uint8_t {
    kSkipped,   // no hit was possible: the prompt has no whole block before its last token
    kMiss,      // nothing was promised
    kHit,       // all that was promised was read
    kStale,     // something was gone
    kFallback,  // something could not be read
  };

  /// `keys`: of the prompt's full blocks. `query.matched_blocks` is an index's answer, `epoch` that of the
  /// index when it answered. Copies all it is given.
  HitRead(const HitQuery& query, std::span<const BlockKey> keys, std::uint64_t epoch,
          const model::KvLayout& layout);

  /// What is to be read and computed, as known now. It only ever shrinks.
  const Hit& hit() const { return hit_; }
  /// What the answer promised.
  const Hit& promised() const { return promised_; }

  /// Block `index` of the prompt, in any order. Several results of one block (of its parts, of a read that
  /// was tried twice): one that is not kRead makes it lost, whenever it comes.
  void on_block(std::uint32_t index, ReadResult result);
  /// The window state after `blocks` blocks.
  void on_snapshot(std::uint32_t blocks, ReadResult result);
  /// What has not come by now counts as failed: the hit ends before the first block that is not here.
  void give_up();
  /// Everything of `hit()` is here: the computation may start.
  bool ready() const;

  /// Entries that the index must not claim any longer, once each; a failed read too, so that a sick place is
  /// not asked for the same block by every request (Mooncake#2704).
  std::vector<Withdrawal> take_withdrawals();
  Outcome outcome() const;

 private:
  void decide();
  void note(ReadResult result);

  HitQuery query_;  // its spans are set where it is used, since this object may move
  std::vector<BlockKey> keys_;
  std::uint64_t epoch_;
  std::vector<std::uint32_t> snapshots_;  // that are held, as far as is known
  std::vector<std::vector<std::uint32_t>> pools_;
  model::KvLayout layout_;

  Hit promised_, hit_;
  std::vector<bool> read_, lost_;      // per promised block
  std::vector<std::uint32_t> loaded_;  // snapshots that are here
  std::vector<Withdrawal> withdrawals_;
  bool gone_ = false, failed_ = false;
};

}  // namespace trimtab::kv
