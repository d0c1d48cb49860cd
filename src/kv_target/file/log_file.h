#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "kv_target/file/descriptor.h"
#include "kv_target/file/extent_log.h"

namespace trimtab::kv_target::file {

/// Tests end the process at a named step.
using OnStep = std::function<void(std::string_view step)>;

/// `what: why (errno)`, from the room.
tl::unexpected<base::Error> system_error(const std::string& what, int reason);

/// How a directory that was served before is cut up; nothing where no target's log is readable.
std::optional<Layout> layout_of(const std::string& directory);

/// The file `log` of a target's directory. Appending to it is the committer's affair; this makes it, puts a
/// new one in its place, and takes room for it ahead, so that neither a full disk nor the growth of the file
/// gets in the way of a commit.
class LogFile {
 public:
  LogFile() = default;
  LogFile(std::string directory, const Layout& layout, OnStep on_step)
      : directory_(std::move(directory)), layout_(layout), on_step_(std::move(on_step)) {}

  /// What the log says; nothing live when there is none yet. kInvalidArgument: a file of somebody else's, or
  /// a directory of another layout.
  base::Result<LogScan> read() const;

  /// A new log, in the making beside the old one: `image` is to be written at 0 and synced, then `adopt`.
  struct Draft {
    Descriptor file;
    std::uint64_t log_id = 0, records = 0, room = 0;
    std::vector<std::byte> image;
  };
  base::Result<Draft> draft(const std::vector<LogEntry>& live) const;
  /// Puts it in the place of the old one, durably. After an error with `uncertain` set, either may be found
  /// after a crash.
  base::Status adopt(Draft draft);
  /// Writes, syncs and adopts, waiting for each: when a target opens.
  base::Status write_anew(const std::vector<LogEntry>& live);

  /// Goes on behind what `scan` found in the old log, when a full disk has no room for a new one.
  base::Status keep(const LogScan& scan);

  /// Room for `bytes` more at the end; kIo or kResourceExhausted when the file system has none.
  base::Status make_room(std::uint64_t bytes);
  std::uint64_t room_left() const { return room_ > end() ? room_ - end() : 0; }

  /// `entry` as the next record at the end of `bytes`; `ahead` records were encoded for it before.
  void encode(RecordKind kind, const LogEntry& entry, std::uint64_t ahead,
              std::vector<std::byte>& bytes) const;
  void appended(std::uint64_t records) { records_ += records; }

  int fd() const { return file_.get(); }
  std::uint64_t end() const { return kRecordsBegin + records_ * kRecordBytes; }
  std::uint64_t records() const { return records_; }
  bool uncertain() const { return uncertain_; }

 private:
  std::string path(std::string_view name) const { return directory_ + "/" + std::string(name); }
  void step(std::string_view name) const {
    if (on_step_) on_step_(name);
  }

  std::string directory_;
  Layout layout_;
  OnStep on_step_;
  Descriptor file_;
  std::uint64_t log_id_ = 0, records_ = 0, room_ = 0;
  bool uncertain_ = false;
};

}  // namespace trimtab::kv_target::file
