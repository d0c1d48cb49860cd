#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "kv_code/stripe.h"
#include "kv_store/channels.h"
#include "kv_store/map_record.h"
#include "kv_store/stripe_write.h"

namespace trimtab::kv_store {

struct StoreOptions {
  kv_code::StripeLayout layout;
  std::vector<std::uint32_t> racks;  // of each target; empty: not known
  /// The pool's map, which is kept at the targets from now on (`open_pool`). None: a map of this store alone,
  /// made for these targets and written down nowhere.
  std::optional<MapRecord> record;
  bool keeps_record = true;    // false: goes by it, and leaves what the targets keep alone
  std::shared_ptr<void> kept;  // memory that the targets may still write into

  /// Of shard buffers, all reads, writes and repairs together.
  std::uint64_t memory_bytes = 256ULL << 20;
  /// So many of them are made ready when the store is opened: the first reads meet no page faults.
  std::uint32_t buffers_ready = 0;
  /// Under way for reads at any time: what the network's switch and this machine take in without loss.
  std::uint64_t read_bytes_in_flight = 32ULL << 20;
  Channels::Options targets;

  std::uint32_t reads_at_start = 11;  // 10 to 12 shards; 10 where every target answers at once
  /// The first so many layers of a shard are asked for by a request of their own; 0: one request.
  std::uint32_t first_layers = 0;
  /// The hedge waits for this thousandth of the targets' latest answer times, within these bounds.
  std::uint32_t hedge_per_mille = 950;
  base::Nanos hedge_first{2'000'000}, hedge_least{200'000}, hedge_most{100'000'000};
  base::Nanos read_timeout{5'000'000'000};
  /// Checks the whole block's checksum too where no shard was computed. Its slices' are checked always.
  bool check_block = false;

  WritePolicy write_policy = WritePolicy::kTen;
  base::Nanos write_timeout{10'000'000'000};  // of writes without a deadline

  base::Nanos feed_interval{50'000'000};
  std::uint32_t feed_page = 4'096;

  std::uint64_t repair_bytes_per_second = 200'000'000;
  std::uint32_t repair_jobs = 4;  // at a time
  std::uint32_t repair_queue = 65'536;
  /// Between the two looks after which an unreadable block's shards are erased: longer than any write takes.
  base::Nanos second_look{60'000'000'000};
  /// A shard's old copy is erased so long after its move, when the map was confirmed to be the newest.
  base::Nanos old_copy_grace{10'000'000'000};
};

/// What happened, from `StripedStore::poll`.
struct StoreEvent {
  enum class Kind : std::uint8_t {
    kLayers,       // read: the first `layers` layers of the block are in place
    kRead,         // the whole block is
    kMissing,      // not in the store, or not readable any more: compute it
    kReadFailed,   // not in time
    kWritten,      // or was present
    kWriteFailed,  // nothing of it counts
    kFull,         // the same, for want of room
  } kind = Kind::kRead;
  std::uint64_t handle = 0;
  std::uint32_t index = 0;  // read: of the block in its call
  std::uint32_t layers = 0;
  bool last = false;  // of the handle
};

struct StoreCounters {
  // Reads of blocks: each ends as one of the first four.
  std::uint64_t reads = 0, reads_missing = 0, reads_failed = 0, reads_cancelled = 0;
  std::uint64_t reads_degraded = 0;  // a data shard was computed
  std::uint64_t reads_retried = 0, hedges = 0;
  std::uint64_t stale = 0;  // the index claimed what could not be read
  std::uint64_t shards_missing = 0, shards_short = 0, shards_foreign = 0, shards_corrupt = 0,
                shards_damaged = 0;  // the target said so
  std::uint64_t shards_other_writing = 0;
  // Writes: each ends as one of these.
  std::uint64_t writes = 0, writes_present = 0, writes_joined = 0, writes_failed = 0, writes_full = 0;
  std::uint64_t writes_lacking = 0;  // of `writes`: with fewer than twelve shards
  std::uint64_t erases = 0;
  std::uint64_t repairs = 0, repairs_failed = 0, shards_repaired = 0, blocks_unreadable = 0,
                blocks_withdrawn = 0;
  std::uint64_t targets_died = 0, targets_revived = 0;
};

}  // namespace trimtab::kv_store
