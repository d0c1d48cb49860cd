#pragma once

#include <cstdint>
#include <span>

#include "base/hash.h"
#include "model/ids.h"

namespace trimtab::kv_pool {

/// Of a block's content, with its key in the seed: the right content of another key does not match.
inline std::uint64_t content_checksum(model::BlockKey key, std::span<const std::byte> bytes) {
  return base::checksum(bytes, key.high ^ key.low);
}

}  // namespace trimtab::kv_pool
