#include "policy/experts/plan/kernels.h"

#include <array>
#include <cstddef>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace trimtab::experts {
namespace {

#if defined(__SSE2__)
using Ints = __m128i;
constexpr int kWidth = 4;
inline Ints load_ints(const std::int16_t* p) {
  return _mm_loadu_si128(static_cast<const __m128i*>(static_cast<const void*>(p)));
}
inline Ints broadcast_pair(const std::int16_t* p) {
  int pair;
  __builtin_memcpy(&pair, p, sizeof pair);
  return _mm_set1_epi32(pair);
}
inline Ints multiply_add(Ints sum, Ints a, Ints b) { return _mm_add_epi32(sum, _mm_madd_epi16(a, b)); }
inline void store_floats(float* p, Ints a) { _mm_storeu_ps(p, _mm_cvtepi32_ps(a)); }
#else
struct Ints {
  std::int32_t value[4];
};
constexpr int kWidth = 4;
/// A pair of 16-bit numbers travels in one 32-bit lane.
inline Ints load_ints(const std::int16_t* p) {
  Ints out;
  __builtin_memcpy(&out, p, sizeof out);
  return out;
}
inline Ints broadcast_pair(const std::int16_t* p) {
  Ints out;
  for (std::int32_t& value : out.value) __builtin_memcpy(&value, p, sizeof value);
  return out;
}
inline Ints multiply_add(Ints sum, const Ints& a, const Ints& b) {
  std::int16_t x[8], y[8];
  __builtin_memcpy(x, &a, sizeof x);
  __builtin_memcpy(y, &b, sizeof y);
  for (int i = 0; i < 4; ++i) sum.value[i] += x[2 * i] * y[2 * i] + x[2 * i + 1] * y[2 * i + 1];
  return sum;
}
inline void store_floats(float* p, const Ints& a) {
  for (int i = 0; i < 4; ++i) p[i] = static_cast<float>(a.value[i]);
}
#endif

#include "policy/experts/plan/kernels_body.inc"

}  // namespace

#if defined(__x86_64__)
extern const Kernels kAvx2PlanKernels;
extern const Kernels kAvx512PlanKernels;

const Kernels* kernels_of(Isa isa) {
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512cd");
  if (isa == Isa::kAvx512) return v4 ? &kAvx512PlanKernels : nullptr;
  if (isa == Isa::kAvx2) return v3 ? &kAvx2PlanKernels : nullptr;
  return &kTable;
}
#else
const Kernels* kernels_of(Isa isa) { return isa == Isa::kBase ? &kTable : nullptr; }
#endif

const Kernels& kernels() {
  constexpr std::array kBestFirst{Isa::kAvx512, Isa::kAvx2};
  for (const Isa isa : kBestFirst) {
    if (const Kernels* table = kernels_of(isa); table != nullptr) return *table;
  }
  return kTable;
}

}  // namespace trimtab::experts
