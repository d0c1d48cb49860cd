// Compiled for x86-64-v4 (src/CMakeLists.txt sets the flags).
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "engine/kernels.h"

namespace trimtab::engine {

namespace {
#define TRIMTAB_LANES "engine/lanes_avx512.inc"
#include "engine/kernels_body.inc"
}  // namespace

extern const Kernels kAvx512Kernels;
const Kernels kAvx512Kernels = table(Isa::kAvx512);

}  // namespace trimtab::engine
