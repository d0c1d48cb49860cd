#include "kv_code/combine.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/check.h"
#include "kv_code/galois.h"

namespace trimtab::kv_code {

#if defined(__x86_64__)
namespace {

/// Multiplication by a constant is linear over the bits: column i of its matrix is constant x 2^i. The
/// instruction wants row b (of result bit b) in byte 7 - b.
constexpr std::array<std::uint64_t, 256> kMatrices = [] {
  std::array<std::uint64_t, 256> out{};
  for (std::uint32_t constant = 0; constant < 256; ++constant) {
    for (std::uint32_t i = 0; i < 8; ++i) {
      const std::uint32_t column =
          kGalois.multiply(static_cast<std::uint8_t>(constant), static_cast<std::uint8_t>(1U << i));
      for (std::uint32_t b = 0; b < 8; ++b)
        if ((column >> b & 1U) != 0) out[constant] |= std::uint64_t{1} << ((7 - b) * 8 + i);
    }
  }
  return out;
}();

constexpr std::size_t kStep = 64;
/// Ten streams are more than the processor's own fetching ahead follows to the end of a page.
constexpr std::size_t kAhead = 384;

template <std::uint32_t kRows>
__attribute__((target("avx512f,avx512bw,gfni"))) void combine(
    const std::array<std::array<std::uint8_t, kData>, kParity>& factors, const Coder::Sources& sources,
    const std::array<std::byte*, kParity>& out, std::size_t bytes) {
  __m512i matrices[kRows][kData];
  for (std::uint32_t r = 0; r < kRows; ++r)
    for (std::uint32_t j = 0; j < kData; ++j)
      matrices[r][j] = _mm512_set1_epi64(static_cast<long long>(kMatrices[factors[r][j]]));
  for (std::size_t at = 0; at < bytes; at += kStep) {
    const std::size_t left = bytes - at;
    const __mmask64 mask = left >= kStep ? ~__mmask64{0} : (__mmask64{1} << left) - 1;
    __m512i sums[kRows];
    for (std::uint32_t r = 0; r < kRows; ++r) {
      sums[r] = _mm512_setzero_si512();
      __builtin_prefetch(out[r] + at + kAhead, 1);
    }
    for (std::uint32_t j = 0; j < kData; ++j) {
      const __m512i some = _mm512_maskz_loadu_epi8(mask, sources[j] + at);
      _mm_prefetch(reinterpret_cast<const char*>(sources[j] + at + kAhead), _MM_HINT_T0);
      for (std::uint32_t r = 0; r < kRows; ++r)
        sums[r] = _mm512_xor_si512(sums[r], _mm512_gf2p8affine_epi64_epi8(some, matrices[r][j], 0));
    }
    for (std::uint32_t r = 0; r < kRows; ++r) _mm512_mask_storeu_epi8(out[r] + at, mask, sums[r]);
  }
}

}  // namespace

bool has_matrix_multiply() {
  static const bool has = __builtin_cpu_supports("gfni") && __builtin_cpu_supports("avx512f") &&
                          __builtin_cpu_supports("avx512bw");
  return has;
}

void combine_by_matrix(const std::array<std::array<std::uint8_t, kData>, kParity>& factors,
                       std::uint32_t rows, const Coder::Sources& sources,
                       const std::array<std::byte*, kParity>& out, std::size_t bytes) {
  (rows == 1 ? combine<1> : combine<2>)(factors, sources, out, bytes);
}

#else

bool has_matrix_multiply() { return false; }

void combine_by_matrix(const std::array<std::array<std::uint8_t, kData>, kParity>&, std::uint32_t,
                       const Coder::Sources&, const std::array<std::byte*, kParity>&, std::size_t) {
  TRIMTAB_CHECK(false);  // the caller asked `has_matrix_multiply`
}

#endif

}  // namespace trimtab::kv_code
