// Compiled for x86-64-v3 (src/CMakeLists.txt sets the flags).
#include <immintrin.h>

#include <cstddef>

#include "policy/experts/plan/kernels.h"

namespace trimtab::experts {
namespace {

using Ints = __m256i;
constexpr int kWidth = 8;
inline Ints load_ints(const std::int16_t* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(static_cast<const void*>(p)));
}
inline Ints broadcast_pair(const std::int16_t* p) {
  int pair;
  __builtin_memcpy(&pair, p, sizeof pair);
  return _mm256_set1_epi32(pair);
}
inline Ints multiply_add(Ints sum, Ints a, Ints b) { return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b)); }
inline void store_floats(float* p, Ints a) { _mm256_storeu_ps(p, _mm256_cvtepi32_ps(a)); }

#include "policy/experts/plan/kernels_body.inc"

}  // namespace

extern const Kernels kAvx2PlanKernels;
const Kernels kAvx2PlanKernels = kTable;

}  // namespace trimtab::experts
