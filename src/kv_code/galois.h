#pragma once

#include <array>
#include <cstdint>

namespace trimtab::kv_code {

/// GF(2^8) with the polynomial x^8 + x^4 + x^3 + x^2 + 1, whose generator is 2.
struct Galois {
  std::array<std::uint8_t, 510> power{};  // 2^i; twice, so that sums of logarithms need no reduction
  std::array<std::uint8_t, 256> logarithm{};

  constexpr Galois() {
    std::uint32_t value = 1;
    for (std::uint32_t i = 0; i < 255; ++i) {
      power[i] = power[i + 255] = static_cast<std::uint8_t>(value);
      logarithm[value] = static_cast<std::uint8_t>(i);
      value <<= 1;
      if (value > 255) value ^= 0x11d;
    }
  }
  constexpr std::uint8_t multiply(std::uint8_t a, std::uint8_t b) const {
    if (a == 0 || b == 0) return 0;
    return power[static_cast<std::size_t>(logarithm[a]) + logarithm[b]];
  }
  constexpr std::uint8_t inverse(std::uint8_t a) const { return power[255U - logarithm[a]]; }
};

inline constexpr Galois kGalois{};

}  // namespace trimtab::kv_code
