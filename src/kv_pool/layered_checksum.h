#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "model/ids.h"

namespace trimtab::kv_pool {

/// content_checksum of a block that comes layer by layer: the pieces in their order give what the whole
/// gives.
class LayeredChecksum {
 public:
  explicit LayeredChecksum(model::BlockKey key);
  LayeredChecksum(LayeredChecksum&&) noexcept;
  LayeredChecksum& operator=(LayeredChecksum&&) noexcept;
  ~LayeredChecksum();

  void add(std::span<const std::byte> piece);
  /// Of all pieces so far.
  std::uint64_t value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trimtab::kv_pool
