// Compiled for x86-64-v4 (src/CMakeLists.txt sets the flags).
#include <immintrin.h>

#include <cstddef>

#include "policy/experts/plan/kernels.h"

namespace trimtab::experts {
namespace {

using Ints = __m512i;
constexpr int kWidth = 16;
inline Ints load_ints(const std::int16_t* p) { return _mm512_loadu_si512(static_cast<const void*>(p)); }
inline Ints broadcast_pair(const std::int16_t* p) {
  int pair;
  __builtin_memcpy(&pair, p, sizeof pair);
  return _mm512_set1_epi32(pair);
}
inline Ints multiply_add(Ints sum, Ints a, Ints b) { return _mm512_add_epi32(sum, _mm512_madd_epi16(a, b)); }
inline void store_floats(float* p, Ints a) { _mm512_storeu_ps(p, _mm512_cvtepi32_ps(a)); }

#include "policy/experts/plan/kernels_body.inc"

}  // namespace

extern const Kernels kAvx512PlanKernels;
const Kernels kAvx512PlanKernels = kTable;

}  // namespace trimtab::experts
