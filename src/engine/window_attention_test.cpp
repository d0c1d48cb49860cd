#include "engine/window_attention.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "base/hash.h"
#include "engine/local_model.h"
#include "engine/tiny_gguf.h"

namespace trimtab::engine {
namespace {

float to_float(std::uint16_t half) {
  const float magnitude = half >> 10 & 31
                              ? std::ldexp(static_cast<float>((half & 1023) | 1024), (half >> 10 & 31) - 25)
                              : std::ldexp(static_cast<float>(half & 1023), -24);
  return half & 0x8000 ? -magnitude : magnitude;
}

/// The plain computation: token by token, every row of every layer kept for ever, out of sight what the
/// window hides. It shares the kernels with the engine, and the order in which a query visits its tokens.
class PlainModel {
 public:
  explicit PlainModel(LocalModel& model)
      : weights_(model.weights()),
        s_(model.shape()),
        kernels_(**best_kernels()),
        runner_(kernels_, s_, *ExpertPartition::make(s_.ffn, 8)),
        exchange_(runner_),
        rope_(s_.context_tokens, s_.rope_base),
        rows_(s_.layers) {}

  std::vector<float> logits_after(std::span<const std::int32_t> tokens) {
    AlignedFloats hidden(s_.hidden), normed(s_.hidden),
        scratch(matmul_scratch_floats(s_.query_width() + s_.hidden)), query(s_.query_width()),
        key(s_.kv_width()), value(s_.kv_width()), context(s_.query_width()), logits(s_.vocabulary);
    for (const std::int32_t token : tokens) {
      const Matrix& table = weights_.token_embedding();
      kernels_.dequantize(table.type, table.data + static_cast<std::size_t>(token) * table.stride_bytes,
                          hidden.data(), s_.hidden);
      const auto position = static_cast<std::int64_t>(rows_[0].size());
      for (std::size_t layer = 0; layer < s_.layers; ++layer) {
        const LayerWeights& w = weights_.layers()[layer];
        kernels_.rms_norm(hidden.data(), w.attention_norm, normed.data(), s_.hidden, s_.norm_epsilon);
        const auto times = [&](const Matrix& m, const float* x, AlignedFloats& y) {
          kernels_.matmul(m, x, m.cols, 1, y.data(), m.rows, scratch.data());
        };
        times(w.query, normed.data(), query);
        times(w.key, normed.data(), key);
        times(w.value, normed.data(), value);
        for (std::size_t h = 0; h < s_.heads; ++h) rope_.rotate(query.data() + h * 64, position);
        for (std::size_t h = 0; h < s_.kv_heads; ++h) rope_.rotate(key.data() + h * 64, position);
        auto& row = rows_[layer].emplace_back(2 * s_.kv_width());
        kernels_.to_half(key.data(), row.data(), s_.kv_width());
        kernels_.to_half(value.data(), row.data() + s_.kv_width(), s_.kv_width());
        for (std::size_t h = 0; h < s_.heads; ++h)
          attend(layer, h, query.data() + h * 64, context.data() + h * 64);
        times(w.attention_output, context.data(), normed);
        kernels_.add(hidden.data(), normed.data(), s_.hidden);
        kernels_.rms_norm(hidden.data(), w.ffn_norm, normed.data(), s_.hidden, s_.norm_epsilon);
        EXPECT_TRUE(exchange_.run(w, normed.data(), 1, hidden.data()));
      }
    }
    kernels_.rms_norm(hidden.data(), weights_.output_norm(), normed.data(), s_.hidden, s_.norm_epsilon);
    kernels_.matmul(weights_.output(), normed.data(), s_.hidden, 1, logits.data(), s_.vocabulary,
                    scratch.data());
    return {logits.data(), logits.data() + s_.vocabulary};
  }

  double attention_error = 0;  // the largest, against a softmax in f64 over the tokens in sight

