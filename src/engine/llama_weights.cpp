#include "engine/llama_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace trimtab::engine {

namespace {

using base::Code;

std::optional<WeightType> weight_type(gguf::TensorType type) {
  switch (type) {
    case gguf::TensorType::kF32:
      return WeightType::kF32;
    case gguf::TensorType::kF16:
      return WeightType::kF16;
    case gguf::TensorType::kQ8_0:
      return WeightType::kQ8_0;
    case gguf::TensorType::kQ4_0:
      return WeightType::kQ4_0;
    case gguf::TensorType::kQ4_1:
      return WeightType::kQ4_1;
    default:
      return std::nullopt;
  }
}

base::Status read_u32(const gguf::GgufFile& file, const char* key, std::size_t& out) {
  auto value = file.u32(key);
  if (!value) return tl::unexpected(value.error());
  out = *value;
  return {};
}

}  // namespace

std::size_t LlamaShape::window_layers() const {
  return static_cast<std::size_t>(std::count(windowed.begin(), windowed.end(), true));
}

std::size_t LlamaShape::place_of(std::size_t layer) const {
  if (windowed.empty()) return layer;
  const auto end = windowed.begin() + static_cast<std::ptrdiff_t>(layer);
  return static_cast<std::size_t>(std::count(windowed.begin(), end, windowed[layer]));
}

kv::RingShape LlamaShape::ring(KvFormat format) const {
  kv::RingShape shape;
  if (window_tokens == 0) return shape;
  shape.layers = static_cast<std::int64_t>(window_layers());
  shape.window_tokens = window_tokens;
  shape.ring_slots = window_tokens + kRollbackTokens;
  shape.row_bytes = static_cast<std::int64_t>(kv_heads * 2 * kHeadElements * element_bytes(format));
  return shape;
}

base::Result<LlamaWeights> LlamaWeights::load(const std::string& path) {
  auto file = gguf::GgufFile::open(path);
  if (!file) return tl::unexpected(file.error());
  LlamaWeights weights(std::move(*file));
  TRIMTAB_TRY(weights.read_shape());
  TRIMTAB_TRY(weights.read_window());
  TRIMTAB_TRY(weights.read_layers());
  weights.fingerprint_ = weights.file_.fingerprint();
  return weights;
}

base::Status LlamaWeights::read_shape() {
  auto architecture = file_.string("general.architecture");
  if (!architecture) return tl::unexpected(architecture.error());
  if (*architecture != "llama") {
    return base::fail(Code::kUnsupported,
                      fmt::format("{} holds a model of architecture '{}', and the reference engine runs "
                                  "'llama': choose another file in [model] path",
                                  file_.path(), *architecture),
                      "engine");
  }
  LlamaShape& s = shape_;
  std::size_t context = 0;
  TRIMTAB_TRY(read_u32(file_, "llama.block_count", s.layers));
  TRIMTAB_TRY(read_u32(file_, "llama.embedding_length", s.hidden));
  TRIMTAB_TRY(read_u32(file_, "llama.attention.head_count", s.heads));
  TRIMTAB_TRY(read_u32(file_, "llama.feed_forward_length", s.ffn));
  TRIMTAB_TRY(read_u32(file_, "llama.context_length", context));
  s.kv_heads = s.heads;
  if (file_.has("llama.attention.head_count_kv"))
    TRIMTAB_TRY(read_u32(file_, "llama.attention.head_count_kv", s.kv_heads));
  s.context_tokens = static_cast<std::int64_t>(context);
  if (auto base = file_.f32("llama.rope.freq_base")) s.rope_base = *base;
  if (auto epsilon = file_.f32("llama.attention.layer_norm_rms_epsilon")) s.norm_epsilon = *epsilon;
  std::size_t head = s.heads == 0 ? 0 : s.hidden / s.heads;
  if (file_.has("llama.attention.key_length"))
    TRIMTAB_TRY(read_u32(file_, "llama.attention.key_length", head));
  std::size_t rotated = head;
  if (file_.has("llama.rope.dimension_count"))
    TRIMTAB_TRY(read_u32(file_, "llama.rope.dimension_count", rotated));
  const bool fits = s.layers > 0 && s.kv_heads > 0 && s.heads % s.kv_heads == 0 && head == kHeadElements &&
                    rotated == kHeadElements && s.hidden % 32 == 0 && s.hidden > 0 && s.ffn % 32 == 0 &&
                    s.ffn > 0 && context > 0 && context <= (1U << 20);
  if (!fits) {
    return base::fail(
        Code::kUnsupported,
        fmt::format("{}: {} layers, hidden {}, {} heads of {} ({} rotated), {} KV heads, feed-forward {}, "
                    "context {}: the kernels want heads of {}, sizes that are multiples of 32, and whole "
                    "groups of heads",
                    file_.path(), s.layers, s.hidden, s.heads, head, rotated, s.kv_heads, s.ffn, context,
                    kHeadElements),
        "engine");
  }
  if (file_.directory().tensor("rope_freqs.weight")) {
    return base::fail(Code::kUnsupported,
                      fmt::format("{} scales its rotary frequencies (rope_freqs.weight), which the reference "
                                  "engine does not do",
                                  file_.path()),
                      "engine");
  }
  return {};
}

