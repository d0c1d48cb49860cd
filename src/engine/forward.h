#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "base/error.h"
#include "engine/feed_forward.h"
#include "engine/kernels.h"
#include "engine/kv_arena.h"
#include "engine/llama_weights.h"
#include "engine/window_attention.h"

namespace trimtab::engine {

/// Cosine and sine of every position and pair, for the rotation of neighbours (2i, 2i + 1) that GGUF's Llama
/// layout asks for.
class RopeTable {
 public:
  RopeTable(std::int64_t positions, float base);
  /// Rotates one head's 64 elements in place.
  void rotate(float* head, std::int64_t position) const;

 private:
  static constexpr std::size_t kPairs = kHeadElements / 2;
  std::vector<float> cosine_, sine_;  // [position][pair]
};

/// Rows that take the place of token embeddings (an image's), by position in the sequence.
struct EmbeddingRows {
  std::int64_t position = 0;
  std::span<const float> rows;  // [n][hidden]
};

/// What a segment's blocks before its own tokens may have to be waited for.
class LayerWait {
 public:
  virtual ~LayerWait() = default;
  /// Returns when `layer` of them (of the layers whose KV lies in blocks) is there. False: it does not come;
  /// what the step makes of this segment is void.
  virtual bool await(std::size_t layer) = 0;
};

/// A run of consecutive tokens of one sequence that a step computes.
struct Segment {
  std::span<const std::int32_t> tokens;   // of this step: q of them
  std::int64_t start = 0;                 // c: tokens whose KV is there already
  std::span<const std::uint32_t> blocks;  // the sequence's block table; covers start + tokens.size()
  std::span<const EmbeddingRows> embeddings;
  bool wants_logits = false;   // of the last token
  SequenceWindow window = {};  // of models with sliding-window layers
  /// Tokens before this position have their KV in the blocks already, and it stays: a hit's, when the tokens
  /// are computed again for their window state only.
  std::int64_t kv_present = 0;
  LayerWait* wait = nullptr;  // absent: all that was before is there
};

/// Runs steps of a Llama model over paged KV. One object per rank, one thread. The logits of a token depend
/// on the model and the tokens before it only, bit for bit: not on how the prompt was cut into steps and
/// waves, nor on what else is in the batch, nor on how many ranks share the feed-forward.
class Forward {
 public:
  Forward(const LlamaWeights& weights, const Kernels& kernels, const KvArena& arena, FfnExchange& exchange);

  /// Computes the segments' KV and the wanted logits. `waves` is the largest number of waves of any rank of
  /// the group (`waves_for` of its rows); a rank with fewer rows goes through the rest empty-handed.
  base::Status step(std::span<const Segment> segments, std::size_t waves);
  static std::size_t waves_for(std::size_t rows) { return (rows + kWaveRows - 1) / kWaveRows; }
  /// Processor time of the last step that its own rows took, feed-forward counted by rows; `attention` is the
  /// part that grows with the context.
  struct Compute {
    base::Nanos attention, whole;
  };
  Compute compute() const { return compute_; }
  /// Row i belongs to the i-th segment that wanted logits, in order: f32 [vocabulary].
  std::span<const float> logits(std::size_t i) const;
  /// Segment i of the last step waited for a layer that did not come. The step went on without it, since the
  /// group's ranks go through every layer together and rows do not depend on one another.
  bool lost(std::size_t i) const { return lost_[i] != 0; }

 private:
  struct Row {
    std::uint32_t segment = 0;
    std::int64_t position = 0;
  };
  void embed(std::span<const Segment> segments);
  void attention(const LayerWeights& layer, std::size_t index, std::span<const Segment> segments,
                 std::size_t begin, std::size_t end);
  bool there(const Segment& segment, std::uint32_t number, std::size_t layer);
  void store_kv(const Segment& segment, std::int64_t position, std::size_t layer, const float* key,
                const float* value);
  void attend(const Segment& segment, std::size_t layer, std::size_t first_row, std::size_t rows,
              std::int64_t position);
  void project(std::span<const Segment> segments);

  const LlamaWeights& weights_;
  const Kernels& kernels_;
  const KvArena& arena_;
  FfnExchange& exchange_;
  RopeTable rope_;
  WindowAttention window_;
  std::vector<Row> rows_;
  std::vector<std::uint8_t> lost_;  // by segment
  std::vector<AttentionState> states_;
  std::vector<std::uint8_t> visible_;
  std::vector<std::size_t> place_;  // of each layer among those of its kind: full ones lie in blocks
  Compute compute_;
  std::size_t logits_rows_ = 0;
  AlignedFloats hidden_;                                  // [rows][hidden], the residual stream
  AlignedFloats normed_, query_, key_, value_, context_;  // of one wave
  AlignedFloats head_queries_, scratch_, logits_;
};

}  // namespace trimtab::engine
