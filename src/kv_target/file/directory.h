#pragma once

#include <string>
#include <vector>

#include "kv_target/file/extent_allocator.h"
#include "kv_target/file/log_file.h"
#include "kv_target/file/owner_lock.h"

namespace trimtab::kv_target::file {

struct DirectoryOptions {
  std::string path;
  std::uint64_t capacity_bytes = 0;
  Layout layout;
  bool direct = true;  // O_DIRECT where it works
  OnStep on_step;
  base::Nanos owner_patience = kOwnerPatience;
};

/// The files of a target: `lock`, `log`, and `extents.000000` and so on, each preallocated. Opening makes or
/// recovers it and writes the log anew (on a full disk: syncs the old one and goes on behind it), so that
/// nothing that is served rests on bytes which are not durable.
class Directory {
 public:
  /// kUnavailable: in use, and still so after `owner_patience`; kInvalidArgument: of another layout, or not
  /// ours; kIo, kResourceExhausted: the file system refuses.
  static base::Result<Directory> open(DirectoryOptions options);

  const Layout& layout() const { return options_.layout; }
  LogFile& log() { return log_; }
  /// What was found, once.
  std::vector<LogEntry> take_recovered() { return std::move(recovered_); }
  std::uint64_t dropped_records() const { return dropped_; }

  /// The extent files' room, as far as there are files.
  void add_room_to(ExtentAllocator& allocator) const;
  /// One more file, or a longer one, up to the capacity: what was added goes to `allocator`. False: that is
  /// all there can be. kResourceExhausted: the disk is full; kIo: it refuses.
  base::Result<bool> grow(ExtentAllocator& allocator);

  std::size_t file_of(std::uint64_t unit) const { return unit / layout().units_per_file(); }
  int fd(std::size_t file) const { return files_[file].descriptor.get(); }
  std::uint64_t offset_of(std::uint64_t unit) const {
    return unit % layout().units_per_file() * layout().unit_bytes;
  }
  std::uint64_t units() const;
  bool direct() const { return direct_; }
  /// What offset, length and memory of a direct read must be multiples of: often finer than a unit, so that a
  /// slice of a small shard does not cost the whole of it.
  std::uint64_t read_unit_bytes() const { return read_unit_bytes_; }
  std::string describe() const;

 private:
  base::Status prepare();
  base::Result<LogScan> recover();
  void probe_direct();
  base::Status open_file(std::size_t number, bool create);
  std::uint64_t wanted_units(std::size_t number) const;
  base::Status lengthen(std::size_t number, std::uint64_t units);
  std::string path(std::string_view name) const { return options_.path + "/" + std::string(name); }
  void step(std::string_view name) const {
    if (options_.on_step) options_.on_step(name);
  }

  struct File {
    Descriptor descriptor;
    std::uint64_t units = 0;
  };
  DirectoryOptions options_;
  Descriptor lock_;
  LogFile log_;
  std::vector<File> files_;
  std::vector<LogEntry> recovered_;
  std::uint64_t dropped_ = 0;
  bool direct_ = false;
  std::uint64_t read_unit_bytes_ = 1;
  std::string why_buffered_ = "asked for";
};

}  // namespace trimtab::kv_target::file
