#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/error.h"

namespace trimtab::ipc {

/// Memory shared between processes: a file on a memory file system, mapped read-write. The creator names it;
/// others open it by path. Unmapped on destruction; the file stays until `remove`, so that a restarted peer
/// can find it (or a supervisor sweep it away).
class Segment {
 public:
  /// Creates (or replaces) `path` with `bytes` zero bytes. Pages are taken when first touched; too little
  /// room is an error now.
  static base::Result<Segment> create(const std::string& path, std::size_t bytes);
  static base::Result<Segment> open(const std::string& path, bool read_only = false);
  static void remove(const std::string& path);

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

 private:
  void swap(Segment& other) noexcept;
  static base::Result<Segment> map(int fd, const std::string& path, std::size_t bytes, bool read_only);
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::string path_;
};

}  // namespace trimtab::ipc
