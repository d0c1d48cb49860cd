#include "kv_code/copy_past.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace trimtab::kv_code {

#if defined(__x86_64__)
namespace {

constexpr std::size_t kLine = 64, kWorth = 512;

/// One store a line: a slice's fit in the store buffer, so that the next slice is read while they drain.
__attribute__((target("avx512f"))) void lines_avx512(std::byte* to, const std::byte* from,
                                                     std::size_t lines) {
  for (std::size_t i = 0; i < lines; ++i)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i * kLine), _mm512_loadu_si512(from + i * kLine));
}

void lines_sse2(std::byte* to, const std::byte* from, std::size_t lines) {
  const auto* in = reinterpret_cast<const __m128i*>(from);
  auto* out = reinterpret_cast<__m128i*>(to);
  for (std::size_t i = 0; i < lines; ++i, in += 4, out += 4) {
    const __m128i a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1);
    const __m128i c = _mm_loadu_si128(in + 2), d = _mm_loadu_si128(in + 3);
    _mm_stream_si128(out, a);
    _mm_stream_si128(out + 1, b);
    _mm_stream_si128(out + 2, c);
    _mm_stream_si128(out + 3, d);
  }
}

const bool kHasAvx512 = __builtin_cpu_supports("avx512f") != 0;

}  // namespace

void copy_past(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes >= kWorth) {
    const std::size_t head = (kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine;
    std::memcpy(to, from, head);
    to += head, from += head, bytes -= head;
    const std::size_t lines = bytes / kLine;
    (kHasAvx512 ? lines_avx512 : lines_sse2)(to, from, lines);
    to += lines * kLine, from += lines * kLine, bytes -= lines * kLine;
  }
  if (bytes > 0) std::memcpy(to, from, bytes);
}

void copied_past() { _mm_sfence(); }  // such stores are not ordered by themselves

#else

void copy_past(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

void copied_past() {}

#endif

}  // namespace trimtab::kv_code