/// GGUF's own keys. The pattern is a number n (every n-th layer sees all) or a flag a layer (true: a window),
/// as llama.cpp reads it (llama_hparams::set_swa_pattern, and get_key_or_arr for the flags); the window
/// counts the token itself (LLAMA_SWA_TYPE_STANDARD hides what is window_tokens back or more).
base::Status LlamaWeights::read_window() {
  constexpr const char* kWindow = "llama.attention.sliding_window";
  constexpr const char* kPattern = "llama.attention.sliding_window_pattern";
  if (!file_.has(kWindow)) return {};
  std::size_t window = 0;
  TRIMTAB_TRY(read_u32(file_, kWindow, window));
  LlamaShape& s = shape_;
  if (window == 0 || static_cast<std::int64_t>(window) >= s.context_tokens) return {};
  s.windowed.assign(s.layers, true);
  if (const auto flags = file_.booleans(kPattern)) {
    s.windowed = *flags;
  } else if (file_.has(kPattern)) {
    std::size_t every = 0;
    TRIMTAB_TRY(read_u32(file_, kPattern, every));
    for (std::size_t i = 0; i < s.layers && every > 0; ++i) s.windowed[i] = i % every < every - 1;
  }
  s.window_tokens = static_cast<std::int64_t>(window);
  if (s.windowed.size() == s.layers && s.window_layers() == 0) {
    s.windowed.clear();
    s.window_tokens = 0;
    return {};
  }
  if (s.windowed.size() == s.layers && s.full_layers() > 0 && window >= kAttentionBlock) return {};
  return base::fail(
      Code::kUnsupported,
      fmt::format(
          "{}: a sliding window of {} tokens in {} of {} layers ({} flags): the reference engine wants "
          "windows of {} tokens or more and at least one layer that sees all, whose blocks the pool keeps",
          file_.path(), window, s.window_layers(), s.layers, s.windowed.size(), kAttentionBlock),
      "engine");
}

base::Status LlamaWeights::read_layers() {
  auto embedding = file_.tensor("token_embd.weight");
  if (!embedding) return tl::unexpected(embedding.error());
  shape_.vocabulary = embedding->rows();
  const LlamaShape& s = shape_;
  TRIMTAB_TRY(matrix("token_embd.weight", s.vocabulary, s.hidden, token_embedding_));
  output_ = token_embedding_;
  if (file_.tensor("output.weight")) TRIMTAB_TRY(matrix("output.weight", s.vocabulary, s.hidden, output_));
  TRIMTAB_TRY(vector("output_norm.weight", s.hidden, output_norm_));
  layers_.resize(s.layers);
  for (std::size_t i = 0; i < s.layers; ++i) {
    LayerWeights& layer = layers_[i];
    const std::string prefix = fmt::format("blk.{}.", i);
    TRIMTAB_TRY(vector(prefix + "attn_norm.weight", s.hidden, layer.attention_norm));
    TRIMTAB_TRY(matrix(prefix + "attn_q.weight", s.query_width(), s.hidden, layer.query));
    TRIMTAB_TRY(matrix(prefix + "attn_k.weight", s.kv_width(), s.hidden, layer.key));
    TRIMTAB_TRY(matrix(prefix + "attn_v.weight", s.kv_width(), s.hidden, layer.value));
    TRIMTAB_TRY(matrix(prefix + "attn_output.weight", s.hidden, s.query_width(), layer.attention_output));
    TRIMTAB_TRY(vector(prefix + "ffn_norm.weight", s.hidden, layer.ffn_norm));
    TRIMTAB_TRY(matrix(prefix + "ffn_gate.weight", s.ffn, s.hidden, layer.gate));
    TRIMTAB_TRY(matrix(prefix + "ffn_up.weight", s.ffn, s.hidden, layer.up));
    TRIMTAB_TRY(matrix(prefix + "ffn_down.weight", s.hidden, s.ffn, layer.down));
  }
  return {};
}

base::Status LlamaWeights::matrix(const std::string& name, std::size_t rows, std::size_t cols,
                                  Matrix& out) const {
  auto tensor = file_.tensor(name);
  if (!tensor) return tl::unexpected(tensor.error());
  if (tensor->row_values() != cols || tensor->rows() != rows) {
    return base::fail(Code::kDataLoss,
                      fmt::format("{}: tensor {} is [{}, {}] where the model's sizes ask for [{}, {}]",
                                  file_.path(), name, tensor->rows(), tensor->row_values(), rows, cols),
                      "engine");
  }
  const auto type = weight_type(tensor->type);
  if (!type) {
    return base::fail(Code::kUnsupported,
                      fmt::format("{}: tensor {} is stored as {}; the reference engine reads F32, F16, Q8_0, "
                                  "Q4_0 and Q4_1",
                                  file_.path(), name, gguf::layout_of(tensor->type).name),
                      "engine");
  }
  out = {tensor->data.data(), *type, rows, cols, tensor->row_bytes()};
  return {};
}

base::Status LlamaWeights::vector(const std::string& name, std::size_t size, const float*& out) const {
  Matrix row;
  TRIMTAB_TRY(matrix(name, 1, size, row));
  if (row.type != WeightType::kF32) {
    return base::fail(Code::kUnsupported, fmt::format("{}: norm {} is not stored as F32", file_.path(), name),
                      "engine");
  }
  out = reinterpret_cast<const float*>(row.data);
  return {};
}

}  // namespace trimtab::engine
