#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "kv_target/file/extent_allocator.h"

namespace trimtab::kv_target::file {

/// Aligned memory for contents whose own memory is not, in pages, bounded.
class Staging {
 public:
  static constexpr std::size_t kPageBytes = 4096;
  explicit Staging(std::size_t bytes);

  /// Null when no such piece is free at present.
  std::byte* take(std::size_t bytes);
  void give(std::byte* memory, std::size_t bytes);
  /// The largest piece that `take` ever gives.
  std::size_t piece_bytes_max() const { return bytes_ / 4; }
  std::span<std::byte> region() { return {memory_.get(), bytes_}; }

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  std::size_t bytes_ = 0;
  std::unique_ptr<std::byte[], Free> memory_;
  ExtentAllocator pages_;
};

}  // namespace trimtab::kv_target::file
