#include "engine/forward.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "engine/compute_clock.h"

namespace trimtab::engine {

RopeTable::RopeTable(std::int64_t positions, float base)
    : cosine_(static_cast<std::size_t>(positions) * kPairs), sine_(cosine_.size()) {
  std::array<double, kPairs> frequency{};
  for (std::size_t i = 0; i < kPairs; ++i) {
    frequency[i] = std::pow(static_cast<double>(base),
                            -2.0 * static_cast<double>(i) / static_cast<double>(kHeadElements));
  }
  for (std::size_t p = 0; p < static_cast<std::size_t>(positions); ++p) {
    for (std::size_t i = 0; i < kPairs; ++i) {
      const double angle = static_cast<double>(p) * frequency[i];
      cosine_[p * kPairs + i] = static_cast<float>(std::cos(angle));
      sine_[p * kPairs + i] = static_cast<float>(std::sin(angle));
    }
  }
}

void RopeTable::rotate(float* head, std::int64_t position) const {
  const float* cosine = &cosine_[static_cast<std::size_t>(position) * kPairs];
  const float* sine = &sine_[static_cast<std::size_t>(position) * kPairs];
  for (std::size_t i = 0; i < kPairs; ++i) {
    const float x = head[2 * i], y = head[2 * i + 1];
    head[2 * i] = x * cosine[i] - y * sine[i];
    head[2 * i + 1] = x * sine[i] + y * cosine[i];
  }
}

namespace {

/// A token's elements into its column of a key block.
template <class T>
void place(T* column, const T* elements) {
  for (std::size_t d = 0; d < kHeadElements; ++d) column[d * kAttentionBlock] = elements[d];
}

}  // namespace

Forward::Forward(const LlamaWeights& weights, const Kernels& kernels, const KvArena& arena,
                 FfnExchange& exchange)
    : weights_(weights),
      kernels_(kernels),
      arena_(arena),
      exchange_(exchange),
      rope_(weights.shape().context_tokens, weights.shape().rope_base),
      window_(weights.shape(), kernels, arena.format()) {
  const LlamaShape& s = weights.shape();
  for (std::size_t layer = 0; layer < s.layers; ++layer) place_.push_back(s.place_of(layer));
  normed_.ensure(kWaveRows * s.hidden);
  query_.ensure(kWaveRows * s.query_width());
  key_.ensure(kWaveRows * s.kv_width());
  value_.ensure(kWaveRows * s.kv_width());
  context_.ensure(kWaveRows * s.query_width());
  head_queries_.ensure(kWaveRows * s.query_width());
  scratch_.ensure(matmul_scratch_floats(std::max(s.hidden, s.query_width())));
  states_.resize(kWaveRows * s.heads / s.kv_heads);
  visible_.resize(states_.size());
}

base::Status Forward::step(std::span<const Segment> segments, std::size_t waves) {
  const LlamaShape& s = weights_.shape();
  base::Nanos began = compute_now();
  compute_ = {};
  exchange_.take_compute();
  rows_.clear();
  lost_.assign(segments.size(), 0);
  for (std::uint32_t i = 0; i < segments.size(); ++i) {
    const Segment& segment = segments[i];
    const auto end = segment.start + static_cast<std::int64_t>(segment.tokens.size());
    TRIMTAB_CHECK(end <= s.context_tokens, "a segment ends beyond the context");
    TRIMTAB_CHECK(end <= static_cast<std::int64_t>(segment.blocks.size() * kAttentionBlock),
                  "a segment ends beyond its blocks");
    for (std::int64_t p = segment.start; p < end; ++p) rows_.push_back({i, p});
  }
  TRIMTAB_CHECK(waves_for(rows_.size()) <= waves, "a step of more waves than the group agreed on");
  hidden_.ensure(std::max<std::size_t>(1, rows_.size()) * s.hidden);
  embed(segments);
  for (std::size_t layer = 0; layer < s.layers; ++layer) {
    const LayerWeights& w = weights_.layers()[layer];
    for (std::size_t wave = 0; wave < waves; ++wave) {
      const std::size_t begin = std::min(rows_.size(), wave * kWaveRows);
      const std::size_t end = std::min(rows_.size(), begin + kWaveRows);
      float* residual = hidden_.data() + begin * s.hidden;
      if (begin < end) attention(w, layer, segments, begin, end);
      for (std::size_t i = 0; i < end - begin; ++i) {
        kernels_.rms_norm(residual + i * s.hidden, w.ffn_norm, normed_.data() + i * s.hidden, s.hidden,
                          s.norm_epsilon);
      }
      compute_.whole += compute_now() - began;
      TRIMTAB_TRY(exchange_.run(w, normed_.data(), end - begin, residual));
      began = compute_now();
    }
  }
  project(segments);
  compute_.whole += compute_now() - began + exchange_.take_compute();
  return {};
}

std::span<const float> Forward::logits(std::size_t i) const {
  TRIMTAB_CHECK(i < logits_rows_, "no such logits row");
  return {logits_.data() + i * weights_.shape().vocabulary, weights_.shape().vocabulary};
}

void Forward::embed(std::span<const Segment> segments) {
  const LlamaShape& s = weights_.shape();
  const Matrix& table = weights_.token_embedding();
  float* out = hidden_.data();
  for (const Row& row : rows_) {
    const Segment& segment = segments[row.segment];
    const float* replacement = nullptr;
    for (const EmbeddingRows& image : segment.embeddings) {
      const std::int64_t offset = row.position - image.position;
      if (offset >= 0 && offset < static_cast<std::int64_t>(image.rows.size() / s.hidden))
        replacement = image.rows.data() + static_cast<std::size_t>(offset) * s.hidden;
    }
    if (replacement != nullptr) {
      std::memcpy(out, replacement, s.hidden * sizeof(float));
    } else {
      const auto token =
          static_cast<std::size_t>(segment.tokens[static_cast<std::size_t>(row.position - segment.start)]);
      TRIMTAB_CHECK(token < s.vocabulary, "token " + std::to_string(token) + " is not in the vocabulary");
      kernels_.dequantize(table.type, table.data + token * table.stride_bytes, out, s.hidden);
    }
    out += s.hidden;
  }
}

void Forward::attention(const LayerWeights& layer, std::size_t index, std::span<const Segment> segments,
                        std::size_t begin, std::size_t end) {
  const LlamaShape& s = weights_.shape();
  const std::size_t rows = end - begin;
  float* residual = hidden_.data() + begin * s.hidden;
  float *normed = normed_.data(), *query = query_.data(), *key = key_.data(), *value = value_.data();
  for (std::size_t i = 0; i < rows; ++i) {
    kernels_.rms_norm(residual + i * s.hidden, layer.attention_norm, normed + i * s.hidden, s.hidden,
                      s.norm_epsilon);
  }
  kernels_.matmul(layer.query, normed, s.hidden, rows, query, s.query_width(), scratch_.data());
  kernels_.matmul(layer.key, normed, s.hidden, rows, key, s.kv_width(), scratch_.data());
  kernels_.matmul(layer.value, normed, s.hidden, rows, value, s.kv_width(), scratch_.data());
  for (std::size_t i = 0; i < rows; ++i) {
    const Row& row = rows_[begin + i];
    for (std::size_t h = 0; h < s.heads; ++h)
      rope_.rotate(query + i * s.query_width() + h * kHeadElements, row.position);
    for (std::size_t h = 0; h < s.kv_heads; ++h)
      rope_.rotate(key + i * s.kv_width() + h * kHeadElements, row.position);
    if (!s.is_windowed(index) && row.position >= segments[row.segment].kv_present)
      store_kv(segments[row.segment], row.position, place_[index], key + i * s.kv_width(),
               value + i * s.kv_width());
  }
  // Keys and values of the whole wave are stored: every row now attends, also to rows of its own wave,
  // through the stored form that later steps will read.
  const base::Nanos before = compute_now();
  for (std::size_t i = 0; i < rows;) {
    const Row& row = rows_[begin + i];
    std::size_t count = 1;
    while (i + count < rows && rows_[begin + i + count].segment == row.segment) ++count;
    if (s.is_windowed(index)) {
      window_.run(segments[row.segment].window,
                  {place_[index], row.position, count, query + i * s.query_width(), key + i * s.kv_width(),
                   value + i * s.kv_width(), context_.data() + i * s.query_width()});
    } else if (there(segments[row.segment], row.segment, place_[index])) {
      attend(segments[row.segment], place_[index], i, count, row.position);
    } else {
      std::fill_n(context_.data() + i * s.query_width(), count * s.query_width(), 0.0F);
    }
    i += count;
  }
  compute_.attention += compute_now() - before;
  float* projected = normed;
  kernels_.matmul(layer.attention_output, context_.data(), s.query_width(), rows, projected, s.hidden,
                  scratch_.data());
  kernels_.add(residual, projected, rows * s.hidden);
}

bool Forward::there(const Segment& segment, std::uint32_t number, std::size_t layer) {
  if (segment.wait != nullptr && lost_[number] == 0 && !segment.wait->await(layer)) lost_[number] = 1;
  return lost_[number] == 0;
}

void Forward::store_kv(const Segment& segment, std::int64_t position, std::size_t layer, const float* key,
                       const float* value) {
  const auto token = static_cast<std::size_t>(position) % kAttentionBlock;
  const std::uint32_t block = segment.blocks[static_cast<std::size_t>(position) / kAttentionBlock];
  for (std::size_t h = 0; h < weights_.shape().kv_heads; ++h) {
    std::byte* keys = arena_.keys(block, layer, h);
    std::byte* values = arena_.values(block, layer, h);
    const float *k = key + h * kHeadElements, *v = value + h * kHeadElements;
    if (arena_.format() == KvFormat::kF32) {
      place(reinterpret_cast<float*>(keys) + token, k);
      std::memcpy(values + token * kHeadElements * sizeof(float), v, kHeadElements * sizeof(float));
      continue;
    }
    std::array<std::uint16_t, kHeadElements> half{};
    kernels_.to_half(k, half.data(), kHeadElements);
    place(reinterpret_cast<std::uint16_t*>(keys) + token, half.data());
    kernels_.to_half(v, reinterpret_cast<std::uint16_t*>(values) + token * kHeadElements, kHeadElements);
  }
}

void Forward::attend(const Segment& segment, std::size_t layer, std::size_t first_row, std::size_t rows,
                     std::int64_t position) {
  const LlamaShape& s = weights_.shape();
  const std::size_t group = s.heads / s.kv_heads;
  const auto start = static_cast<std::size_t>(position);
  const std::size_t last_block = (start + rows - 1) / kAttentionBlock;
  constexpr float kScale = 0.125F;  // 1 / sqrt(64), a power of two: exact
  for (std::size_t h = 0; h < s.kv_heads; ++h) {
    float* queries = head_queries_.data();
    for (std::size_t i = 0; i < rows; ++i) {
      const float* from = query_.data() + (first_row + i) * s.query_width() + h * group * kHeadElements;
      for (std::size_t e = 0; e < group * kHeadElements; ++e) *queries++ = from[e] * kScale;
    }
    for (std::size_t i = 0; i < rows * group; ++i) states_[i].empty = true;
    for (std::size_t b = 0; b <= last_block; ++b) {
      // Rows before this block do not see it.
      const std::size_t skipped = b * kAttentionBlock > start ? b * kAttentionBlock - start : 0;
      for (std::size_t i = skipped; i < rows; ++i) {
        const std::size_t seen = std::min(kAttentionBlock, start + i + 1 - b * kAttentionBlock);
        for (std::size_t g = 0; g < group; ++g) visible_[i * group + g] = static_cast<std::uint8_t>(seen);
      }
      AttendBlock work;
      work.format = arena_.format();
      work.keys = arena_.keys(segment.blocks[b], layer, h);
      work.values = arena_.values(segment.blocks[b], layer, h);
      work.queries = head_queries_.data() + skipped * group * kHeadElements;
      work.visible = visible_.data() + skipped * group;
      work.states = states_.data() + skipped * group;
      work.count = (rows - skipped) * group;
      kernels_.attend(work);
    }
    for (std::size_t i = 0; i < rows; ++i) {
      float* to = context_.data() + (first_row + i) * s.query_width() + h * group * kHeadElements;
      for (std::size_t g = 0; g < group; ++g)
        kernels_.attention_result(states_[i * group + g], to + g * kHeadElements);
    }
  }
}

void Forward::project(std::span<const Segment> segments) {
  const LlamaShape& s = weights_.shape();
  std::vector<std::size_t> wanted;
  std::size_t row = 0;
  for (const Segment& segment : segments) {
    row += segment.tokens.size();
    if (segment.wants_logits && !segment.tokens.empty()) wanted.push_back(row - 1);
  }
  logits_rows_ = wanted.size();
  logits_.ensure(std::max<std::size_t>(1, wanted.size()) * s.vocabulary);
  for (std::size_t done = 0; done < wanted.size(); done += kWaveRows) {
    const std::size_t piece = std::min(kWaveRows, wanted.size() - done);
    for (std::size_t i = 0; i < piece; ++i) {
      kernels_.rms_norm(hidden_.data() + wanted[done + i] * s.hidden, weights_.output_norm(),
                        normed_.data() + i * s.hidden, s.hidden, s.norm_epsilon);
    }
    kernels_.matmul(weights_.output(), normed_.data(), s.hidden, piece, logits_.data() + done * s.vocabulary,
                    s.vocabulary, scratch_.data());
  }
}

}  // namespace trimtab::engine
