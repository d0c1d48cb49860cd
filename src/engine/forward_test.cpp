#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <numeric>

#include "base/hash.h"
#include "engine/local_model.h"
#include "engine/tiny_gguf.h"

namespace trimtab::engine {
namespace {

/// The tiny model always, the real one when TRIMTAB_MODEL names it.
class ForwardTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam()) {
      const char* path = std::getenv("TRIMTAB_MODEL");
      if (path == nullptr) GTEST_SKIP() << "TRIMTAB_MODEL does not name the SmolLM2 GGUF";
      path_ = path;
    } else {
      path_ = testing::TempDir() + "/tiny-" + std::to_string(getpid()) + ".gguf";
      ASSERT_TRUE(TinyGguf().write(path_));
    }
  }
  void TearDown() override {
    if (!GetParam()) std::filesystem::remove(path_);
  }
  std::unique_ptr<LocalModel> open(const Kernels* kernels = nullptr) {
    auto model = LocalModel::open(path_, 8, 24, kernels);
    if (!model) ADD_FAILURE() << base::to_string(model.error());
    return model ? std::move(*model) : nullptr;
  }
  std::string path_;
};

std::uint64_t sum(const base::Result<std::vector<float>>& row) {
  return row ? base::checksum_of(std::span<const float>(*row)) : 0;
}

TEST_P(ForwardTest, BitsDoNotDependOnTheChunk) {
  auto model = open();
  ASSERT_TRUE(model);
  const auto prompt = TinyGguf::tokens(300, 7);
  const std::uint64_t whole = sum(model->run(prompt, 1000));
  ASSERT_NE(whole, 0U);
  for (const std::size_t chunk : {1U, 3U, 127U, 128U, 129U, 256U, 299U}) {
    if (GetParam() && chunk < 100) continue;  // long on the real model
    EXPECT_EQ(sum(model->run(prompt, chunk)), whole) << "chunk " << chunk;
  }
  auto other = prompt;
  other[17] = (other[17] + 1) % 640;
  EXPECT_NE(sum(model->run(other, 1000)), whole) << "a token far back is not seen: the test proves nothing";
}

TEST_P(ForwardTest, BitsDoNotDependOnTheBatch) {
  auto model = open();
  ASSERT_TRUE(model);
  const auto a = TinyGguf::tokens(260, 1), b = TinyGguf::tokens(131, 2), c = TinyGguf::tokens(7, 3);
  const std::uint64_t alone[3] = {sum(model->run(a)), sum(model->run(b)), sum(model->run(c))};
  const std::vector<std::uint32_t> blocks[3] = {{9, 2, 14}, {5, 0}, {11}};
  std::vector<Segment> segments = {
      {b, 0, blocks[1], {}, true}, {a, 0, blocks[0], {}, true}, {c, 0, blocks[2], {}, true}};
  ASSERT_TRUE(model->step(segments));
  EXPECT_EQ(base::checksum_of(model->forward().logits(0)), alone[1]);
  EXPECT_EQ(base::checksum_of(model->forward().logits(1)), alone[0]);
  EXPECT_EQ(base::checksum_of(model->forward().logits(2)), alone[2]);
}

TEST_P(ForwardTest, DecodeMakesTheSameKvAsPrefill) {
  auto model = open();
  ASSERT_TRUE(model);
  const auto all = TinyGguf::tokens(140, 5);
  const std::vector<std::uint32_t> mixed = {3, 4}, whole = {6, 7};
  Segment head{std::span(all).first(90), 0, mixed, {}, false};
  ASSERT_TRUE(model->step({&head, 1}));
  for (std::size_t t = 90; t < all.size(); ++t) {
    Segment one{std::span(all).subspan(t, 1), static_cast<std::int64_t>(t), mixed, {}, true};
    ASSERT_TRUE(model->step({&one, 1}));
  }
  const std::uint64_t decoded = base::checksum_of(model->forward().logits(0));
  Segment at_once{all, 0, whole, {}, true};
  ASSERT_TRUE(model->step({&at_once, 1}));
  EXPECT_EQ(base::checksum_of(model->forward().logits(0)), decoded);
  // The full block holds the same bytes whichever way it was made: it may go to the pool either way.
  EXPECT_TRUE(std::ranges::equal(model->arena().block(3), model->arena().block(6)));
}

