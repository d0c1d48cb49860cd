#include "kv/key_chain.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <set>
#include <string>

namespace trimtab::kv {
namespace {

using model::ImageSpan;
using model::to_string;

KeyScope scope() { return {"smollm2-135m-q4_1", "f32/30x2x3x64", "bpe-49152", "", ""}; }

BlockKey content(const std::string& text) { return content_key(std::as_bytes(std::span{text})); }

ImageSpan image(std::uint32_t position, std::uint32_t tokens, BlockKey key) {
  ImageSpan span;
  span.position = position;
  span.tokens = tokens;
  span.content = key;
  return span;
}

std::vector<std::int32_t> golden_tokens() {
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < 128 * 4 + 5; ++i) tokens.push_back((i * 7919 + 13) % 49152);
  tokens[3] = -1;
  return tokens;
}

std::vector<std::string> texts(const std::vector<BlockKey>& keys) {
  std::vector<std::string> out;
  for (const BlockKey key : keys) out.push_back(to_string(key));
  return out;
}

// From tests/golden/block_keys.py, which shares nothing with this code but the format's description.
TEST(KeyChain, GoldenRoots) {
  EXPECT_EQ(to_string(root_key({})), "254f8a95709e667656cb94bdf0a80224");
  KeyScope s = scope();
  EXPECT_EQ(to_string(root_key(s)), "9bb6fd3f8e16804d080b270b5fbfe1aa");
  s.adapter = "acme";
  EXPECT_EQ(to_string(root_key(s)), "81a5ed3ab194c62fa034bab27d1432cf");
  s.adapter = "";
  s.tenant = "acme";
  EXPECT_EQ(to_string(root_key(s)), "30d5d4d1e547470c470b70e8e662b2e1");
  EXPECT_EQ(to_string(content("not really a PNG")), "615508b4f6e454bd3f10999c0ed07800");
}

TEST(KeyChain, GoldenChains) {
  const BlockKey root = root_key(scope());
  const std::vector<std::string> text = {
      "e7acadf44335189f9695df6641706817", "9dbb26100a193083cfee3bce842c3e34",
      "b40a5fe009ae48967456b4ce098e74e1", "bfe9727c2471e8a9e4b8cfdce1563a64"};
  EXPECT_EQ(texts(block_keys(root, golden_tokens())), text);
  const std::vector<std::string> with_images = {
      "1cc34cc8f0b5bdb02a4c7e55aa98b1d2", "20c69b8023cf6bf90a055b35ed10100d",
      "41b41a39511f9a5ab9b72ba63cd95d3f", "2011baefd762955835ef8b3b254721d4"};
  const std::vector<ImageSpan> images = {image(300, 20, content("")),
                                         image(100, 60, content("not really a PNG"))};
  EXPECT_EQ(texts(block_keys(root, golden_tokens(), images)), with_images);
  std::vector<std::int32_t> long_tokens;
  for (std::int64_t i = 0; i < 65536; ++i)
    long_tokens.push_back(static_cast<std::int32_t>(i * 2654435761 % 129280));
  const auto keys = block_keys(root, long_tokens);
  ASSERT_EQ(keys.size(), 512U);
  EXPECT_EQ(to_string(keys.back()), "1ae9710df9ca3a75178be416bf7064ad");
}

// Every part of the scope counts, and none can pass for another (vllm#44250, #44701, sglang#33268, #24638).
TEST(KeyChain, ScopesShareNothing) {
  const std::vector<std::string> values = {"", "a", "b", "ab", std::string("a\0b", 3), "\x05"};
  std::set<BlockKey> roots;
  std::size_t scopes = 0;
  for (const auto& model : values)
    for (const auto& format : values)
      for (const auto& tokenizer : values)
        for (const auto& adapter : values)
          for (const auto& tenant : values) {
            roots.insert(root_key({model, format, tokenizer, adapter, tenant}));
            ++scopes;
          }
  EXPECT_EQ(roots.size(), scopes);
}

TEST(KeyChain, AnotherScopeGivesOtherBlocks) {
  KeyScope other = scope();
  other.kv_format = "f16/30x2x3x64";
  const auto one = block_keys(root_key(scope()), golden_tokens());
  const auto two = block_keys(root_key(other), golden_tokens());
  for (std::size_t i = 0; i < one.size(); ++i) EXPECT_NE(one[i], two[i]);
}

RC_GTEST_PROP(KeyChainProperty, ATokenChangesItsBlockAndAllAfter, ()) {
  const BlockKey root = root_key(scope());
  auto tokens = golden_tokens();
  const auto before = block_keys(root, tokens);
  const auto where = *rc::gen::inRange<std::size_t>(0, 512);
  tokens[where] += *rc::gen::inRange(1, 1 << 30);
  const auto after = block_keys(root, tokens);
  for (std::size_t i = 0; i < before.size(); ++i) RC_ASSERT((before[i] == after[i]) == (i < where / 128));
}

RC_GTEST_PROP(KeyChainProperty, TokenByTokenEqualsAtOnceFromAnyKnownPrefix, ()) {
  const BlockKey root = root_key(scope());
  const auto tokens = golden_tokens();
  const std::vector<ImageSpan> images = {image(100, 60, content("x")), image(300, 90, content("y"))};
  const auto keys = block_keys(root, tokens, images);
  const auto given = *rc::gen::inRange<std::size_t>(0, tokens.size() + 1);
  const auto known = *rc::gen::inRange<std::size_t>(0, given / 128 + 1);
  KeyChain chain(root, std::span{keys}.first(known), std::span{tokens}.first(given), images);
  std::vector<BlockKey> got(keys.begin(), keys.begin() + static_cast<std::ptrdiff_t>(known));
  for (const BlockKey key : chain.take_new_keys()) got.push_back(key);
  RC_ASSERT(got.size() == given / 128);
  RC_ASSERT(chain.take_new_keys().empty());
  for (std::size_t i = given; i < tokens.size(); ++i)
    if (auto key = chain.append(tokens[i])) got.push_back(*key);
  RC_ASSERT(got == keys);
  RC_ASSERT(chain.last_key() == keys.back());
  RC_ASSERT(chain.tokens() == static_cast<std::int64_t>(tokens.size()));
}

// Placeholder tokens are equal for all images: the content and its place must tell them apart.
TEST(KeyChain, ImagesTellEqualPlaceholdersApart) {
  const BlockKey root = root_key(scope());
  const std::vector<std::int32_t> tokens(128 * 4, 49150);
  const auto keys_of = [&](std::vector<ImageSpan> images) { return block_keys(root, tokens, images); };
  const auto cat = keys_of({image(130, 200, content("cat"))});
  const auto dog = keys_of({image(130, 200, content("dog"))});
  const auto none = keys_of({});
  EXPECT_EQ(cat[0], none[0]) << "the block before the image knows nothing of it";
  EXPECT_EQ(cat[0], dog[0]);
  for (std::size_t i = 1; i < 4; ++i) {
    EXPECT_NE(cat[i], dog[i]);
    EXPECT_NE(cat[i], none[i]);
  }
  // One later, the same tokens show another part of the image in every block that it covers.
  const auto shifted = keys_of({image(131, 200, content("cat"))});
  EXPECT_NE(cat[1], shifted[1]);
  // An image of 200 rows is not the first 200 rows of one of 201.
  EXPECT_NE(keys_of({image(130, 201, content("cat"))})[1], cat[1]);
  // Two images in one block, and the same two the other way round.
  const auto ab = keys_of({image(10, 20, content("a")), image(30, 20, content("b"))});
  const auto ba = keys_of({image(10, 20, content("b")), image(30, 20, content("a"))});
  EXPECT_NE(ab[0], ba[0]);
  EXPECT_EQ(keys_of({image(30, 20, content("b")), image(10, 20, content("a"))}), ab) << "the list's order";
}

TEST(KeyChain, AnImageThatCoversBlocksEntersEachOfThem) {
  // Blocks are compared under one parent, so that the chain cannot hide a block that ignores its image.
  const std::vector<std::int32_t> tokens(256, 7);
  const auto a = block_keys({1, 2}, tokens, std::vector{image(0, 256, content("a"))});
  const auto b = block_keys({1, 2}, tokens, std::vector{image(128, 128, content("a"))});
  EXPECT_NE(a[0], b[0]);
  KeyChain from_a(BlockKey{}, std::span{a}.first(1), tokens, {image(0, 256, content("a"))});
  KeyChain from_a_other(BlockKey{}, std::span{a}.first(1), tokens, {image(0, 256, content("b"))});
  EXPECT_EQ(from_a.take_new_keys().front(), a[1]);
  EXPECT_NE(from_a_other.take_new_keys().front(), a[1]);
}

TEST(KeyChainDeathTest, OverlappingImagesAreAProgrammersError) {
  const std::vector<ImageSpan> images = {image(0, 20, {}), image(19, 5, {})};
  EXPECT_DEATH(block_keys({}, golden_tokens(), images), "overlap");
}

}  // namespace
}  // namespace trimtab::kv
