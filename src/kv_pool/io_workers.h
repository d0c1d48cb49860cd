#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "kv_pool/file_tier.h"

namespace trimtab::kv_pool {

/// Read the entry's file slot into memory.
struct LoadJob {
  FileEntry entry;
  std::uint32_t memory_slot = 0;
  std::span<std::byte> destination;
};
enum class IoOutcome : std::uint8_t { kDone, kCorrupt, kFailed };
struct LoadDone {
  LoadJob job;
  IoOutcome outcome = IoOutcome::kDone;
  std::string message;
};

/// Write blocks of the memory tier to file slots, after forgetting `erased`.
struct StoreJob {
  struct Item {
    FileEntry entry;  // with the file slot to write
    std::uint32_t memory_slot = 0;
    std::span<const std::byte> content;
    bool corrupt = false;  // out: the content no longer had the checksum it was put with; not written
  };
  std::vector<FileEntry> erased;
  std::vector<Item> items;
};
struct StoreDone {
  StoreJob job;
  bool failed = false;
  std::string message;
};

/// The two threads that touch the disk, so that the loader's own thread answers while they wait: one reads
/// for users who wait, the other makes new blocks durable. Results are announced on `wake_fd`.
class IoWorkers {
 public:
  explicit IoWorkers(FileTier& tier);
  ~IoWorkers();
  IoWorkers(const IoWorkers&) = delete;
  IoWorkers& operator=(const IoWorkers&) = delete;

  void load(LoadJob job);
  /// At most one at a time.
  void store(StoreJob job);
  std::vector<LoadDone> take_loads();
  std::vector<StoreDone> take_stores();
  int wake_fd() const { return wake_.get(); }

 private:
  void run_loads();
  void run_stores();
  void announce();
  LoadDone do_load(LoadJob job);
  StoreDone do_store(StoreJob job);

  FileTier& tier_;
  FileDescriptor wake_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  std::deque<LoadJob> loads_;
  std::deque<StoreJob> stores_;
  std::vector<LoadDone> loads_done_;
  std::vector<StoreDone> stores_done_;
  std::thread reader_, writer_;
};

}  // namespace trimtab::kv_pool
