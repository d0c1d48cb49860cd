#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "kv/prefix_index.h"
#include "kv_pool/io_workers.h"
#include "kv_pool/pool_stats.h"
#include "kv_pool/protocol.h"

namespace trimtab::kv_pool {

using ClientId = std::uint64_t;

/// What the pool holds and who uses it: the loader without its sockets. One thread; the disk is touched by
/// `IoWorkers` alone.
///
/// A slot of the memory tier goes free -> writing (granted to a user) or loading (from the file) -> ready. A
/// ready slot is evicted, oldest first, when nobody reads it and its content is durable (or there is no file
/// tier to wait for). A user that goes away loses its pins and grants; a slot granted to it holds nothing
/// that anyone could see.
class PoolStore {
 public:
  /// `memory` is cut into slots of `slot_stride` bytes. `tier` and `workers` are null for a memory-only pool.
  PoolStore(std::span<std::byte> memory, std::uint64_t slot_stride, std::uint64_t block_bytes,
            std::uint64_t first_epoch, const FileTier* tier, IoWorkers* workers);

  protocol::Matched match(std::span<const BlockKey> keys, bool counted);

  /// The answer, or nothing when the block is being read from the file: `take_answers` has it later.
  std::optional<protocol::Got> get(ClientId client, BlockKey key);
  /// False when the client holds no such pin (it breaks the protocol).
  bool unpin(ClientId client, std::uint32_t slot, bool corrupt);

  protocol::PutSlot put(ClientId client, BlockKey key, std::optional<BlockKey> parent);
  /// False when the slot was not granted to the client.
  bool commit(ClientId client, std::uint32_t slot, std::uint64_t checksum);

  /// The answer, or nothing when writes are under way.
  std::optional<protocol::Flushed> flush(ClientId client);

  /// Takes back everything the client holds.
  void leave(ClientId client);

  /// Folds in what the workers finished, and gives the writer its next batch.
  void advance();
  struct Answers {
    std::vector<std::pair<ClientId, protocol::Got>> gets;
    std::vector<std::pair<ClientId, protocol::Flushed>> flushes;
    std::vector<std::string> disk_errors;
  };
  Answers take_answers();
  /// Nothing waits for the disk.
  bool idle() const { return undurable_.empty() && !storing_; }

  PoolStats stats() const;

 private:
  enum class State : std::uint8_t { kFree, kWriting, kLoading, kReady, kWithdrawn };
  struct Slot {
    State state = State::kFree;
    BlockKey key;
    std::optional<BlockKey> parent;
    std::uint64_t checksum = 0;
    ClientId owner = 0;        // while writing
    std::uint32_t pins = 0;    // readers
    bool storing = false;      // the writer reads it
    std::uint64_t commit = 0;  // not 0: not yet durable; the number of its commit
  };
  struct FileSlot {
    std::uint64_t checksum = 0;
    std::uint32_t readers = 0;
  };

  std::optional<std::uint32_t> take_memory_slot();
  std::optional<std::uint32_t> take_file_slot(std::vector<FileEntry>& erased);
  std::span<std::byte> bytes(std::uint32_t slot) const;
  void pin(ClientId client, std::uint32_t slot);
  void drop_pin(std::uint32_t slot);
  void free_slot(std::uint32_t slot);
  void withdraw_memory(std::uint32_t slot);
  void withdraw_file(BlockKey key);
  void settle(Slot& slot);  // it is durable now, or never will be
  void start_store();
  void finish(const LoadDone& done);
  void finish(const StoreDone& done);
  void fall_back_to_memory(const std::string& reason);
  void answer_flushes();

  std::span<std::byte> memory_;
  std::uint64_t slot_stride_, block_bytes_;
  IoWorkers* workers_;
  bool writes_files_;

  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_;
  kv::PrefixIndex index_;  // key -> slot that is ready

  std::vector<FileSlot> file_slots_;
  std::vector<std::uint32_t> file_free_;
  kv::PrefixIndex file_index_;             // key -> file slot that is durable
  std::vector<FileEntry> pending_erases_;  // damaged entries whose slots become free once the log says so

  std::map<BlockKey, std::uint32_t> in_progress_;         // writing or loading
  std::map<std::uint32_t, std::vector<ClientId>> loads_;  // memory slot -> who waits for it
  std::map<ClientId, std::multiset<std::uint32_t>> pins_;
  std::map<ClientId, std::uint32_t> grants_;

  std::deque<std::uint32_t> dirty_;  // ready slots for the writer, oldest commit first
  std::set<std::uint64_t> undurable_;
  std::uint64_t last_commit_ = 0;
  bool storing_ = false;
  std::vector<std::pair<ClientId, std::uint64_t>> flushes_;  // with the last commit they wait for

  PoolStats counters_;
  Answers answers_;
};

}  // namespace trimtab::kv_pool
