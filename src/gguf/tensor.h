#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/error.h"

namespace trimtab::gguf {

/// Storage formats of the GGML library that a file may hold; the numbers are the file's own.
enum class TensorType : std::uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kI8 = 24,
  kI16 = 25,
  kI32 = 26,
  kI64 = 27,
  kF64 = 28,
  kBF16 = 30,
};

/// A format stores `values` numbers in `bytes` bytes; a row is a whole number of such blocks.
struct TypeLayout {
  TensorType type;
  std::string_view name;
  std::uint32_t values;
  std::uint32_t bytes;
};

/// Nothing (nullptr) for a number that this build does not know.
const TypeLayout* layout_of(std::uint32_t type_number);
const TypeLayout& layout_of(TensorType type);

/// One tensor of a mapped file. `dims[0]` is the length of a row (the fastest dimension); unused dims are 1.
struct Tensor {
  std::string_view name;
  TensorType type = TensorType::kF32;
  std::uint32_t dim_count = 1;
  std::array<std::uint64_t, 4> dims{1, 1, 1, 1};
  std::span<const std::byte> data;

  std::uint64_t row_values() const { return dims[0]; }
  std::uint64_t rows() const { return dims[1] * dims[2] * dims[3]; }
  std::size_t row_bytes() const;
  /// The stored bytes of row `row` (row < rows()).
  std::span<const std::byte> row(std::uint64_t row) const;
};

/// True for the formats `dequantize_row` knows: F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q6_K.
bool can_dequantize(TensorType type);

/// Writes the `tensor.row_values()` numbers of one row as f32, by GGML's formulas and in its order of
/// operations, so the bits equal those of its reference functions. `out` must have row_values() elements.
/// Errors: kUnsupported for another format, kInvalidArgument for a row that does not exist.
base::Status dequantize_row(const Tensor& tensor, std::uint64_t row, std::span<float> out);

/// IEEE half to single precision, subnormals included.
float half_to_float(std::uint16_t half);

}  // namespace trimtab::gguf