TEST_P(ForwardTest, RecycledBlocksMayHoldAnything) {
  auto model = open();
  ASSERT_TRUE(model);
  const auto prompt = TinyGguf::tokens(150, 9);
  const std::uint64_t clean = sum(model->run(prompt));
  for (std::uint32_t b = 0; b < 2; ++b)
    std::ranges::fill(model->arena().block(b), std::byte{0xFF});  // f16 NaN throughout
  EXPECT_EQ(sum(model->run(prompt)), clean);
}

TEST_P(ForwardTest, EmbeddingRowsEqualTheTokensTheyStandFor) {
  auto model = open();
  ASSERT_TRUE(model);
  const auto prompt = TinyGguf::tokens(200, 11);
  const std::uint64_t inlined = sum(model->run(prompt));
  const LlamaShape& s = model->shape();
  std::vector<float> rows(100 * s.hidden);
  const Matrix& table = model->weights().token_embedding();
  for (std::size_t i = 0; i < 100; ++i) {
    (*best_kernels())
        ->dequantize(table.type, table.data + static_cast<std::size_t>(prompt[60 + i]) * table.stride_bytes,
                     rows.data() + i * s.hidden, s.hidden);
  }
  auto masked = prompt;
  std::fill_n(masked.begin() + 60, 100, 0);
  const EmbeddingRows image{60, rows};
  const std::vector<std::uint32_t> blocks = {0, 1};
  Segment segment{masked, 0, blocks, {&image, 1}, true};
  ASSERT_TRUE(model->step({&segment, 1}));
  EXPECT_EQ(base::checksum_of(model->forward().logits(0)), inlined);
  EXPECT_NE(sum(model->run(masked)), inlined);
}

TEST_P(ForwardTest, BothInstructionSetsGiveTheSameBits) {
  if (!machine_has(Isa::kAvx512)) GTEST_SKIP() << "this machine has no AVX-512";
  auto wide = open(&kernels_for(Isa::kAvx512)), narrow = open(&kernels_for(Isa::kAvx2));
  ASSERT_TRUE(wide && narrow);
  const auto prompt = TinyGguf::tokens(200, 13);
  EXPECT_EQ(sum(wide->run(prompt, 64)), sum(narrow->run(prompt, 150)));
}

INSTANTIATE_TEST_SUITE_P(Models, ForwardTest, testing::Values(false, true),
                         [](const auto& i) { return i.param ? "SmolLM2" : "Tiny"; });

TEST(LlamaWeights, RefusesWhatItCannotRun) {
  const std::string path = testing::TempDir() + "/refused-" + std::to_string(getpid()) + ".gguf";
  TinyGguf tiny;
  tiny.architecture = "mamba";
  ASSERT_TRUE(tiny.write(path));
  auto other = LlamaWeights::load(path);
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code, base::Code::kUnsupported);
  EXPECT_NE(other.error().message.find("mamba"), std::string::npos);
  ASSERT_TRUE(TinyGguf().write(path));
  std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
  auto cut = LlamaWeights::load(path);
  ASSERT_FALSE(cut);
  EXPECT_EQ(cut.error().code, base::Code::kDataLoss);
  EXPECT_FALSE(LlamaWeights::load("/nonexistent.gguf"));
  EXPECT_FALSE(ExpertPartition::make(288, 10));  // nine blocks of 32 neurons
  EXPECT_FALSE(ExpertPartition::make(288, 0));
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace trimtab::engine
