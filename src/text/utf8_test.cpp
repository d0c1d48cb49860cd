#include "text/utf8.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstdint>

namespace trimtab::text {
namespace {

const std::string kMark(kReplacement);

std::string encode(std::uint32_t code_point) {
  std::string text;
  if (code_point < 0x80) {
    text += static_cast<char>(code_point);
  } else if (code_point < 0x800) {
    text += static_cast<char>(0xC0 | code_point >> 6);
    text += static_cast<char>(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    text += static_cast<char>(0xE0 | code_point >> 12);
    text += static_cast<char>(0x80 | (code_point >> 6 & 0x3F));
    text += static_cast<char>(0x80 | (code_point & 0x3F));
  } else {
    text += static_cast<char>(0xF0 | code_point >> 18);
    text += static_cast<char>(0x80 | (code_point >> 12 & 0x3F));
    text += static_cast<char>(0x80 | (code_point >> 6 & 0x3F));
    text += static_cast<char>(0x80 | (code_point & 0x3F));
  }
  return text;
}

TEST(Utf8, EveryScalarValueIsOneCharacterAndEverySurrogateIsBroken) {
  for (std::uint32_t code_point = 0; code_point < 0x110000; ++code_point) {
    const std::string text = encode(code_point);
    const bool surrogate = code_point >= 0xD800 && code_point < 0xE000;
    const Utf8Step step = utf8_step(text, 0);
    ASSERT_EQ(step.kind == Utf8Step::Kind::kCharacter, !surrogate) << code_point;
    ASSERT_EQ(valid_utf8_prefix(text), surrogate ? 0 : text.size()) << code_point;
    if (!surrogate) {
      ASSERT_EQ(step.length, text.size());
    }
  }
}

TEST(Utf8, OverlongFormsAndTooLargeValuesAreBroken) {
  for (const std::string text : {"\xC0\x80", "\xC1\xBF", "\xE0\x80\x80", "\xE0\x9F\xBF", "\xF0\x8F\xBF\xBF",
                                 "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "\x80"}) {
    EXPECT_EQ(utf8_step(text, 0).kind, Utf8Step::Kind::kBroken);
    EXPECT_EQ(valid_utf8_prefix(text), 0U);
  }
}

TEST(Utf8, TheTwoRulesDifferInHowTheyCountBrokenParts) {
  // The standard's own example (table 3-8): one mark per maximal part that could have begun a character.
  const std::string text =
      "a\xF1\x80\x80\xE1\x80\xC2"
      "b\x80"
      "c\x80\xBF"
      "d";
  EXPECT_EQ(repair_utf8(text), "a" + kMark + kMark + kMark + "b" + kMark + "c" + kMark + kMark + "d");
  std::string per_byte = "a";
  for (int i = 0; i < 6; ++i) per_byte += kMark;
  EXPECT_EQ(replace_broken_bytes(text), per_byte + "b" + kMark + "c" + kMark + kMark + "d");
}

TEST(Utf8, UnfinishedIsOnlyWhatFurtherBytesCouldComplete) {
  const std::string face = "\xF0\x9F\x98\x80";
  for (std::size_t size = 1; size < 4; ++size) {
    EXPECT_EQ(utf8_step(face.substr(0, size), 0).kind, Utf8Step::Kind::kUnfinished);
    EXPECT_EQ(utf8_step(face.substr(0, size), 0).length, size);
  }
  EXPECT_EQ(utf8_step("\xF0\x80", 0).kind, Utf8Step::Kind::kBroken);
}

RC_GTEST_PROP(Utf8, RepairedTextIsValidAndValidTextIsUntouched, (std::string bytes)) {
  const std::string repaired = repair_utf8(bytes);
  RC_ASSERT(valid_utf8_prefix(repaired) == repaired.size());
  RC_ASSERT(repair_utf8(repaired) == repaired);
  RC_ASSERT(replace_broken_bytes(repaired) == repaired);
  const std::string replaced = replace_broken_bytes(bytes);
  RC_ASSERT(valid_utf8_prefix(replaced) == replaced.size());
}

}  // namespace
}  // namespace trimtab::text
