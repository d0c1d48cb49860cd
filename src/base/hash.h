#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace trimtab::base {

/// XXH3-64: checksums of blocks, rows and event streams. Not for keys that an adversary may choose.
std::uint64_t checksum(std::span<const std::byte> bytes, std::uint64_t seed = 0);

template <class T>
std::uint64_t checksum_of(std::span<const T> values, std::uint64_t seed = 0) {
  return checksum(std::as_bytes(values), seed);
}
inline std::uint64_t checksum(std::string_view text, std::uint64_t seed = 0) {
  return checksum(std::as_bytes(std::span{text.data(), text.size()}), seed);
}

/// Mixes one more value into a running hash (order matters).
constexpr std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  hash ^= value + 0x9e3779b97f4a7c15ULL + (hash << 12) + (hash >> 4);
  hash *= 0xff51afd7ed558ccdULL;
  return hash ^ (hash >> 33);
}

}  // namespace trimtab::base
