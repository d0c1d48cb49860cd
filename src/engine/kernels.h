#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/error.h"

namespace trimtab::engine {

/// How the elements of a weight row are stored (GGUF's own block formats; a block never crosses a row).
enum class WeightType : std::uint8_t { kF32, kF16, kQ8_0, kQ4_0, kQ4_1 };

/// Elements of one storage block: row slices must start and end on it.
std::size_t block_elements(WeightType type);
/// Bytes of `elements` consecutive elements; `elements` is a multiple of `block_elements`.
std::size_t row_bytes(WeightType type, std::size_t elements);

/// A weight matrix [rows, cols] as it lies in the mapped file; `y = W x` takes x of `cols` elements.
struct Matrix {
  const std::byte* data = nullptr;
  WeightType type = WeightType::kF32;
  std::size_t rows = 0, cols = 0;
  std::size_t stride_bytes = 0;  // from one row to the next

  /// Rows [begin, end).
  Matrix row_slice(std::size_t begin, std::size_t end) const {
    return {data + begin * stride_bytes, type, end - begin, cols, stride_bytes};
  }
  /// Columns [begin, end); both multiples of the type's block.
  Matrix column_slice(std::size_t begin, std::size_t end) const {
    return {data + row_bytes(type, begin), type, rows, end - begin, stride_bytes};
  }
};

/// The instruction sets that the kernels are compiled for. The bits of every result are the same: both work
/// on 16 logical lanes with explicit fused multiply-adds and one reduction tree.
enum class Isa : std::uint8_t { kAvx2, kAvx512 };

/// Tokens of a block and elements of a head that `Kernels::attend` is written for.
inline constexpr std::size_t kAttentionBlock = 128;
inline constexpr std::size_t kHeadElements = 64;

/// The running state of one query's attention over blocks: merged in block order, so its bits depend on
/// nothing but the query and the keys.
struct alignas(64) AttentionState {
  float acc[kHeadElements];
  float max = 0;
  float sum = 0;
  bool empty = true;
};

/// How keys and values are kept: f16, or f32 for the path without any rounding but the arithmetic's own.
enum class KvFormat : std::uint8_t { kF16, kF32 };
constexpr std::size_t element_bytes(KvFormat format) { return format == KvFormat::kF16 ? 2 : 4; }

/// One block of keys and values for queries that share the KV head.
struct AttendBlock {
  KvFormat format = KvFormat::kF16;
  const std::byte* keys = nullptr;        // [64 elements][128 tokens]
  const std::byte* values = nullptr;      // [128 tokens][64 elements]
  const float* queries = nullptr;         // f32 [count][64], already scaled by 1/sqrt(64)
  const std::uint8_t* visible = nullptr;  // [count]: each query sees tokens [0, visible) of the block, 1..128
  AttentionState* states = nullptr;       // [count]
  std::size_t count = 0;
};

/// The inner loops. Every output element is one dot product with one fixed order, whatever the other
/// arguments of the call: bits do not depend on the batch, the chunk or the rank.
struct Kernels {
  Isa isa = Isa::kAvx2;
  /// y[i][j] = sum_k x[i][k] * W[j][k] for i < m, j < W.rows; ldx, ldy in elements. `scratch` holds at least
  /// `matmul_scratch_floats(W.cols)`. W.cols is a multiple of 32.
  void (*matmul)(const Matrix& w, const float* x, std::size_t ldx, std::size_t m, float* y, std::size_t ldy,
                 float* scratch) = nullptr;
  /// One row of weights as f32.
  void (*dequantize)(WeightType type, const std::byte* row, float* out, std::size_t elements) = nullptr;
  /// out = x / sqrt(mean(x^2) + epsilon) * weight; n is a multiple of 16.
  void (*rms_norm)(const float* x, const float* weight, float* out, std::size_t n, float epsilon) = nullptr;
  /// out = silu(gate) * up; n is a multiple of 16.
  void (*silu_multiply)(const float* gate, const float* up, float* out, std::size_t n) = nullptr;
  /// out += x; n is a multiple of 16.
  void (*add)(float* out, const float* x, std::size_t n) = nullptr;
  void (*attend)(const AttendBlock& block) = nullptr;
  /// out[64] = acc / sum.
  void (*attention_result)(const AttentionState& state, float* out) = nullptr;
  /// f32 to f16, to nearest even; n is a multiple of 16.
  void (*to_half)(const float* x, std::uint16_t* out, std::size_t n) = nullptr;
};

/// Weight rows that `matmul` unpacks at a time.
inline constexpr std::size_t kTileRows = 16;
constexpr std::size_t matmul_scratch_floats(std::size_t cols) { return kTileRows * cols; }

const Kernels& kernels_for(Isa isa);
bool machine_has(Isa isa);
/// The fastest set this machine runs; kUnsupported below x86-64-v3 (AVX2, FMA, F16C).
base::Result<const Kernels*> best_kernels();

/// 64-byte aligned floats that only grow: scratch of the kernels.
class AlignedFloats {
 public:
  AlignedFloats() = default;
  explicit AlignedFloats(std::size_t count) { ensure(count); }
  AlignedFloats(AlignedFloats&& other) noexcept { swap(other); }
  AlignedFloats& operator=(AlignedFloats&& other) noexcept {
    swap(other);
    return *this;
  }
  ~AlignedFloats();
  /// At least `count` floats; the contents are lost when it grows.
  float* ensure(std::size_t count);
  float* data() const { return data_; }

 private:
  void swap(AlignedFloats& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
  }
  float* data_ = nullptr;
  std::size_t count_ = 0;
};

}  // namespace trimtab::engine
