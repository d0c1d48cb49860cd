#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "kv_pool/pool_log.h"

namespace trimtab::kv_pool {

/// A descriptor that closes itself.
class FileDescriptor {
 public:
  explicit FileDescriptor(int fd = -1) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor();
  int get() const { return fd_; }

 private:
  int fd_ = -1;
};

/// Blocks on disk: `blocks`, one preallocated file of fixed slots, and `log`, which says what the slots hold.
///
/// Crash safety: a slot is overwritten only after the erase of its old entry is durable, and an entry counts
/// only after its content is durable. Whatever moment a kill or a power cut strikes, the log names no slot
/// whose content is not that of its key; should the disk itself damage one, the checksum tells.
///
/// `write` belongs to one thread, `read` may run in another (of slots that are not being written).
class FileTier {
 public:
  /// Makes or recovers the tier in `directory` (made when missing, locked against other loaders).
  static base::Result<FileTier> open(const std::string& directory, std::uint64_t file_bytes,
                                     std::uint64_t block_bytes);

  struct Store {
    FileEntry entry;
    std::span<const std::byte> content;  // block_bytes
  };
  /// Forgets `erased`, then stores `stores` into free slots (those of `erased` included); durable on return.
  /// After an error the tier takes no more writes: only a restart knows what is on disk.
  base::Status write(std::span<const FileEntry> erased, std::span<const Store> stores);
  /// The raw content of a slot; the caller verifies it.
  base::Status read(std::uint32_t slot, std::span<std::byte> destination) const;

  std::uint32_t slots() const { return slots_; }
  /// What was found at `open`, oldest first.
  const std::vector<FileEntry>& recovered() const { return recovered_; }
  std::uint64_t dropped_records() const { return dropped_; }

  /// Tests end the process at a named step to prove the crash safety above.
  std::function<void(std::string_view step)> on_step;

 private:
  FileTier() = default;
  base::Status prepare_directory();
  base::Status prepare_blocks(std::uint64_t file_bytes);
  base::Status recover();
  /// Writes a log of just the live entries and puts it in the place of the old one.
  base::Status rewrite_log();
  base::Status append(LogRecordKind kind, std::span<const FileEntry> entries);
  base::Status write_steps(std::span<const FileEntry> erased, std::span<const Store> stores);
  base::Status sync(const FileDescriptor& file, std::string_view name);
  void step(std::string_view name) const {
    if (on_step) on_step(name);
  }
  std::string path(std::string_view name) const;

  std::string directory_;
  std::uint64_t block_bytes_ = 0, stride_ = 0;
  std::uint32_t slots_ = 0;
  FileDescriptor lock_, blocks_, log_;
  std::vector<FileEntry> recovered_;
  std::uint64_t dropped_ = 0;
  struct Live {
    FileEntry entry;
    std::uint64_t order = 0;  // of its put; 0: the slot is empty
  };
  std::vector<Live> live_;  // by slot
  std::uint64_t next_order_ = 1;
  std::uint64_t log_records_ = 0;
  bool failed_ = false;
};

}  // namespace trimtab::kv_pool
