#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/error.h"

namespace trimtab::io {

/// The bytes of a pickle, read from front to back. The first error stays; after it every read gives nothing.
class PickleBytes {
 public:
  explicit PickleBytes(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::size_t at() const { return at_; }
  bool failed() const { return failure_.has_value(); }
  const std::optional<base::Error>& failure() const { return failure_; }
  void fail(std::string message, base::Code code = base::Code::kDataLoss);

  std::span<const std::byte> take(std::uint64_t n);
  /// Little-endian, n <= 8 bytes.
  std::uint64_t number(std::size_t n);
  std::string text(std::uint64_t n);
  /// Up to the next line end, which is taken too.
  std::string line();

 private:
  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
  std::optional<base::Error> failure_;
};

}  // namespace trimtab::io
