#include <fmt/format.h>

#include <bit>
#include <cstring>

#include "gguf/tensor.h"

namespace trimtab::gguf {

namespace {

constexpr std::size_t kHalfBlock = 16;  // low nibbles are values 0..15 of a 32-block, high nibbles 16..31

template <class T>
T read(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

int byte_at(const std::byte* at) { return std::to_integer<int>(*at); }
float half_at(const std::byte* at) { return half_to_float(read<std::uint16_t>(at)); }

void q4_0(const std::byte* in, float* out) {
  const float scale = half_at(in);
  for (std::size_t i = 0; i < kHalfBlock; ++i) {
    const int pair = byte_at(in + 2 + i);
    out[i] = static_cast<float>((pair & 15) - 8) * scale;
    out[i + kHalfBlock] = static_cast<float>((pair >> 4) - 8) * scale;
  }
}

void q4_1(const std::byte* in, float* out) {
  const float scale = half_at(in);
  const float minimum = half_at(in + 2);
  for (std::size_t i = 0; i < kHalfBlock; ++i) {
    const int pair = byte_at(in + 4 + i);
    out[i] = static_cast<float>(pair & 15) * scale + minimum;
    out[i + kHalfBlock] = static_cast<float>(pair >> 4) * scale + minimum;
  }
}

// The fifth bits of the 32 values stand together in one u32.
void q5(const std::byte* in, std::size_t header, float scale, float minimum, int zero, float* out) {
  const auto high = read<std::uint32_t>(in + header);
  for (std::size_t i = 0; i < kHalfBlock; ++i) {
    const int pair = byte_at(in + header + 4 + i);
    const int first = (pair & 15) | static_cast<int>(((high >> i) & 1U) << 4);
    const int second = (pair >> 4) | static_cast<int>(((high >> (i + kHalfBlock)) & 1U) << 4);
    out[i] = static_cast<float>(first - zero) * scale + minimum;
    out[i + kHalfBlock] = static_cast<float>(second - zero) * scale + minimum;
  }
}

void q8_0(const std::byte* in, float* out) {
  const float scale = half_at(in);
  for (std::size_t i = 0; i < 32; ++i) out[i] = static_cast<float>(read<std::int8_t>(in + 2 + i)) * scale;
}

// 256 values: 128 bytes of low nibbles, 64 of high bit pairs, 16 signed scales of 16 values each, one half
// scale.
void q6_k(const std::byte* in, float* out) {
  const float scale = half_at(in + 208);
  for (std::size_t half = 0; half < 2; ++half) {
    const std::byte* low = in + 64 * half;
    const std::byte* high = in + 128 + 32 * half;
    const std::byte* scales = in + 192 + 8 * half;
    for (std::size_t i = 0; i < 32; ++i) {
      const int pairs = byte_at(high + i);
      const std::array<int, 4> values{(byte_at(low + i) & 15) | ((pairs & 3) << 4),
                                      (byte_at(low + i + 32) & 15) | (((pairs >> 2) & 3) << 4),
                                      (byte_at(low + i) >> 4) | (((pairs >> 4) & 3) << 4),
                                      (byte_at(low + i + 32) >> 4) | (((pairs >> 6) & 3) << 4)};
      for (std::size_t quarter = 0; quarter < 4; ++quarter) {
        const auto sub_scale = static_cast<float>(read<std::int8_t>(scales + i / 16 + 2 * quarter));
        out[128 * half + 32 * quarter + i] = scale * sub_scale * static_cast<float>(values[quarter] - 32);
      }
    }
  }
}

void block(TensorType type, const std::byte* in, float* out) {
  switch (type) {
    case TensorType::kF32:
      *out = read<float>(in);
      return;
    case TensorType::kF16:
      *out = half_at(in);
      return;
    case TensorType::kBF16:
      *out = std::bit_cast<float>(static_cast<std::uint32_t>(read<std::uint16_t>(in)) << 16);
      return;
    case TensorType::kQ4_0:
      q4_0(in, out);
      return;
    case TensorType::kQ4_1:
      q4_1(in, out);
      return;
    case TensorType::kQ5_0:
      q5(in, 2, half_at(in), 0.0F, 16, out);
      return;
    case TensorType::kQ5_1:
      q5(in, 4, half_at(in), half_at(in + 2), 0, out);
      return;
    case TensorType::kQ8_0:
      q8_0(in, out);
      return;
    case TensorType::kQ6_K:
      q6_k(in, out);
      return;
    default:
      return;  // dequantize_row refused it
  }
}

}  // namespace

bool can_dequantize(TensorType type) {
  switch (type) {
    case TensorType::kF32:
    case TensorType::kF16:
    case TensorType::kBF16:
    case TensorType::kQ4_0:
    case TensorType::kQ4_1:
    case TensorType::kQ5_0:
    case TensorType::kQ5_1:
    case TensorType::kQ8_0:
    case TensorType::kQ6_K:
      return true;
    default:
      return false;
  }
}

base::Status dequantize_row(const Tensor& tensor, std::uint64_t row, std::span<float> out) {
  const TypeLayout& layout = layout_of(tensor.type);
  if (!can_dequantize(tensor.type)) {
    return base::fail(base::Code::kUnsupported,
                      fmt::format("tensor {} is stored as {}, which cannot be dequantised here: convert the "
                                  "model to F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 or Q6_K",
                                  tensor.name, layout.name),
                      "gguf");
  }
  if (row >= tensor.rows() || out.size() != tensor.row_values()) {
    return base::fail(base::Code::kInvalidArgument,
                      fmt::format("row {} into {} values asked of tensor {}, which has {} rows of {}", row,
                                  out.size(), tensor.name, tensor.rows(), tensor.row_values()),
                      "gguf");
  }
  const std::byte* in = tensor.row(row).data();
  for (std::size_t i = 0; i < out.size(); i += layout.values, in += layout.bytes) {
    block(tensor.type, in, out.data() + i);
  }
  return {};
}

}  // namespace trimtab::gguf
