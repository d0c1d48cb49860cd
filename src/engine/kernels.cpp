#include "engine/kernels.h"

#include <cpuid.h>

#include <cstdlib>
#include <new>

#include "base/check.h"

namespace trimtab::engine {

extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;

std::size_t block_elements(WeightType type) {
  return type == WeightType::kF32 || type == WeightType::kF16 ? 1 : 32;
}

std::size_t row_bytes(WeightType type, std::size_t elements) {
  switch (type) {
    case WeightType::kF32:
      return elements * 4;
    case WeightType::kF16:
      return elements * 2;
    case WeightType::kQ8_0:
      return elements / 32 * 34;
    case WeightType::kQ4_0:
      return elements / 32 * 18;
    case WeightType::kQ4_1:
      return elements / 32 * 20;
  }
  TRIMTAB_CHECK(false, "an unknown weight type");
}

const Kernels& kernels_for(Isa isa) { return isa == Isa::kAvx512 ? kAvx512Kernels : kAvx2Kernels; }

/// Not every compiler knows the name in __builtin_cpu_supports.
static bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

bool machine_has(Isa isa) {
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                  __builtin_cpu_supports("bmi2") && has_f16c();
  if (isa == Isa::kAvx2) return v3;
  return v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512cd");
}

base::Result<const Kernels*> best_kernels() {
  if (machine_has(Isa::kAvx512)) return &kernels_for(Isa::kAvx512);
  if (machine_has(Isa::kAvx2)) return &kernels_for(Isa::kAvx2);
  return base::fail(base::Code::kUnsupported,
                    "the reference engine needs an x86-64-v3 processor (AVX2, FMA, F16C), and this one lacks "
                    "them: run it on a newer machine",
                    "engine");
}

AlignedFloats::~AlignedFloats() { std::free(data_); }

float* AlignedFloats::ensure(std::size_t count) {
  if (count > count_) {
    std::free(data_);
    const std::size_t bytes = (count * sizeof(float) + 63) / 64 * 64;
    data_ = static_cast<float*>(std::aligned_alloc(64, bytes));
    if (data_ == nullptr) throw std::bad_alloc();
    count_ = count;
  }
  return data_;
}

}  // namespace trimtab::engine
