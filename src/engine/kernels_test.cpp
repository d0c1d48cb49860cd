#include "engine/kernels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "base/prng.h"
#include "gguf/tensor.h"

namespace trimtab::engine {
namespace {

constexpr WeightType kTypes[] = {WeightType::kF32, WeightType::kF16, WeightType::kQ8_0, WeightType::kQ4_0,
                                 WeightType::kQ4_1};

/// A weight matrix of random, finite content in any storage format.
struct Weights {
  Weights(WeightType type, std::size_t rows, std::size_t cols, base::Prng& prng)
      : bytes(rows * row_bytes(type, cols)) {
    const std::size_t unit = row_bytes(type, block_elements(type));
    for (std::size_t at = 0; at < bytes.size(); at += unit) {
      for (std::size_t i = 0; i < unit; ++i) bytes[at + i] = static_cast<std::byte>(prng.below(256));
      const auto half = static_cast<std::uint16_t>(0x2000 + prng.below(0x0800));  // 2^-7 to 2^-5
      if (type == WeightType::kF32) {
        const float value = static_cast<float>(prng.normal());
        std::memcpy(&bytes[at], &value, 4);
      } else {
        std::memcpy(&bytes[at], &half, 2);
      }
      const std::uint16_t offset = half | 0x8000;
      if (type == WeightType::kQ4_1) std::memcpy(&bytes[at + 2], &offset, 2);
    }
    matrix = {bytes.data(), type, rows, cols, row_bytes(type, cols)};
  }
  std::vector<std::byte> bytes;
  Matrix matrix;
};

std::vector<float> noise(std::size_t count, base::Prng& prng, double scale = 1.0) {
  std::vector<float> values(count);
  for (float& v : values) v = static_cast<float>(scale * prng.normal());
  return values;
}

class KernelsTest : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!machine_has(GetParam())) GTEST_SKIP() << "this machine lacks the instruction set";
    k_ = &kernels_for(GetParam());
  }
  const Kernels* k_ = nullptr;
  base::Prng prng_{17};
};

TEST_P(KernelsTest, DequantizesLikeTheFileReader) {
  const std::pair<WeightType, gguf::TensorType> pairs[] = {{WeightType::kF32, gguf::TensorType::kF32},
                                                           {WeightType::kF16, gguf::TensorType::kF16},
                                                           {WeightType::kQ8_0, gguf::TensorType::kQ8_0},
                                                           {WeightType::kQ4_0, gguf::TensorType::kQ4_0},
                                                           {WeightType::kQ4_1, gguf::TensorType::kQ4_1}};
  for (const auto& [type, stored] : pairs) {
    Weights w(type, 1, 256, prng_);
    gguf::Tensor tensor;
    tensor.type = stored;
    tensor.dims[0] = 256;
    tensor.data = w.bytes;
    std::vector<float> expected(256), got(256);
    ASSERT_TRUE(gguf::dequantize_row(tensor, 0, expected));
    k_->dequantize(type, w.bytes.data(), got.data(), 256);
    for (std::size_t i = 0; i < 256; ++i) {
      // Q4_1 is one fused multiply-add here and two roundings there.
      EXPECT_NEAR(got[i], expected[i], std::abs(expected[i]) * 1e-6 + 1e-7)
          << "type " << int(type) << " at " << i;
    }
  }
}

TEST_P(KernelsTest, MatmulIsTheSumOfProductsWhateverTheBatch) {
  for (const WeightType type : kTypes) {
    for (const auto& [rows, cols] : {std::pair<std::size_t, std::size_t>{37, 96}, {16, 576}, {1, 32}}) {
      Weights w(type, rows, cols, prng_);
      const std::size_t m = 11, ldx = cols + 16, ldy = rows + 3;
      const auto x = noise(m * ldx, prng_);
      std::vector<float> y(m * ldy, -1), row(cols), scratch(matmul_scratch_floats(cols));
      k_->matmul(w.matrix, x.data(), ldx, m, y.data(), ldy, scratch.data());
      for (std::size_t j = 0; j < rows; ++j) {
        k_->dequantize(type, w.bytes.data() + j * w.matrix.stride_bytes, row.data(), cols);
        for (std::size_t i = 0; i < m; ++i) {
          double sum = 0, size = 0;
          for (std::size_t c = 0; c < cols; ++c) {
            sum += static_cast<double>(row[c]) * static_cast<double>(x[i * ldx + c]);
            size += std::abs(static_cast<double>(row[c]) * static_cast<double>(x[i * ldx + c]));
          }
          EXPECT_NEAR(y[i * ldy + j], sum, size * 2e-6) << int(type) << " " << i << "," << j;
        }
      }
      EXPECT_EQ(y[ldy - 1], -1) << "wrote past the row";
      for (const std::size_t some : {1U, 2U, 3U, 4U, 5U, 10U}) {
        std::vector<float> part(some * ldy, -1);
        k_->matmul(w.matrix, x.data(), ldx, some, part.data(), ldy, scratch.data());
        for (std::size_t i = 0; i < some; ++i)
          for (std::size_t j = 0; j < rows; ++j)
            ASSERT_EQ(std::memcmp(&part[i * ldy + j], &y[i * ldy + j], 4), 0)
                << "batch " << some << " changes the bits";
      }
    }
  }
}

