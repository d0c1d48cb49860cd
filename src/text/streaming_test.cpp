#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>
#include <unistd.h>

#include <cstdio>

#include "text/incremental_detokenizer.h"
#include "text/small_model.h"
#include "text/stop_matcher.h"
#include "text/utf8.h"

namespace trimtab::text {
namespace {

using testing::HasSubstr;

const Tokenizer& tokenizer() {
  static const Tokenizer loaded = [] {
    const std::string path = testing::TempDir() + "streaming_test_" + std::to_string(getpid()) + ".gguf";
    EXPECT_TRUE(small_model().write(path));
    auto made = Tokenizer::load(*gguf::GgufFile::open(path));
    std::remove(path.c_str());
    return std::move(*made);
  }();
  return loaded;
}

TokenId byte_token(unsigned char byte) { return 3 + byte; }

TEST(IncrementalDetokenizer, HoldsACharacterUntilItIsWhole) {
  IncrementalDetokenizer stream(tokenizer());
  const std::string face = "\xF0\x9F\x98\x80";
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_EQ(stream.push(byte_token(static_cast<unsigned char>(face[i]))), "");
  EXPECT_EQ(stream.push(byte_token(0x80)), face);
  EXPECT_EQ(stream.flush(), "");
}

TEST(IncrementalDetokenizer, BrokenBytesBecomeMarksAsSoonAsTheyAreCertain) {
  IncrementalDetokenizer stream(tokenizer());
  EXPECT_EQ(stream.push(byte_token(0xE2)), "");
  EXPECT_EQ(stream.push(byte_token(0x82)), "");
  EXPECT_EQ(stream.push(byte_token('x')), std::string(kReplacement) + "x");
  EXPECT_EQ(stream.push(byte_token(0xFF)), kReplacement);
  EXPECT_EQ(stream.push(byte_token(0xC3)), "");
  EXPECT_EQ(stream.flush(), kReplacement);
  EXPECT_EQ(stream.flush(), "");
}

TEST(IncrementalDetokenizer, SpecialTokensAndUnknownIdsYieldNothing) {
  IncrementalDetokenizer stream(tokenizer());
  EXPECT_EQ(stream.push(byte_token(0xC3)), "");
  EXPECT_EQ(stream.push(2), "");
  EXPECT_EQ(stream.push(-7), "");
  EXPECT_EQ(stream.push(byte_token(0xA9)), "\xC3\xA9");
}

RC_GTEST_PROP(IncrementalDetokenizer, PiecesAreValidAndSumToTheWhole, (std::string bytes)) {
  IncrementalDetokenizer stream(tokenizer());
  std::string all;
  for (const char byte : bytes) {
    const std::string piece = stream.push(byte_token(static_cast<unsigned char>(byte)));
    RC_ASSERT(valid_utf8_prefix(piece) == piece.size());
    all += piece;
  }
  all += stream.flush();
  RC_ASSERT(all == repair_utf8(bytes));
}

StopMatcher matcher(std::vector<std::string> sequences) { return *StopMatcher::create(std::move(sequences)); }

TEST(StopMatcher, ShowsNothingOfAStopSequence) {
  auto stop = matcher({"</tool>"});
  EXPECT_EQ(stop.push("text <").text, "text ");
  EXPECT_EQ(stop.push("/to").text, "");
  const auto end = stop.push("ol> more");
  EXPECT_EQ(end.text, "");
  EXPECT_EQ(end.matched, 0U);
  EXPECT_EQ(stop.push("after").text, "");
  EXPECT_EQ(stop.flush(), "");
  EXPECT_EQ(stop.shown_bytes(), 5U);
}

TEST(StopMatcher, LetsGoOfWhatIsNoStopAfterAll) {
  auto stop = matcher({"aab"});
  EXPECT_EQ(stop.push("aa").text, "");
  EXPECT_EQ(stop.push("a").text, "a");  // the last two may still begin one
  EXPECT_EQ(stop.push("c").text, "aac");
  EXPECT_EQ(stop.push("aa").text, "");
  EXPECT_EQ(stop.flush(), "aa");
}

TEST(StopMatcher, TheFirstEndWinsAndTheLongestOfThese) {
  auto stop = matcher({"b", "ab", "abcd"});
  const auto out = stop.push("xabcd");
  EXPECT_EQ(out.text, "x");
  EXPECT_EQ(out.matched, 1U);
}

TEST(StopMatcher, WithoutSequencesEverythingPasses) {
  auto stop = matcher({});
  EXPECT_EQ(stop.push("abc").text, "abc");
}

TEST(StopMatcher, BadSequencesAreRefused) {
  EXPECT_THAT(StopMatcher::create({""}).error().message, HasSubstr("0 bytes"));
  EXPECT_FALSE(StopMatcher::create({std::string(1'025, 'x')}));
  EXPECT_FALSE(StopMatcher::create(std::vector<std::string>(17, "x")));
}

/// Where the definition says the answer ends: the first end of any sequence; the longest of those.
std::pair<std::string, bool> cut_by_definition(const std::string& text,
                                               const std::vector<std::string>& sequences) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::size_t longest = 0;
    for (const auto& sequence : sequences) {
      if (sequence.size() <= end && text.compare(end - sequence.size(), sequence.size(), sequence) == 0) {
        longest = std::max(longest, sequence.size());
      }
    }
    if (longest > 0) return {text.substr(0, end - longest), true};
  }
  return {text, false};
}

RC_GTEST_PROP(StopMatcher, EqualsTheDefinitionHoweverTheTextIsCut, ()) {
  const auto letter = rc::gen::elementOf(std::string("ab"));
  const auto text = *rc::gen::container<std::string>(letter);
  const auto sequences = *rc::gen::resize(5, rc::gen::container<std::vector<std::string>>(
                                                 rc::gen::nonEmpty(rc::gen::container<std::string>(letter))));
  auto stop = matcher(sequences);
  std::string shown;
  bool matched = false;
  for (std::size_t at = 0; at < text.size();) {
    const auto size = *rc::gen::inRange<std::size_t>(1, 5);
    const auto out = stop.push(text.substr(at, size));
    shown += out.text;
    matched = matched || out.matched.has_value();
    at += size;
  }
  shown += stop.flush();
  RC_ASSERT((std::pair{shown, matched}) == cut_by_definition(text, sequences));
}

}  // namespace
}  // namespace trimtab::text
