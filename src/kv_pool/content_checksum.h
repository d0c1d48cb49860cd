#pragma once

#include <cstdint>
#include <span>

#include "base/hash.h"
#include "base/running_checksum.h"
#include "model/ids.h"

namespace trimtab::kv_pool {

inline std::uint64_t content_seed(model::BlockKey key) { return key.high ^ key.low; }

/// Of a block's content, with its key in the seed: the right content of another key does not match. Of one
/// that comes layer by layer: base::RunningChecksum(content_seed(key)), its layers in their order.
inline std::uint64_t content_checksum(model::BlockKey key, std::span<const std::byte> bytes) {
  return base::checksum(bytes, content_seed(key));
}

}  // namespace trimtab::kv_pool
