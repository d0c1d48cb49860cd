#include <gmock/gmock.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "base/prng.h"
#include "gguf/tensor.h"

namespace trimtab::gguf {
namespace {

using testing::HasSubstr;

Tensor tensor_of(TensorType type, std::uint64_t values, std::span<const std::byte> data) {
  Tensor tensor;
  tensor.name = "t";
  tensor.type = type;
  tensor.dims = {values, 1, 1, 1};
  tensor.data = data;
  return tensor;
}

std::vector<float> dequantized(TensorType type, const std::vector<std::uint8_t>& bytes) {
  const TypeLayout& layout = layout_of(type);
  std::vector<float> out(bytes.size() / layout.bytes * layout.values);
  EXPECT_TRUE(dequantize_row(tensor_of(type, out.size(), std::as_bytes(std::span(bytes))), 0, out));
  return out;
}

constexpr std::uint8_t kOneLow = 0x00, kOneHigh = 0x3C;    // 1.0 as a half
constexpr std::uint8_t kTwoLow = 0x00, kTwoHigh = 0x40;    // 2.0
constexpr std::uint8_t kHalfLow = 0x00, kHalfHigh = 0x38;  // 0.5

TEST(HalfToFloat, EveryFiniteHalfRoundTripsThroughItsDefinition) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const int exponent = (half >> 10) & 31;
    const int mantissa = half & 1023;
    if (exponent == 31) {
      EXPECT_EQ(std::isnan(half_to_float(half)), mantissa != 0);
      continue;
    }
    const double magnitude =
        exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    const double expected = (half & 0x8000) != 0 ? -magnitude : magnitude;
    ASSERT_EQ(half_to_float(half), static_cast<float>(expected)) << bits;
    ASSERT_EQ(std::signbit(half_to_float(half)), (half & 0x8000) != 0) << bits;
  }
}

TEST(Dequantize, Q4_1IsNibbleTimesScalePlusMinimum) {
  std::vector<std::uint8_t> block{kTwoLow, kTwoHigh, kHalfLow, kHalfHigh};
  for (std::uint8_t i = 0; i < 16; ++i) block.push_back(static_cast<std::uint8_t>(i | (15 - i) << 4));
  const auto out = dequantized(TensorType::kQ4_1, block);
  for (std::size_t i = 0; i < 16; ++i) {
    EXPECT_EQ(out[i], 2.0F * static_cast<float>(i) + 0.5F);
    EXPECT_EQ(out[i + 16], 2.0F * static_cast<float>(15 - i) + 0.5F);
  }
}

TEST(Dequantize, Q4_0AndQ5AreCentred) {
  std::vector<std::uint8_t> q4{kTwoLow, kTwoHigh};
  q4.resize(18, 0xF0);
  EXPECT_EQ(dequantized(TensorType::kQ4_0, q4)[0], -16.0F);
  EXPECT_EQ(dequantized(TensorType::kQ4_0, q4)[16], 14.0F);
  std::vector<std::uint8_t> q5{kOneLow, kOneHigh, 0x01, 0, 0, 0x80};  // fifth bits of values 0 and 31
  q5.resize(22, 0);
  const auto out = dequantized(TensorType::kQ5_0, q5);
  EXPECT_EQ(out[0], 0.0F);
  EXPECT_EQ(out[1], -16.0F);
  EXPECT_EQ(out[31], 0.0F);
  std::vector<std::uint8_t> q5_1{kOneLow, kOneHigh, kHalfLow, kHalfHigh, 0x02, 0, 0, 0};
  q5_1.resize(24, 0x03);
  EXPECT_EQ(dequantized(TensorType::kQ5_1, q5_1)[0], 3.5F);
  EXPECT_EQ(dequantized(TensorType::kQ5_1, q5_1)[1], 19.5F);
}

TEST(Dequantize, Q8_0IsSignedByteTimesScale) {
  std::vector<std::uint8_t> block{kHalfLow, kHalfHigh};
  for (int i = 0; i < 32; ++i) block.push_back(static_cast<std::uint8_t>(i - 16));
  const auto out = dequantized(TensorType::kQ8_0, block);
  for (int i = 0; i < 32; ++i) EXPECT_EQ(out[static_cast<std::size_t>(i)], 0.5F * static_cast<float>(i - 16));
}

TEST(Dequantize, Q6_KPutsEveryBitInItsPlace) {
  // Encodes random six-bit values by the format's description and expects them back.
  base::Prng prng(3);
  std::vector<std::uint8_t> block(210, 0);
  std::array<int, 256> values{};
  for (auto& value : values) value = static_cast<int>(prng.below(64));
  for (std::size_t i = 0; i < 256; ++i) {
    const std::size_t half = i / 128, in_half = i % 128, quarter = in_half / 32, lane = in_half % 32;
    const auto low = static_cast<std::uint8_t>(values[i] & 15);
    block[64 * half + (quarter % 2) * 32 + lane] |= static_cast<std::uint8_t>(quarter < 2 ? low : low << 4);
    block[128 + 32 * half + lane] |= static_cast<std::uint8_t>((values[i] >> 4) << (2 * quarter));
  }
  for (std::size_t i = 0; i < 16; ++i) block[192 + i] = static_cast<std::uint8_t>(static_cast<int>(i) - 8);
  block[208] = kTwoLow;
  block[209] = kTwoHigh;
  const auto out = dequantized(TensorType::kQ6_K, block);
  for (std::size_t i = 0; i < 256; ++i) {
    EXPECT_EQ(out[i], 2.0F * static_cast<float>((static_cast<int>(i / 16) - 8) * (values[i] - 32))) << i;
  }
}

TEST(Dequantize, PlainFormats) {
  EXPECT_EQ(dequantized(TensorType::kBF16, {0x80, 0x3F, 0x00, 0xC0})[1], -2.0F);
  EXPECT_EQ(dequantized(TensorType::kF16, {kHalfLow, kHalfHigh})[0], 0.5F);
  std::vector<std::uint8_t> pi(4);
  const float value = 3.1415927F;
  std::memcpy(pi.data(), &value, 4);
  EXPECT_EQ(dequantized(TensorType::kF32, pi)[0], value);
}

TEST(Dequantize, WrongRowsAndFormatsAreErrors) {
  const std::vector<std::byte> data(144);
  std::vector<float> out(256);
  const auto unsupported = dequantize_row(tensor_of(TensorType::kQ4_K, 256, data), 0, out);
  EXPECT_EQ(unsupported.error().code, base::Code::kUnsupported);
  EXPECT_THAT(unsupported.error().message, HasSubstr("Q4_K"));
  const Tensor floats = tensor_of(TensorType::kF32, 36, data);
  EXPECT_EQ(dequantize_row(floats, 1, std::span(out).first(36)).error().code, base::Code::kInvalidArgument);
  EXPECT_EQ(dequantize_row(floats, 0, out).error().code, base::Code::kInvalidArgument);
}

}  // namespace
}  // namespace trimtab::gguf
