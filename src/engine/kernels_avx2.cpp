// Compiled for x86-64-v3 (src/CMakeLists.txt sets the flags).
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "engine/kernels.h"

namespace trimtab::engine {

namespace {
// clang-format off: the kernels are written in terms of the lanes
#include "engine/kernels_body.inc"
#include "engine/lanes_avx2.inc"
// clang-format on
}  // namespace

extern const Kernels kAvx2Kernels;
const Kernels kAvx2Kernels = table(Isa::kAvx2);

}  // namespace trimtab::engine