 private:
  void attend(std::size_t layer, std::size_t head, const float* query, float* out) {
    const auto& rows = rows_[layer];
    const std::size_t kv_head = head / (s_.heads / s_.kv_heads);
    const auto position = static_cast<std::int64_t>(rows.size()) - 1;
    const auto in_sight = [&](std::int64_t p) {
      return p <= position && (!s_.is_windowed(layer) || position - p < s_.window_tokens);
    };
    AlignedFloats scaled(64);
    for (std::size_t d = 0; d < 64; ++d) scaled.data()[d] = query[d] * 0.125F;
    AttentionState state;
    double sum = 0, plain[64] = {};
    for (std::int64_t block = 0; block <= position; block += 128) {
      std::vector<std::int64_t> seen;
      for (std::int64_t p = block; p < block + 128; ++p)
        if (in_sight(p)) seen.push_back(p);
      if (seen.empty()) continue;
      if (seen[0] != block) std::reverse(seen.begin(), seen.end());
      AlignedFloats tile(64 * 128);
      auto* keys = reinterpret_cast<std::uint16_t*>(tile.data());
      for (std::size_t t = 0; t < seen.size(); ++t) {
        const std::uint16_t* row = rows[static_cast<std::size_t>(seen[t])].data() + kv_head * 64;
        double score = 0;
        for (std::size_t d = 0; d < 64; ++d) {
          keys[d * 128 + t] = row[d];
          keys[64 * 128 + t * 64 + d] = row[s_.kv_width() + d];
          score += static_cast<double>(scaled.data()[d]) * static_cast<double>(to_float(row[d]));
        }
        sum += std::exp(score);
        for (std::size_t d = 0; d < 64; ++d)
          plain[d] += std::exp(score) * static_cast<double>(to_float(row[s_.kv_width() + d]));
      }
      const auto visible = static_cast<std::uint8_t>(seen.size());
      AttendBlock work;
      work.keys = reinterpret_cast<const std::byte*>(keys);
      work.values = reinterpret_cast<const std::byte*>(keys + 64 * 128);
      work.queries = scaled.data();
      work.visible = &visible;
      work.states = &state;
      work.count = 1;
      kernels_.attend(work);
    }
    kernels_.attention_result(state, out);
    for (std::size_t d = 0; d < 64; ++d)
      attention_error = std::max(attention_error, std::abs(plain[d] / sum - static_cast<double>(out[d])));
  }

