#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "base/prng.h"

namespace trimtab::engine {

/// Writes a small Llama in GGUF with random weights in every storage format the engine reads: bit-for-bit
/// proofs need no trained model, and always have this one.
struct TinyGguf {
  std::uint32_t layers = 3, hidden = 128, heads = 2, kv_heads = 1, ffn = 288, vocabulary = 640;
  std::uint32_t context = 2048;
  std::uint32_t window = 0, window_pattern = 0;  // 0: without; every window_pattern-th layer sees all
  std::uint64_t seed = 1;
  std::string architecture = "llama";

  /// Random tokens of its vocabulary.
  static std::vector<std::int32_t> tokens(std::size_t count, std::uint64_t seed) {
    base::Prng prng(seed);
    std::vector<std::int32_t> ids(count);
    for (auto& id : ids) id = static_cast<std::int32_t>(prng.below(TinyGguf{}.vocabulary));
    return ids;
  }

  bool write(const std::string& path) const {
    Builder out;
    out.text("GGUF");
    out.number<std::uint32_t>(3);
    out.number<std::uint64_t>(3 + layers * 9ULL);
    out.number<std::uint64_t>(9 + (window > 0 ? 1 : 0) + (window_pattern > 0 ? 1 : 0));
    out.string_value("general.architecture", architecture);
    out.u32_value("llama.block_count", layers);
    out.u32_value("llama.embedding_length", hidden);
    out.u32_value("llama.attention.head_count", heads);
    out.u32_value("llama.attention.head_count_kv", kv_heads);
    out.u32_value("llama.feed_forward_length", ffn);
    out.u32_value("llama.context_length", context);
    out.f32_value("llama.rope.freq_base", 10'000.0F);
    out.f32_value("llama.attention.layer_norm_rms_epsilon", 1e-5F);
    if (window > 0) out.u32_value("llama.attention.sliding_window", window);
    if (window_pattern > 0) out.u32_value("llama.attention.sliding_window_pattern", window_pattern);
    base::Prng prng(seed);
    tensors(out, prng);
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    out.pad();
    file.write(out.bytes.data(), static_cast<std::streamsize>(out.bytes.size()));
    file.write(out.data.data(), static_cast<std::streamsize>(out.data.size()));
    file.close();
    return static_cast<bool>(file);
  }

 private:
  enum Format : std::uint32_t { kF32 = 0, kF16 = 1, kQ4_0 = 2, kQ4_1 = 3, kQ8_0 = 8 };

  struct Builder {
    std::string bytes, data;
    void text(const std::string& value) { bytes += value; }
    template <class T>
    void number(T value) {
      bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
    void key(const std::string& name) {
      number<std::uint64_t>(name.size());
      bytes += name;
    }
    void string_value(const std::string& name, const std::string& value) {
      key(name);
      number<std::uint32_t>(8);
      key(value);
    }
    void u32_value(const std::string& name, std::uint32_t value) {
      key(name);
      number<std::uint32_t>(4);
      number(value);
    }
    void f32_value(const std::string& name, float value) {
      key(name);
      number<std::uint32_t>(6);
      number(value);
    }
    void pad() {
      while (bytes.size() % 32 != 0) bytes.push_back('\0');
    }
  };

  void tensors(Builder& out, base::Prng& prng) const {
    const std::uint32_t q = heads * 64, kv = kv_heads * 64;
    tensor(out, prng, "token_embd.weight", kQ8_0, hidden, vocabulary, 1.0F);
    tensor(out, prng, "output_norm.weight", kF32, hidden, 0, 1.0F);
    tensor(out, prng, "output.weight", kQ8_0, hidden, vocabulary, 0.1F);
    for (std::uint32_t i = 0; i < layers; ++i) {
      const std::string blk = "blk." + std::to_string(i) + ".";
      const float scale = 1.5F / std::sqrt(static_cast<float>(hidden));
      tensor(out, prng, blk + "attn_norm.weight", kF32, hidden, 0, 1.0F);
      tensor(out, prng, blk + "attn_q.weight", kQ4_1, hidden, q, 4 * scale);
      tensor(out, prng, blk + "attn_k.weight", kQ4_0, hidden, kv, 4 * scale);
      tensor(out, prng, blk + "attn_v.weight", kF16, hidden, kv, scale);
      tensor(out, prng, blk + "attn_output.weight", kF32, q, hidden, scale);
      tensor(out, prng, blk + "ffn_norm.weight", kF32, hidden, 0, 1.0F);
      tensor(out, prng, blk + "ffn_gate.weight", kQ4_1, hidden, ffn, scale);
      tensor(out, prng, blk + "ffn_up.weight", kQ8_0, hidden, ffn, scale);
      tensor(out, prng, blk + "ffn_down.weight", kQ4_1, ffn, hidden, scale);
    }
  }

  /// `rows` 0: a vector near 1 (a norm's weight).
  void tensor(Builder& out, base::Prng& prng, const std::string& name, Format format, std::uint32_t cols,
              std::uint32_t rows, float scale) const {
    out.key(name);
    out.number<std::uint32_t>(rows == 0 ? 1 : 2);
    out.number<std::uint64_t>(cols);
    if (rows != 0) out.number<std::uint64_t>(rows);
    out.number<std::uint32_t>(format);
    while (out.data.size() % 32 != 0) out.data.push_back('\0');
    out.number<std::uint64_t>(out.data.size());
    const std::size_t count = std::size_t{cols} * (rows == 0 ? 1 : rows);
    const std::size_t unit = format == kF32 || format == kF16 ? 1 : 32;
    for (std::size_t i = 0; i < count; i += unit) element(out.data, prng, format, scale, rows == 0);
  }

  static void element(std::string& data, base::Prng& prng, Format format, float scale, bool norm) {
    const auto put = [&data](auto value) {
      data.append(reinterpret_cast<const char*>(&value), sizeof value);
    };
    if (format == kF32) {
      const float noise = static_cast<float>(prng.normal());
      put(norm ? 1.0F + 0.1F * noise : scale * noise);
      return;
    }
    // Halves without a conversion: 1.0 is 0x3C00; exponents and mantissas are drawn around the scale.
    const int exponent = std::ilogb(scale);
    const auto half = [&](int below) {
      const auto mantissa = static_cast<std::uint16_t>(prng.below(1024));
      return static_cast<std::uint16_t>(((exponent - below + 15) << 10) | mantissa);
    };
    if (format == kF16) {
      put(static_cast<std::uint16_t>(half(static_cast<int>(prng.below(3))) | prng.below(2) << 15));
      return;
    }
    const std::uint16_t step = half(format == kQ8_0 ? 7 : 3);
    put(step);
    // The offset puts zero near the middle of the 16 steps: minus eight steps is the same mantissa, exponent
    // + 3.
    if (format == kQ4_1) put(static_cast<std::uint16_t>((step + (3 << 10)) | 0x8000));
    for (int i = 0; i < (format == kQ8_0 ? 32 : 16); ++i) put(static_cast<std::uint8_t>(prng.below(256)));
  }
};

}  // namespace trimtab::engine