TEST_P(KernelsTest, SlicesAreWindowsOfTheMatrix) {
  Weights w(WeightType::kQ4_1, 20, 192, prng_);
  const auto x = noise(64, prng_);
  std::vector<float> padded(192, 0), scratch(matmul_scratch_floats(192));
  std::copy(x.begin(), x.end(), padded.begin() + 96);
  std::vector<float> whole(20), part(5);
  k_->matmul(w.matrix, padded.data(), 192, 1, whole.data(), 20, scratch.data());
  k_->matmul(w.matrix.row_slice(8, 13).column_slice(96, 160), x.data(), 64, 1, part.data(), 5,
             scratch.data());
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(part[i], whole[8 + i]);
}

TEST_P(KernelsTest, NormSiluAndAddAgreeWithPlainLoops) {
  const std::size_t n = 144;
  const auto x = noise(n, prng_, 3), weight = noise(n, prng_), up = noise(n, prng_);
  std::vector<float> out(n);
  k_->rms_norm(x.data(), weight.data(), out.data(), n, 1e-5F);
  double squares = 0;
  for (const float v : x) squares += static_cast<double>(v) * static_cast<double>(v);
  const double scale = 1 / std::sqrt(squares / static_cast<double>(n) + 1e-5);
  for (std::size_t i = 0; i < n; ++i) EXPECT_NEAR(out[i], x[i] * scale * weight[i], 2e-6);
  auto gate = noise(n, prng_, 20);
  gate[0] = 0;
  gate[1] = -200;
  gate[2] = 200;
  k_->silu_multiply(gate.data(), up.data(), out.data(), n);
  for (std::size_t i = 0; i < n; ++i) {
    const double expected = gate[i] / (1 + std::exp(-static_cast<double>(gate[i]))) * up[i];
    EXPECT_NEAR(out[i], expected, std::abs(expected) * 1e-6 + 1e-30);
  }
  std::vector<float> sum = x;
  k_->add(sum.data(), up.data(), n);
  for (std::size_t i = 0; i < n; ++i) EXPECT_EQ(sum[i], x[i] + up[i]);
}

/// Keys and values of `blocks` blocks as the arena lays them out.
struct Cache {
  Cache(std::size_t blocks, const Kernels& k, base::Prng& prng)
      : keys(blocks * 64 * 128), values(blocks * 64 * 128) {
    const auto raw_k = noise(keys.size(), prng), raw_v = noise(values.size(), prng);
    k.to_half(raw_k.data(), keys.data(), keys.size());
    k.to_half(raw_v.data(), values.data(), values.size());
  }
  double key(std::size_t token, std::size_t d) const {
    return gguf::half_to_float(keys[token / 128 * 8192 + d * 128 + token % 128]);
  }
  double value(std::size_t token, std::size_t d) const {
    return gguf::half_to_float(values[token / 128 * 8192 + token % 128 * 64 + d]);
  }
  AttendBlock block(std::size_t b, const float* queries, const std::uint8_t* visible, AttentionState* states,
                    std::size_t count) const {
    return {KvFormat::kF16,
            reinterpret_cast<const std::byte*>(&keys[b * 8192]),
            reinterpret_cast<const std::byte*>(&values[b * 8192]),
            queries,
            visible,
            states,
            count};
  }
  std::vector<std::uint16_t> keys, values;
};

