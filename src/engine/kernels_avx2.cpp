// Compiled for x86-64-v3 (src/CMakeLists.txt sets the flags).
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "engine/kernels.h"

namespace trimtab::engine {

namespace {
#define TRIMTAB_LANES "engine/lanes_avx2.inc"
#include "engine/kernels_body.inc"
}  // namespace

extern const Kernels kAvx2Kernels;
const Kernels kAvx2Kernels = table(Isa::kAvx2);

}  // namespace trimtab::engine
