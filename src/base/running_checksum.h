#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace trimtab::base {

/// The checksum of base/hash.h over bytes that come in pieces.
class RunningChecksum {
 public:
  RunningChecksum();
  ~RunningChecksum();
  RunningChecksum(const RunningChecksum&) = delete;
  RunningChecksum& operator=(const RunningChecksum&) = delete;

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