TEST_P(KernelsTest, AttentionIsSoftmaxOverWhatIsVisible) {
  const std::size_t blocks = 3, count = 11;  // groups of 6, 3, 1 and 1
  Cache cache(blocks, *k_, prng_);
  const auto queries = noise(count * 64, prng_);
  std::vector<AttentionState> states(count);
  std::vector<std::size_t> last(count);  // each query sees tokens [0, last)
  for (std::size_t i = 0; i < count; ++i) last[i] = 257 + i * 11;
  for (std::size_t b = 0; b < blocks; ++b) {
    std::vector<std::uint8_t> visible(count);
    for (std::size_t i = 0; i < count; ++i)
      visible[i] = static_cast<std::uint8_t>(std::min<std::size_t>(128, last[i] - b * 128));
    k_->attend(cache.block(b, queries.data(), visible.data(), states.data(), count));
  }
  for (std::size_t i = 0; i < count; ++i) {
    std::vector<double> weight(last[i]);
    double sum = 0;
    for (std::size_t t = 0; t < last[i]; ++t) {
      double score = 0;
      for (std::size_t d = 0; d < 64; ++d)
        score += static_cast<double>(queries[i * 64 + d]) * cache.key(t, d);
      sum += weight[t] = std::exp(score);
    }
    float out[64];
    k_->attention_result(states[i], out);
    for (std::size_t d = 0; d < 64; ++d) {
      double expected = 0;
      for (std::size_t t = 0; t < last[i]; ++t) expected += weight[t] / sum * cache.value(t, d);
      EXPECT_NEAR(out[d], expected, 2e-5) << "query " << i << " element " << d;
    }
  }
}

TEST_P(KernelsTest, AttentionBitsDoNotDependOnTheNeighbours) {
  Cache cache(1, *k_, prng_);
  const auto queries = noise(9 * 64, prng_);
  std::vector<std::uint8_t> visible = {1, 128, 17, 90, 5, 64, 127, 33, 2};
  std::vector<AttentionState> together(9);
  k_->attend(cache.block(0, queries.data(), visible.data(), together.data(), 9));
  for (std::size_t i = 0; i < 9; ++i) {
    // Alone, and with everything out of sight poisoned: f16 NaN.
    Cache poisoned = cache;
    for (std::size_t t = visible[i]; t < 128; ++t)
      for (std::size_t d = 0; d < 64; ++d) poisoned.keys[d * 128 + t] = poisoned.values[t * 64 + d] = 0xFFFF;
    AttentionState alone;
    k_->attend(poisoned.block(0, &queries[i * 64], &visible[i], &alone, 1));
    EXPECT_EQ(std::memcmp(alone.acc, together[i].acc, sizeof alone.acc), 0) << i;
    EXPECT_EQ(alone.max, together[i].max);
    EXPECT_EQ(alone.sum, together[i].sum);
  }
}

INSTANTIATE_TEST_SUITE_P(Sets, KernelsTest, testing::Values(Isa::kAvx2, Isa::kAvx512),
                         [](const auto& i) { return i.param == Isa::kAvx2 ? "Avx2" : "Avx512"; });

TEST(Kernels, BothSetsGiveTheSameBits) {
  if (!machine_has(Isa::kAvx512)) GTEST_SKIP() << "this machine has no AVX-512";
  const Kernels &a = kernels_for(Isa::kAvx2), &b = kernels_for(Isa::kAvx512);
  base::Prng prng(5);
  for (const WeightType type : kTypes) {
    Weights w(type, 18, 160, prng);
    const auto x = noise(7 * 160, prng);
    std::vector<float> ya(7 * 18), yb(7 * 18), scratch(matmul_scratch_floats(160));
    for (const std::size_t m : {1U, 7U}) {
      a.matmul(w.matrix, x.data(), 160, m, ya.data(), 18, scratch.data());
      b.matmul(w.matrix, x.data(), 160, m, yb.data(), 18, scratch.data());
      EXPECT_EQ(ya, yb) << int(type);
    }
  }
  const auto gate = noise(4096, prng, 30), up = noise(4096, prng);
  std::vector<float> oa(4096), ob(4096);
  a.silu_multiply(gate.data(), up.data(), oa.data(), 4096);
  b.silu_multiply(gate.data(), up.data(), ob.data(), 4096);
  EXPECT_EQ(oa, ob);
  a.rms_norm(gate.data(), up.data(), oa.data(), 4096, 1e-5F);
  b.rms_norm(gate.data(), up.data(), ob.data(), 4096, 1e-5F);
  EXPECT_EQ(oa, ob);
}

}  // namespace
}  // namespace trimtab::engine
