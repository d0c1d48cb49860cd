#include "text/tokenizer.h"

#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <thread>

#include "text/pre_tokenizer.h"
#include "text/small_model.h"
#include "text/utf8.h"

namespace trimtab::text {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Tokenizer load(const gguf::Builder& model) {
  const std::string path = testing::TempDir() + "tokenizer_test_" + std::to_string(getpid()) + ".gguf";
  EXPECT_TRUE(model.write(path));
  const auto file = gguf::GgufFile::open(path);
  auto tokenizer = Tokenizer::load(*file);
  std::remove(path.c_str());
  EXPECT_TRUE(tokenizer) << tokenizer.error().message;
  return std::move(*tokenizer);
}

const Tokenizer& small() {
  static const Tokenizer tokenizer = load(small_model());
  return tokenizer;
}

/// The model that the system serves, when TRIMTAB_MODEL names it.
const Tokenizer* real() {
  static const std::optional<Tokenizer> tokenizer = []() -> std::optional<Tokenizer> {
    const char* path = std::getenv("TRIMTAB_MODEL");
    if (path == nullptr) return std::nullopt;
    auto made = Tokenizer::load(*gguf::GgufFile::open(path));
    return made ? std::optional<Tokenizer>(std::move(*made)) : std::nullopt;
  }();
  return tokenizer ? &*tokenizer : nullptr;
}

std::string error_of(const gguf::Builder& model) {
  const std::string path = testing::TempDir() + "tokenizer_test_" + std::to_string(getpid()) + ".gguf";
  EXPECT_TRUE(model.write(path));
  const auto tokenizer = Tokenizer::load(*gguf::GgufFile::open(path));
  std::remove(path.c_str());
  return tokenizer ? "" : tokenizer.error().message;
}

std::vector<std::string> words(std::string_view text) {
  const auto splitter = PreTokenizer::create("smollm");
  PreTokenizer::Scratch scratch(*splitter);
  std::vector<std::string> found;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = splitter->word_end(text, at, scratch);
    found.emplace_back(text.substr(at, end - at));
    at = end;
  }
  return found;
}

TEST(PreTokenizer, CutsAsTheModelWasTrained) {
  EXPECT_THAT(words("Hello world"), ElementsAre("Hello", " world"));
  EXPECT_THAT(words("it's we'll I'm"), ElementsAre("it", "'s", " we", "'ll", " I", "'m"));
  EXPECT_THAT(words("a  b"), ElementsAre("a", " ", " b"));
  EXPECT_THAT(words("a  1"), ElementsAre("a", "  ", "1"));  // a digit ends white space as the text's end does
  EXPECT_THAT(words("x12 34"), ElementsAre("x", "1", "2", " ", "3", "4"));
  EXPECT_THAT(words("a \n\n b"), ElementsAre("a", " \n\n", " b"));
  EXPECT_THAT(words("if(x){ }"), ElementsAre("if", "(", "x", "){", " }"));
  EXPECT_THAT(words("你好，世界"), ElementsAre("你好", "，", "世界"));
  EXPECT_THAT(words("  "), ElementsAre("  "));
}

TEST(PreTokenizer, UnknownNamesAreRefusedWithTheKnownOnes) {
  EXPECT_THAT(PreTokenizer::create("qwen2").error().message,
              HasSubstr("'qwen2'; 'smollm' and 'gpt-2' are known"));
}

TEST(Tokenizer, MergesAndGivesTheTextBack) {
  const auto ids = small().encode("hello hello woo");
  EXPECT_EQ(small().token_bytes(ids[0]), "hello");
  EXPECT_EQ(small().token_bytes(ids[1]), " hello");
  EXPECT_EQ(small().decode(ids), "hello hello woo");
  EXPECT_EQ(ids.size(), 4U);  // hello, " hello", " w", oo
}

