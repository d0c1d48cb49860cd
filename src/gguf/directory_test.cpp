#include "gguf/directory.h"

#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include <cstring>

#include "gguf/builder.h"

namespace trimtab::gguf {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Builder small_model() {
  const std::vector<float> values{1, 2, 3, 4, 5, 6};
  Builder builder;
  builder.add("general.architecture", "llama")
      .add("llama.block_count", 30U)
      .add("llama.rope.freq_base", 1e5F)
      .add_flag("tokenizer.ggml.add_bos_token", true)
      .add("tokenizer.ggml.tokens", std::vector<std::string>{"a", "", "bc"})
      .add("tokenizer.ggml.token_type", std::vector<std::int32_t>{1, -3, 1})
      .add_tensor("norm", {6}, values)
      .add_tensor("table", {3, 2}, values);
  return builder;
}

std::string parse_error(std::span<const std::byte> file) {
  const auto directory = Directory::parse(file);
  return directory ? "" : directory.error().message;
}

/// The file with `value` written over the bytes at `at`.
template <class T>
std::vector<std::byte> patched(std::vector<std::byte> file, std::size_t at, T value) {
  std::memcpy(file.data() + at, &value, sizeof value);
  return file;
}

std::size_t offset_of(const std::vector<std::byte>& file, std::string_view text) {
  const std::string_view all(reinterpret_cast<const char*>(file.data()), file.size());
  return all.find(text);
}

TEST(Directory, ReadsEveryKindOfValue) {
  const auto file = small_model().bytes();
  const auto directory = Directory::parse(file);
  ASSERT_TRUE(directory) << directory.error().message;
  EXPECT_EQ(directory->string("general.architecture"), "llama");
  EXPECT_EQ(directory->u32("llama.block_count"), 30U);
  EXPECT_EQ(directory->f32("llama.rope.freq_base"), 1e5F);
  EXPECT_EQ(directory->boolean("tokenizer.ggml.add_bos_token"), true);
  EXPECT_THAT(*directory->strings("tokenizer.ggml.tokens"), ElementsAre("a", "", "bc"));
  EXPECT_THAT(*directory->i32s("tokenizer.ggml.token_type"), ElementsAre(1, -3, 1));
}

TEST(Directory, ReadsFlagsOfLayers) {
  Builder builder;
  builder.add_flags("llama.attention.sliding_window_pattern", {true, true, false});
  builder.add("llama.attention.sliding_window", std::uint32_t{128});
  const auto file = builder.bytes();
  const auto directory = Directory::parse(file);
  ASSERT_TRUE(directory) << directory.error().message;
  EXPECT_EQ(directory->booleans("llama.attention.sliding_window_pattern"),
            (std::vector<bool>{true, true, false}));
  EXPECT_EQ(directory->booleans("llama.attention.sliding_window").error().code, base::Code::kInvalidArgument);
}

TEST(Directory, FindsTensorsByNameWithTheirRows) {
  const auto file = small_model().bytes();
  const auto directory = Directory::parse(file);
  ASSERT_TRUE(directory);
  const auto table = directory->tensor("table");
  ASSERT_TRUE(table);
  EXPECT_EQ(table->row_values(), 3U);
  EXPECT_EQ(table->rows(), 2U);
  EXPECT_EQ(directory->data_offset() % 32, 0U);
  std::vector<float> row(3);
  ASSERT_TRUE(dequantize_row(*table, 1, row));
  EXPECT_THAT(row, ElementsAre(4, 5, 6));
}

TEST(Directory, MissingKeysAndWrongTypesAreNamed) {
  const auto file = small_model().bytes();
  const auto directory = Directory::parse(file);
  ASSERT_TRUE(directory);
  EXPECT_EQ(directory->u32("llama.foo").error().code, base::Code::kNotFound);
  EXPECT_THAT(directory->u32("llama.foo").error().message, HasSubstr("llama.foo"));
  EXPECT_THAT(directory->string("llama.block_count").error().message, HasSubstr("holds u32, a string was"));
  EXPECT_THAT(directory->u32("tokenizer.ggml.token_type").error().message, HasSubstr("array of i32"));
  EXPECT_THAT(directory->tensor("nope").error().message, HasSubstr("nope"));
}

TEST(Directory, NegativeAndTooLargeNumbersAreNoU32) {
  Builder builder;
  const auto file = builder.add("n", 7U).bytes();
  const std::size_t type_at = offset_of(file, "n") + 1;
  const auto as_i32 = patched(patched(file, type_at, std::uint32_t{5}), type_at + 4, std::int32_t{-1});
  const auto directory = Directory::parse(as_i32);
  ASSERT_TRUE(directory);
  EXPECT_THAT(directory->u32("n").error().message, HasSubstr("-1"));
}

TEST(Directory, EveryTruncationIsAnErrorThatSaysWhere) {
  const auto file = small_model().bytes();
  for (std::size_t size = 0; size < file.size(); ++size) {
    const auto error = parse_error(std::span(file).first(size));
    EXPECT_THAT(error, HasSubstr("truncated")) << size;
  }
  EXPECT_EQ(parse_error(file), "");
  // The last byte missing: the tensor and the place inside it are named.
  EXPECT_THAT(parse_error(std::span(file).first(file.size() - 1)),
              HasSubstr("ends at byte 23 of tensor table"));
}

TEST(Directory, OtherFilesAndVersionsAreRefused) {
  const std::string text = "PK\x03\x04 this is a zip archive of some length";
  EXPECT_THAT(parse_error(std::as_bytes(std::span(text))), HasSubstr("not a GGUF file"));
  EXPECT_THAT(parse_error(patched(small_model().bytes(), 4, std::uint32_t{1})), HasSubstr("version 1"));
  EXPECT_THAT(parse_error(patched(small_model().bytes(), 4, std::uint32_t{0x03000000})),
              HasSubstr("version"));
}

TEST(Directory, AbsurdCountsAndLengthsNeitherCrashNorAllocate) {
  const auto file = small_model().bytes();
  for (const std::uint64_t absurd : {~std::uint64_t{0}, std::uint64_t{1} << 62, std::uint64_t{1} << 40}) {
    EXPECT_NE(parse_error(patched(file, 8, absurd)), "");                                   // tensor count
    EXPECT_NE(parse_error(patched(file, 16, absurd)), "");                                  // key count
    EXPECT_NE(parse_error(patched(file, 24, absurd)), "");                                  // length of a key
    EXPECT_NE(parse_error(patched(file, offset_of(file, "token_type") + 18, absurd)), "");  // array count
    EXPECT_NE(parse_error(patched(file, offset_of(file, "table") + 9, absurd)), "");        // dimension 0
    EXPECT_NE(parse_error(patched(file, offset_of(file, "table") + 9 + 20, absurd & ~31ULL)), "");  // offset
  }
}

TEST(Directory, NestedArraysUnknownTypesAndBadDimensionsAreNamed) {
  const auto file = small_model().bytes();
  const std::size_t element_type = offset_of(file, "token_type") + 14;
  EXPECT_THAT(parse_error(patched(file, element_type, std::uint32_t{9})), HasSubstr("token_type"));
  EXPECT_THAT(parse_error(patched(file, element_type, std::uint32_t{77})), HasSubstr("77"));
  const std::size_t dim_count = offset_of(file, "table") + 5;
  EXPECT_THAT(parse_error(patched(file, dim_count, std::uint32_t{0})), HasSubstr("0 dimensions"));
  EXPECT_THAT(parse_error(patched(file, dim_count, std::uint32_t{5})), HasSubstr("5 dimensions"));
  EXPECT_THAT(parse_error(patched(file, dim_count + 20, std::uint32_t{99})), HasSubstr("storage type 99"));
  EXPECT_THAT(parse_error(patched(file, dim_count + 20, std::uint32_t{8})), HasSubstr("multiple of 32"));
  EXPECT_THAT(parse_error(patched(file, dim_count + 24, std::uint64_t{33})), HasSubstr("multiple of 32"));
}

TEST(Directory, DuplicatesAndBadAlignmentAreRefused) {
  EXPECT_THAT(parse_error(Builder().add("a", 1U).add("a", 2U).bytes()), HasSubstr("appears twice"));
  const std::vector<float> one{1};
  EXPECT_THAT(parse_error(Builder().add_tensor("t", {1}, one).add_tensor("t", {1}, one).bytes()),
              HasSubstr("tensor t appears twice"));
  EXPECT_THAT(parse_error(Builder().add("general.alignment", 0U).bytes()), HasSubstr("alignment is 0"));
  EXPECT_THAT(parse_error(Builder().add("general.alignment", 48U).bytes()), HasSubstr("alignment is 48"));
}

RC_GTEST_PROP(Directory, FlippedBytesNeverReadOutside,
              (std::vector<std::pair<std::uint16_t, std::uint8_t>> flips)) {
  auto file = small_model().bytes();
  for (const auto& [at, value] : flips) file[at % file.size()] = static_cast<std::byte>(value);
  const auto directory = Directory::parse(file);
  if (!directory) return;
  for (const Tensor& tensor : directory->tensors()) {
    if (tensor.data.empty()) continue;
    RC_ASSERT(tensor.data.data() >= file.data());
    RC_ASSERT(tensor.data.data() + tensor.data.size() <= file.data() + file.size());
  }
}

}  // namespace
}  // namespace trimtab::gguf
