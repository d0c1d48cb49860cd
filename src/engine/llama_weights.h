#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/kernels.h"
#include "gguf/gguf_file.h"
#include "kv/window_ring.h"

namespace trimtab::engine {

/// Sizes of a Llama model (grouped-query attention, rotary positions, gated feed-forward).
struct LlamaShape {
  std::size_t layers = 0, hidden = 0, heads = 0, kv_heads = 0, ffn = 0, vocabulary = 0;
  std::int64_t context_tokens = 0;
  float rope_base = 10'000.0F;
  float norm_epsilon = 1e-5F;
  /// A layer with a sliding window sees the last `window_tokens` tokens, its own included; the other layers
  /// see all. 0: the model has no such layers.
  std::int64_t window_tokens = 0;
  std::vector<bool> windowed;  // [layers], or empty

  bool is_windowed(std::size_t layer) const { return !windowed.empty() && windowed[layer]; }
  std::size_t window_layers() const;
  std::size_t full_layers() const { return layers - window_layers(); }
  /// The number of a layer among those of its own kind.
  std::size_t place_of(std::size_t layer) const;
  /// The rings of a state slot: rows are [KV head][key 64 | value 64].
  kv::RingShape ring(KvFormat format = KvFormat::kF16) const;
  std::size_t query_width() const { return heads * kHeadElements; }
  std::size_t kv_width() const { return kv_heads * kHeadElements; }
  /// Bytes of one KV block: keys and values of 128 tokens, all layers without a window.
  std::size_t kv_block_bytes(KvFormat format = KvFormat::kF16) const {
    return full_layers() * kv_heads * 2 * kHeadElements * kAttentionBlock * element_bytes(format);
  }
};

struct LayerWeights {
  const float* attention_norm = nullptr;  // [hidden]
  Matrix query, key, value, attention_output;
  const float* ffn_norm = nullptr;  // [hidden]
  Matrix gate, up, down;
};

/// Tokens that a ring keeps beyond its window: drafts that may be taken back (system facts, section 10).
inline constexpr std::int64_t kRollbackTokens = 6;

/// A Llama model in GGUF, used where it lies in the page cache: nothing is copied, all processes share it.
class LlamaWeights {
 public:
  /// kUnsupported (another architecture, a storage format or head size the kernels do not know), kDataLoss (a
  /// tensor of the wrong shape, a truncated file), kIo.
  static base::Result<LlamaWeights> load(const std::string& path);

  const LlamaShape& shape() const { return shape_; }
  const std::vector<LayerWeights>& layers() const { return layers_; }
  const Matrix& token_embedding() const { return token_embedding_; }  // [vocabulary, hidden]
  const float* output_norm() const { return output_norm_; }
  const Matrix& output() const { return output_; }  // [vocabulary, hidden]; may be the embedding itself
  const gguf::GgufFile& file() const { return file_; }
  std::uint64_t fingerprint() const { return fingerprint_; }

 private:
  explicit LlamaWeights(gguf::GgufFile file) : file_(std::move(file)) {}
  base::Status read_shape();
  base::Status read_window();
  base::Status read_layers();
  base::Status matrix(const std::string& name, std::size_t rows, std::size_t cols, Matrix& out) const;
  base::Status vector(const std::string& name, std::size_t size, const float*& out) const;

  gguf::GgufFile file_;
  LlamaShape shape_;
  std::vector<LayerWeights> layers_;
  Matrix token_embedding_, output_;
  const float* output_norm_ = nullptr;
  std::uint64_t fingerprint_ = 0;
};

}  // namespace trimtab::engine