TEST(Tokenizer, SpecialTokensComeOnlyWhenAsked) {
  const std::string text = "<|im_end|>x<|im_start|>";
  EXPECT_THAT(small().encode(text, true), ElementsAre(2, small().encode("x")[0], 1));
  for (const TokenId id : small().encode(text)) EXPECT_FALSE(small().is_special(id));
  EXPECT_EQ(small().decode(small().encode(text)), text);
  EXPECT_EQ(small().special("<|im_start|>"), 1);
  EXPECT_EQ(small().special("x"), std::nullopt);
  EXPECT_EQ(small().bos(), 1);
  EXPECT_EQ(small().eos(), 2);
}

TEST(Tokenizer, BrokenBytesBecomeOneReplacementEach) {
  EXPECT_EQ(small().decode(small().encode("a\xE2\x82"
                                          "b")),
            "a" + std::string(kReplacement) + std::string(kReplacement) + "b");
}

TEST(Tokenizer, IdsOutsideTheVocabularyAreNothing) {
  EXPECT_EQ(small().token_bytes(-1), "");
  EXPECT_EQ(small().token_bytes(1 << 30), "");
  EXPECT_FALSE(small().is_special(-1));
  EXPECT_EQ(small().decode(std::vector<TokenId>{-1, 5'000}), "");
}

TEST(Tokenizer, FingerprintSeesVocabularyAndMerges) {
  auto other = small_model();
  const Tokenizer same = load(other);
  EXPECT_EQ(same.fingerprint(), small().fingerprint());
}

TEST(Tokenizer, WrongModelsAreRefusedByName) {
  EXPECT_THAT(error_of(gguf::Builder()), HasSubstr("tokenizer.ggml.model"));
  EXPECT_THAT(error_of(gguf::Builder().add("tokenizer.ggml.model", "llama")), HasSubstr("'llama'"));
  gguf::Builder broken;
  broken.add("tokenizer.ggml.model", "gpt2")
      .add("tokenizer.ggml.pre", "smollm")
      .add("tokenizer.ggml.tokens", std::vector<std::string>{"a", "b"})
      .add("tokenizer.ggml.token_type", std::vector<std::int32_t>{1, 1})
      .add("tokenizer.ggml.merges", std::vector<std::string>{"a b"});
  EXPECT_THAT(error_of(broken), HasSubstr("merge 0 is 'a b'"));
}

RC_GTEST_PROP(Tokenizer, EveryTextComesBack, (std::string bytes)) {
  RC_ASSERT(small().decode(small().encode(bytes)) == replace_broken_bytes(bytes));
}

TEST(Tokenizer, ThreadsShareOneTokenizer) {
  const std::string text = "hello world, hello 123 \xE4\xBD\xA0 again and again";
  const auto expected = small().encode(text);
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (std::size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 2'000; ++i) wrong[t] += small().encode(text) != expected;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

TEST(RealTokenizer, KnownIds) {
  if (real() == nullptr) GTEST_SKIP() << "TRIMTAB_MODEL does not name a model file";
  EXPECT_THAT(real()->encode("Hello world  123 na\xC3\xAFve"),
              ElementsAre(19556, 905, 256, 33, 34, 35, 15486, 46494));
  EXPECT_THAT(real()->encode("<|im_start|>user\nhi<|im_end|>", true), ElementsAre(1, 4093, 198, 6004, 2));
  EXPECT_EQ(real()->vocabulary_size(), 49'152U);
}

TEST(RealTokenizer, ALongWordIsNotQuadratic) {
  if (real() == nullptr) GTEST_SKIP() << "TRIMTAB_MODEL does not name a model file";
  // A quadratic merge of this word takes minutes; this takes milliseconds.
  const std::string word(400'000, 'a');
  const auto ids = real()->encode(word);
  EXPECT_EQ(real()->decode(ids), word);
  EXPECT_GE(ids.size(), word.size() / real()->longest_token_bytes());
}

}  // namespace
}  // namespace trimtab::text
