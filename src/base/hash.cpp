#include "base/hash.h"

#include <xxhash.h>

namespace trimtab::base {

std::uint64_t checksum(std::span<const std::byte> bytes, std::uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

}  // namespace trimtab::base
