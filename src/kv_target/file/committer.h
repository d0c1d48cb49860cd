#pragma once

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kv_target/file/directory.h"
#include "kv_target/file/io_engine.h"
#include "kv_target/file/task.h"

namespace trimtab::kv_target::file {

/// Makes writes and erases durable, many at a time. What arrives while one batch is under way is the next
/// one; its contents move meanwhile. A batch: all contents are written; each extent file they touch is
/// synced; the records of all go to the log by one write; the log is synced; only then does anyone hear of
/// it, and only then may the room of what it replaces or erases be used again.
///
/// When the log cannot be written or synced, nobody knows which of the records will be found after a crash:
/// that batch fails, its extents stay out of use, and nothing is committed before a log of what is held has
/// been put in the place of the doubtful one.
class Committer {
 public:
  using Live = std::function<std::vector<LogEntry>()>;
  /// `log_slack`: the log is written anew when it has this many records beyond twice the shards.
  Committer(IoEngine& engine, Directory& directory, ExtentAllocator& allocator, Live live,
            std::uint64_t log_slack);

  /// A write whose content is to be moved, or an erase.
  void join(Task& task);
  /// The content of a write that joined is where it belongs, or its outcome says why not.
  void moved(Task& task);
  /// Whether the batch of `task` is still open, so that it can be left.
  bool open(const Task& task) const { return task.batch == open_; }

  /// Goes on as far as it can; true when a batch has ended: its tasks are in `ended`, to be made true before
  /// the next call. `shards`: held at present.
  bool advance(std::uint64_t shards);
  const std::vector<Task*>& ended() const { return ended_; }

  /// Tokens from here on are the committer's.
  static constexpr std::uint64_t kTokens = 1ULL << 40;
  void on_done(const IoDone& done);
  /// Something of its is with the engine.
  std::uint64_t operations() const { return operations_; }

  std::uint64_t bytes_written() const { return bytes_written_; }
  std::uint64_t commits() const { return commits_; }
  std::uint64_t syncs() const { return syncs_; }
  std::uint64_t rewrites() const { return rewrites_; }
  const std::string& trouble() const { return trouble_; }

 private:
  enum class Stage { kIdle, kContents, kContentsSync, kLog, kLogSync, kDraft, kDraftSync };
  struct Batch {
    std::vector<Task*> tasks;
    std::uint64_t unmoved = 0;
  };
  Batch& closed() { return batches_[open_ ^ 1U]; }
  void sync_contents();
  void append();
  void take_log_room(std::uint64_t puts, std::uint64_t erases);
  void fail(base::Error error, bool doubtful);
  /// Those whose content has begun to move.
  static void fail_puts(Batch& batch, Outcome outcome);
  void end_batch();
  void begin_draft(Stage afterwards);
  void end_draft(bool written);
  void write(int fd, std::vector<std::byte> bytes, std::uint64_t offset);
  void sync(int fd);

  IoEngine& engine_;
  Directory& directory_;
  ExtentAllocator& allocator_;
  Live live_;
  std::uint64_t log_slack_ = 0, log_patience_ = 0;
  std::array<Batch, 2> batches_;
  std::uint8_t open_ = 0;
  std::vector<Task*> ended_;
  Stage stage_ = Stage::kIdle, afterwards_ = Stage::kIdle;
  std::uint64_t operations_ = 0;
  int error_ = 0;                 // of the operations of this stage
  std::vector<std::byte> bytes_;  // being written
  Io io_;
  std::uint64_t records_ahead_ = 0;
  std::optional<LogFile::Draft> draft_;
  bool doubtful_ = false;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> quarantine_;  // extents that doubtful records name
  std::uint64_t bytes_written_ = 0, commits_ = 0, syncs_ = 0, rewrites_ = 0;
  std::string trouble_;
};

}  // namespace trimtab::kv_target::file