  const LlamaWeights& weights_;
  const LlamaShape& s_;
  const Kernels& kernels_;
  ExpertRunner runner_;
  LocalExchange exchange_;
  RopeTable rope_;
  std::vector<std::vector<std::vector<std::uint16_t>>> rows_;  // [layer][token][keys, then values]
};

class WindowAttentionTest : public testing::Test {
 protected:
  std::unique_ptr<LocalModel> open(std::uint32_t window = 128, KvFormat format = KvFormat::kF16) {
    const std::string path = testing::TempDir() + "/window-" + std::to_string(getpid()) + ".gguf";
    TinyGguf tiny;
    tiny.layers = 5;
    tiny.kv_heads = 2;
    tiny.heads = 4;
    tiny.hidden = 256;
    tiny.window = window;
    tiny.window_pattern = 3;  // layer 2 sees all; 0, 1, 3 and 4 have a window
    EXPECT_TRUE(tiny.write(path));
    auto model = LocalModel::open(path, 8, 8, nullptr, format);
    std::filesystem::remove(path);
    if (!model) ADD_FAILURE() << base::to_string(model.error());
    return model ? std::move(*model) : nullptr;
  }
  static std::vector<std::uint32_t> blocks() { return {0, 1, 2, 3, 4, 5, 6, 7}; }
};

TEST_F(WindowAttentionTest, RingsGiveTheBitsOfKeepingEverythingAndMasking) {
  for (const std::uint32_t window : {128U, 200U}) {
    auto model = open(window);
    ASSERT_TRUE(model);
    PlainModel plain(*model);
    const auto prompt = TinyGguf::tokens(600, window);
    std::size_t done = 0;
    for (const std::size_t end : {128U, 129U, 300U, 600U}) {
      const auto expected = plain.logits_after(std::span(prompt).subspan(done, end - done));
      done = end;
      for (const std::size_t chunk : {1U, 100U, 128U, 1000U}) {
        if (chunk == 1 && (end < 300 || end == 600)) continue;  // long, and 300 has it all
        std::ranges::fill(model->ring(), std::byte{0xFF});      // a slot's last request: NaN throughout
        const auto logits = model->run(std::span(prompt).first(end), chunk);
        ASSERT_TRUE(logits);
        EXPECT_EQ(*logits, expected) << "window " << window << ", " << end << " tokens, chunks of " << chunk;
      }
    }
    EXPECT_LT(plain.attention_error, 1e-4);
  }
}

TEST_F(WindowAttentionTest, AWindowHidesWhatIsFurtherBackAndShowsWhatIsNot) {
  const std::string path = testing::TempDir() + "/sight-" + std::to_string(getpid()) + ".gguf";
  TinyGguf tiny;
  tiny.layers = 2;
  tiny.window = 128;
  tiny.window_pattern = 2;  // layer 0 has a window, layer 1 sees all
  ASSERT_TRUE(tiny.write(path));
  auto model = LocalModel::open(path, 8, 8);
  std::filesystem::remove(path);
  ASSERT_TRUE(model);
  const LlamaShape& s = (*model)->shape();
  EXPECT_TRUE(s.is_windowed(0));
  EXPECT_FALSE(s.is_windowed(1));
  const auto row_after = [&](std::vector<std::int32_t> prompt) {
    // What layer 1 keeps of the last token is a function of layer 0's sight.
    EXPECT_TRUE((*model)->run(prompt));
    const std::size_t last = prompt.size() - 1;
    const auto* value = reinterpret_cast<const std::uint16_t*>(
        (*model)->arena().values(static_cast<std::uint32_t>(last / 128), 0, 0) + last % 128 * 128);
    return std::vector<std::uint16_t>(value, value + 64);
  };
  int noticed = 0;  // attention is sharp: not every token that is seen moves a half-precision value
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    auto prompt = TinyGguf::tokens(300, seed);
    const auto row = row_after(prompt);
    prompt[299 - 128] = (prompt[299 - 128] + 1) % 640;
    EXPECT_EQ(row_after(prompt), row) << "a token 128 back is hidden";
    prompt[299 - 127] = (prompt[299 - 127] + 1) % 640;
    noticed += row_after(prompt) != row ? 1 : 0;
  }
  EXPECT_GT(noticed, 0) << "a token 127 back is seen";
}

TEST_F(WindowAttentionTest, SnapshotsOfALongStepAreThoseOfTheRing) {
  auto model = open();
  ASSERT_TRUE(model);
  const auto ring = model->shape().ring();
  const auto prompt = TinyGguf::tokens(600, 5);
  const auto blocks_of = blocks();
  std::vector<std::byte> early(static_cast<std::size_t>(kv::snapshot_bytes(ring, 256).value)), late = early;
  const SnapshotCopy copies[2] = {{256, early}, {512, late}};
  Segment whole{prompt, 0, blocks_of, {}, true};
  whole.window.ring = model->ring();
  whole.window.snapshots = copies;
  ASSERT_TRUE(model->step({&whole, 1}));
  const std::uint64_t expected = base::checksum_of(model->forward().logits(0));

  for (const SnapshotCopy& copy : copies) {
    const auto position = static_cast<std::size_t>(copy.position);
    ASSERT_TRUE(model->run(std::span(prompt).first(position)));
    auto direct = early;
    ASSERT_TRUE(kv::copy_window_out(ring, model->ring(), copy.position, copy.position, direct));
    EXPECT_TRUE(std::ranges::equal(direct, copy.bytes)) << position;
    // And back: the rest of the prompt from the snapshot alone, over blocks of which only full layers are
    // there.
    std::ranges::fill(model->ring(), std::byte{0xFF});
    kv::copy_window_in(ring, copy.bytes, copy.position, model->ring());
    Segment rest{std::span(prompt).subspan(position), copy.position, blocks_of, {}, true};
    rest.window.ring = model->ring();
    ASSERT_TRUE(model->step({&rest, 1}));
    EXPECT_EQ(base::checksum_of(model->forward().logits(0)), expected) << position;
  }
}

TEST_F(WindowAttentionTest, WithoutTheStateWindowTimesLayersTokensAreExactAndOneBlockIsNot) {
  auto model = open();
  ASSERT_TRUE(model);
  const auto prompt = TinyGguf::tokens(1000, 7);
  const auto expected = model->run(prompt);
  ASSERT_TRUE(expected);
  const std::uint64_t kv_before = base::checksum(model->arena().block(4));
  const auto from = [&](std::int64_t start) {
    std::ranges::fill(model->ring(), std::byte{0xFF});
    const auto blocks_of = blocks();
    Segment rest{std::span(prompt).subspan(static_cast<std::size_t>(start)), start, blocks_of, {}, true};
    rest.window.ring = model->ring();
    rest.window.from = start;
    rest.kv_present = 896;  // the hit: blocks of the full layers, none of which may be written again
    EXPECT_TRUE(model->step({&rest, 1}));
    const auto row = model->forward().logits(0);
    return std::vector<float>(row.begin(), row.end());
  };
  EXPECT_EQ(from(896 - 4 * 128), *expected);
  const auto drifted = from(896 - 128);
  EXPECT_NE(drifted, *expected);
  double largest = 0;
  for (std::size_t i = 0; i < drifted.size(); ++i)
    largest =
        std::max(largest, std::abs(static_cast<double>(drifted[i]) - static_cast<double>((*expected)[i])));
  EXPECT_LT(largest, 10) << "drift, not garbage";
  EXPECT_EQ(base::checksum(model->arena().block(4)), kv_before);
}

TEST_F(WindowAttentionTest, BlocksHoldTheFullLayersAndSequencesKeepApart) {
  auto model = open();
  ASSERT_TRUE(model);
  const LlamaShape& s = model->shape();
  EXPECT_EQ(s.kv_block_bytes(), 1 * 2 * 2 * 64 * 128 * 2U);
  EXPECT_EQ(kv::ring_bytes(s.ring()).value, 4 * 134 * 2 * 2 * 64 * 2);
  const auto a = TinyGguf::tokens(300, 1), b = TinyGguf::tokens(200, 2);
  const auto alone_a = model->run(a), alone_b = model->run(b);
  std::vector<std::byte> rings[2] = {std::vector<std::byte>(model->ring().size(), std::byte{0xFF}),
                                     std::vector<std::byte>(model->ring().size(), std::byte{0xFF})};
  const std::vector<std::uint32_t> tables[2] = {{5, 0, 3}, {1, 2}};
  Segment both[2] = {{a, 0, tables[0], {}, true}, {b, 0, tables[1], {}, true}};
  both[0].window.ring = rings[0];
  both[1].window.ring = rings[1];
  ASSERT_TRUE(model->step(both));
  EXPECT_TRUE(std::ranges::equal(model->forward().logits(0), *alone_a));
  EXPECT_TRUE(std::ranges::equal(model->forward().logits(1), *alone_b));
}

TEST(WindowMetadata, PatternsThatCannotRunAreRefused) {
  const std::string path = testing::TempDir() + "/pattern-" + std::to_string(getpid()) + ".gguf";
  TinyGguf tiny;
  tiny.window = 128;  // no pattern: all layers
  ASSERT_TRUE(tiny.write(path));
  auto all = LlamaWeights::load(path);
  ASSERT_FALSE(all);
  EXPECT_EQ(all.error().code, base::Code::kUnsupported);
  EXPECT_NE(all.error().message.find("3 of 3 layers"), std::string::npos) << all.error().message;
  tiny.window = 64;
  tiny.window_pattern = 2;
  ASSERT_TRUE(tiny.write(path));
  EXPECT_FALSE(LlamaWeights::load(path));
  tiny.window = tiny.context;  // nothing is ever hidden
  ASSERT_TRUE(tiny.write(path));
  auto plain = LlamaWeights::load(path);
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->shape().window_tokens, 0);
  EXPECT_EQ(plain->shape().full_layers(), 3U);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace trimtab::engine
