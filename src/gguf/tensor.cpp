#include "gguf/tensor.h"

#include <fmt/format.h>

#include <bit>

#include "base/check.h"

namespace trimtab::gguf {

namespace {

// Values and bytes per block, from GGML's block structs.
constexpr std::array<TypeLayout, 18> kLayouts{{
    {TensorType::kF32, "F32", 1, 4},
    {TensorType::kF16, "F16", 1, 2},
    {TensorType::kQ4_0, "Q4_0", 32, 18},
    {TensorType::kQ4_1, "Q4_1", 32, 20},
    {TensorType::kQ5_0, "Q5_0", 32, 22},
    {TensorType::kQ5_1, "Q5_1", 32, 24},
    {TensorType::kQ8_0, "Q8_0", 32, 34},
    {TensorType::kQ2_K, "Q2_K", 256, 84},
    {TensorType::kQ3_K, "Q3_K", 256, 110},
    {TensorType::kQ4_K, "Q4_K", 256, 144},
    {TensorType::kQ5_K, "Q5_K", 256, 176},
    {TensorType::kQ6_K, "Q6_K", 256, 210},
    {TensorType::kI8, "I8", 1, 1},
    {TensorType::kI16, "I16", 1, 2},
    {TensorType::kI32, "I32", 1, 4},
    {TensorType::kI64, "I64", 1, 8},
    {TensorType::kF64, "F64", 1, 8},
    {TensorType::kBF16, "BF16", 1, 2},
}};

}  // namespace

const TypeLayout* layout_of(std::uint32_t type_number) {
  for (const TypeLayout& layout : kLayouts) {
    if (static_cast<std::uint32_t>(layout.type) == type_number) return &layout;
  }
  return nullptr;
}

const TypeLayout& layout_of(TensorType type) {
  const TypeLayout* layout = layout_of(static_cast<std::uint32_t>(type));
  TRIMTAB_CHECK(layout != nullptr, fmt::format("tensor type {}", static_cast<std::uint32_t>(type)));
  return *layout;
}

std::size_t Tensor::row_bytes() const {
  const TypeLayout& layout = layout_of(type);
  return dims[0] / layout.values * layout.bytes;
}

std::span<const std::byte> Tensor::row(std::uint64_t row) const {
  TRIMTAB_CHECK(row < rows(), fmt::format("row {} of {} in {}", row, rows(), name));
  return data.subspan(row * row_bytes(), row_bytes());
}

float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1FU;
  const std::uint32_t mantissa = half & 0x3FFU;
  if (exponent == 0) {  // zero and subnormals: mantissa * 2^-24, exact in single precision
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
  }
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000U | (mantissa << 13));
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

}  // namespace trimtab::gguf
