#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>

#include "report/bars.h"
#include "report/table.h"

namespace trimtab::report {
namespace {

Style with(std::map<std::string, std::string> variables, bool is_tty = true, int width = 80) {
  return style_of([&](const char* name) { return variables[name]; }, is_tty, width);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> out;
  std::size_t at = 0;
  for (std::size_t end; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
    out.push_back(text.substr(at, end - at));
  }
  return out;
}

TEST(Style, FollowsTheEnvironment) {
  EXPECT_TRUE(with({{"LANG", "en_US.UTF-8"}}).utf8);
  EXPECT_TRUE(with({{"LANG", "C.utf8"}}).utf8);
  EXPECT_FALSE(with({{"LANG", "C"}}).utf8);
  EXPECT_FALSE(with({}).utf8);
  EXPECT_FALSE(with({{"LC_ALL", "POSIX"}, {"LANG", "en_US.UTF-8"}}).utf8) << "LC_ALL wins over LANG";
  EXPECT_TRUE(with({{"TERM", "xterm"}}).colour);
  EXPECT_FALSE(with({{"TERM", "xterm"}, {"NO_COLOR", "1"}}).colour);
  EXPECT_FALSE(with({{"TERM", "dumb"}}).colour);
  EXPECT_FALSE(with({{"TERM", "xterm"}}, false).colour);
  EXPECT_EQ(with({}).width, 80);
  EXPECT_EQ(with({{"COLUMNS", "132"}}).width, 132);
  EXPECT_EQ(with({{"COLUMNS", "many"}}).width, 80);
  EXPECT_EQ(with({}, false, 0).width, 100);
  EXPECT_EQ(with({{"COLUMNS", "3"}}).width, 40);
}

TEST(Style, WidthCountsCharactersNotBytes) {
  EXPECT_EQ(display_width("abc"), 3U);
  EXPECT_EQ(display_width("größe"), 5U);
  EXPECT_EQ(display_width("e\xCC\x81t"), 2U) << "a combining accent takes no column";
  EXPECT_EQ(display_width("\x1b[1mab\x1b[0m"), 2U);
  const Style ascii{80, false, false}, utf8{80, true, false};
  EXPECT_EQ(shortened("abcdefgh", 5, ascii), "ab...");
  EXPECT_EQ(shortened("größeres", 5, utf8), "größ…");
  EXPECT_EQ(shortened("abc", 3, utf8), "abc");
}

TEST(Table, AlignsAndShrinksTextOnly) {
  Table table({{"layer", Align::kRight}, {"what", Align::kLeft}, {"balance", Align::kRight}});
  table.add_row({"3", "a text that is far too long for this terminal, and goes on", "1.2345"});
  table.add_rule();
  table.add_row({"12", "short", "1.0"});
  const auto lines = lines_of(table.text({40, true, false}));
  ASSERT_EQ(lines.size(), 5U);
  for (const auto& line : lines) EXPECT_LE(display_width(line), 40U) << line;
  EXPECT_NE(lines[2].find("1.2345"), std::string::npos) << "numbers stay whole";
  EXPECT_NE(lines[2].find("…"), std::string::npos);
  EXPECT_EQ(display_width(lines[2]), display_width(lines[4]));
  EXPECT_EQ(lines[4].find("12"), 3U) << "right-aligned under the title";
}

TEST(Bars, LengthIsTheValue) {
  const Style ascii{60, false, false};
  const auto lines =
      lines_of(bar_chart({{"rank 0", 1.0, {}}, {"rank 1", 0.5, {}}, {"rank 2", 0, {}}}, {}, ascii));
  ASSERT_EQ(lines.size(), 3U);
  const auto full = std::count(lines[0].begin(), lines[0].end(), '#');
  EXPECT_GT(full, 20);
  EXPECT_NEAR(static_cast<double>(std::count(lines[1].begin(), lines[1].end(), '#')), full / 2.0, 1);
  EXPECT_EQ(std::count(lines[2].begin(), lines[2].end(), '#'), 0);
  EXPECT_NE(lines[1].find("0.50"), std::string::npos);
}

TEST(Bars, ShowsWhatWasBefore) {
  const Style ascii{60, false, false};
  const std::string text = bar_chart({{"rank 0", 1.0, 1.5}}, {.reference = 1.0}, ascii);
  EXPECT_NE(text.find("(was 1.50)"), std::string::npos) << text;
  EXPECT_NE(text.find("#."), std::string::npos) << "the part that is gone is dotted: " << text;
}

TEST(Bars, ManyRanksBecomeColumns) {
  std::vector<Bar> bars;
  for (int rank = 0; rank < 320; ++rank)
    bars.push_back({"rank " + std::to_string(rank), rank == 17 ? 3.0 : 1.0, {}});
  const auto lines = lines_of(bar_chart(bars, {.reference = 1.0}, {80, true, false}));
  ASSERT_EQ(lines.size(), 9U);
  for (const auto& line : lines) EXPECT_LE(display_width(line), 80U);
  EXPECT_NE(lines[0].find("█"), std::string::npos) << "the hot rank is seen even where columns hold several";
  EXPECT_NE(lines[8].find("rank 0 to rank 319, a column is the busiest of"), std::string::npos) << lines[8];
}

RC_GTEST_PROP(Bars, NeverWiderThanTheTerminal, (bool utf8)) {
  const int width = *rc::gen::inRange(40, 200);
  const auto values = *rc::gen::container<std::vector<int>>(rc::gen::inRange(0, 5'000));
  std::vector<Bar> bars;
  for (const int value : values)
    bars.push_back({"rank " + std::to_string(bars.size()), value / 1e3, value / 7e2});
  for (const auto& line : lines_of(bar_chart(bars, {.reference = 1.0}, {width, utf8, false}))) {
    RC_ASSERT(display_width(line) <= static_cast<std::size_t>(width));
    if (!utf8) RC_ASSERT(std::all_of(line.begin(), line.end(), [](char c) { return c >= ' ' && c <= '~'; }));
  }
}

TEST(Bars, NonFiniteIsZero) {
  const std::string text =
      bar_chart({{"a", std::nan(""), {}}, {"b", -3, {}}, {"c", 2, {}}}, {}, {60, false, false});
  const auto lines = lines_of(text);
  EXPECT_EQ(std::count(lines[0].begin(), lines[0].end(), '#'), 0);
  EXPECT_EQ(std::count(lines[1].begin(), lines[1].end(), '#'), 0);
}

TEST(Sparkline, HeightsRise) {
  EXPECT_EQ(sparkline({0, 0.5, 1}, 1, {80, false, false}), "_+@");
  EXPECT_EQ(sparkline({0, 1}, 1, {80, true, false}), "▁█");
}

}  // namespace
}  // namespace trimtab::report
