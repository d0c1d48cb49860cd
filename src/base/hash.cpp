#include "base/hash.h"

#include <xxhash.h>
#if defined(__x86_64__)
#include <xxh_x86dispatch.h>  // after xxhash.h, whose names it replaces by those that choose AVX2 or AVX-512
#endif

namespace trimtab::base {

std::uint64_t checksum(std::span<const std::byte> bytes, std::uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

}  // namespace trimtab::base
