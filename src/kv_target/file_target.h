#pragma once

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "kv_target/change_feed.h"
#include "kv_target/file/committer.h"
#include "kv_target/file/mover.h"
#include "kv_target/shard_table.h"
#include "kv_target/target.h"

namespace trimtab::kv_target {

/// Shards in a directory: on a local disk, or on a mounted 3FS or NFS. See docs/kv.md, "Targets".
///
/// Contents lie in preallocated extent files, found by a crash-safe log; one `poll`-driven thread gives the
/// kernel hundreds of operations at once. Reads of a whole shard are checked against its checksum; parts are
/// the caller's to check. A write into the place of a shard needs room for both until it is durable.
class FileTarget final : public Target {
 public:
  struct Options {
    std::string directory;
    base::Nanos owner_patience = file::kOwnerPatience;  // for a process that has it, and may be ending
    std::uint64_t capacity_bytes = 1ULL << 30;          // of contents, each rounded up to units; may change
    std::uint64_t shard_bytes = 16ULL << 20;            // of one, at most; never more than an extent file
    file::Layout layout;                                // must be that with which the directory was made
    bool direct = true;                                 // O_DIRECT, where the file system has it
    bool uring = true;                                  // io_uring, where the kernel has it
    bool registered = true;  // staging memory registered with it, where memlock permits
    std::uint64_t staging_bytes = 4ULL << 20;
    std::uint32_t depth = 256;         // operations with the kernel at once
    std::uint32_t threads = 4;         // without io_uring
    std::uint64_t log_slack = 65'536;  // records beyond twice the shards before the log is written anew
    file::OnStep on_step;              // tests
    std::function<std::unique_ptr<file::IoEngine>(std::unique_ptr<file::IoEngine>)> wrap_engine;  // tests
  };
  /// Makes or recovers it. Errors as `file::Directory::open`, and kInvalidArgument for options that make no
  /// sense.
  static base::Result<std::unique_ptr<FileTarget>> open(Options options);
  /// Waits for what is with the kernel; what has not been completed by then is there whole or not at all.
  ~FileTarget() override;

  void submit(std::span<const Request> requests) override;
  std::size_t poll(std::vector<Completion>& completed) override;
  int wake_fd() const override { return event_.get(); }
  void cancel(std::uint64_t tag) override;
  base::Result<Changes> changes(const Cursor& since, std::uint32_t limit) override;
  Limits limits() const override;
  base::Result<Space> space() override;
  bool durable() const override { return true; }
  std::string trouble() const override;
  bool lacks_room() const override;

  /// How it reaches the disk, in words.
  std::string describe() const;
  struct Counters {
    std::uint64_t commits = 0, syncs = 0, log_rewrites = 0;
    std::uint64_t straight = 0, staged = 0;  // operations without and with a copy
    std::uint64_t damaged = 0;               // reads that found content which is not what was written
    std::uint64_t dropped_records = 0;       // when it was opened
    std::uint64_t holes = 0, largest_hole_bytes = 0;
  };
  Counters counters() const;

 private:
  FileTarget(Options options, file::Directory directory);
  base::Status start();

  void admit(const Request& request);
  /// Begins what the line permits, and gives it back when nothing is left of it.
  void drain(file::Lane& lane);
  /// False: it was answered at once.
  bool begin(file::Task& task);
  bool begin_read(file::Task& task);
  bool begin_write(file::Task& task);
  bool find_room(std::uint64_t units, file::Task& task);
  void moved(file::Task& task);
  void ended(file::Task& task);
  void leave(file::Task& task);
  void answer(file::Task& task);
  void reap();
  void pump();
  void signal() const;
  file::Task& new_task(const Request& request);

  Options options_;
  file::Descriptor event_;
  file::Directory directory_;
  file::Staging staging_;
  file::ExtentAllocator allocator_;
  std::unique_ptr<file::IoEngine> engine_;
  std::unique_ptr<file::Mover> mover_;
  std::unique_ptr<file::Committer> committer_;
  ShardTable<file::Extent> index_;
  ShardTable<file::Lane*> lanes_;  // of shards with requests
  std::vector<std::unique_ptr<file::Lane>> all_lanes_;
  std::vector<file::Lane*> free_lanes_;
  std::vector<std::unique_ptr<file::Task>> tasks_;
  std::vector<file::Task*> free_tasks_;
  std::vector<Completion> done_;
  std::vector<file::IoDone> reaped_;
  std::vector<file::Task*> moved_;
  ChangeFeed feed_;
  std::uint64_t units_used_ = 0, caller_bytes_written_ = 0, damaged_ = 0;
  std::uint32_t refusals_until_growth_ = 0;
  std::string trouble_;     // of making room
  bool disk_full_ = false;  // which is why
};

}  // namespace trimtab::kv_target
