#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace trimtab::base {

/// The checksum of base/hash.h over bytes that come in pieces.
class RunningChecksum {
 public:
  explicit RunningChecksum(std::uint64_t seed = 0);
  ~RunningChecksum();
  RunningChecksum(RunningChecksum&&) noexcept;
  RunningChecksum& operator=(RunningChecksum&&) noexcept;

  /// Begins anew.
  void reset();
  void add(std::span<const std::byte> bytes);
  /// Of all that was added since the beginning.
  std::uint64_t value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trimtab::base
