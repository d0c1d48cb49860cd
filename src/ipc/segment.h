#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/error.h"

namespace trimtab::ipc {

/// Memory shared between processes: a file on a memory file system, mapped read-write. The creator names it;
/// others open it by path. Unmapped on destruction; the file stays until `remove`, so that a restarted peer
/// can find it (or a supervisor sweep it away). Or it has no name (`anonymous`): then it is passed on by
/// descriptor, and goes when the last process that has it ends, however it ends.
class Segment {
 public:
  /// Creates (or replaces) `path` with `bytes` zero bytes. Pages are taken when first touched; too little
  /// room is an error now.
  static base::Result<Segment> create(const std::string& path, std::size_t bytes);
  static base::Result<Segment> open(const std::string& path, bool read_only = false);
  static void remove(const std::string& path);
  /// Without a name; `label` shows in /proc. On huge pages when the machine has so many to spare, or else on
  /// ordinary ones, which the kernel is asked to merge. Its size is sealed: no process can cut it short under
  /// the others. kResourceExhausted: more than the machine has.
  static base::Result<Segment> anonymous(const std::string& label, std::size_t bytes, bool huge_pages);
  /// Maps what another process passed on; the descriptor becomes the segment's. kInvalidArgument: one whose
  /// size another process could still change.
  static base::Result<Segment> adopt(int fd);

  Segment() = default;
  Segment(Segment&& other) noexcept { swap(other); }
  Segment& operator=(Segment&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Segment();

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::span<std::byte> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }
  /// To pass on; -1 of a segment with a name.
  int fd() const { return fd_; }
  bool huge_pages() const { return huge_pages_; }

 private:
  void swap(Segment& other) noexcept;
  static base::Result<Segment> map(int fd, const std::string& path, std::size_t bytes, bool read_only);
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::string path_;
  int fd_ = -1;
  bool huge_pages_ = false;
};

}  // namespace trimtab::ipc
