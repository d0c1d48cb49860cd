#include "report/html.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "report/chart_frame.h"
#include "report/charts.h"

namespace trimtab::report {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

const std::string kHostile = "<script>alert(\"1\" & '2')</script>\x01\xff";
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(Html, TextNeverBecomesMarkup) {
  EXPECT_EQ(escaped("a<b>&\"'"), "a&lt;b&gt;&amp;&quot;&#39;");
  EXPECT_EQ(escaped("Käse \xE2\x82\xAC"), "Käse \xE2\x82\xAC");
  EXPECT_EQ(escaped("\xC3(\xE2\x82\x01"), "\xEF\xBF\xBD(\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(json_escaped("a\"\\\n<"), "&quot;a\\&quot;\\\\\\u000a&lt;&quot;");
}

TEST(Html, NoFieldOfAnyFigureLetsMarkupThrough) {
  HtmlPage page(kHostile, kHostile);
  Html all = paragraph(kHostile);
  all += remark(kHostile);
  all += heading(kHostile);
  all += folded(kHostile, paragraph("x"), true);
  all += table({{kHostile, Align::kLeft}}, {{{kHostile, {}}}});
  all += line_chart(
      {kHostile, kHostile, {0, 1, kHostile}, {{kHostile, {1, 2}}, {kHostile, {2, 3}}}, false, kHostile});
  all += heat_map(
      {kHostile, kHostile, {0, 1, kHostile}, {kHostile}, {{1, 0}}, kHostile, {kHostile, "b"}, {}, {}});
  all += heat_map({kHostile, kHostile, {}, {kHostile}, {{1}}, kHostile, {}, {kHostile}, {}});
  all += stacked_bars({kHostile, {kHostile}, {{kHostile, {1}}}, kHostile});
  all += value_bars({kHostile, kHostile, {{kHostile, 1, 2}}, 2, kHostile});
  page.section("all", kHostile, all);
  const std::string text = page.text();
  EXPECT_EQ(count(text, "<script"), 1U) << "our own";
  EXPECT_THAT(text, Not(HasSubstr("alert(\"1\"")));
  EXPECT_EQ(count(text, "\x01") + count(text, "\xff"), 0U);
}

TEST(Html, APageStandsAloneAndIsTheSameTwice) {
  const auto make = [] {
    HtmlPage page("Title", "what");
    page.section("one", "First", paragraph("text"));
    page.section("two", "Second", grid({line_chart({"L", "s", {}, {{"a", {1, 2, 3}}}, false, ""})}));
    return page.text();
  };
  const std::string text = make();
  EXPECT_EQ(text, make());
  EXPECT_THAT(text, HasSubstr("<a href=\"#two\">Second</a>"));
  EXPECT_THAT(text, HasSubstr("<section id=\"two\">"));
  for (const char* outside : {"http:", "https:", "src=", "@import", "url(", "<link"})
    EXPECT_THAT(text, Not(HasSubstr(outside)));
}

TEST(Html, TheBestOfAColumnIsMarkedOnlyWhereThereIsSomethingToCompare) {
  const std::vector<HtmlColumn> columns = {{"policy", Align::kLeft},
                                           {"p99", Align::kRight, Better::kLess},
                                           {"share", Align::kRight, Better::kMore}};
  const std::string two =
      table(columns, {{{"a", {}}, {"2.0", 2.0}, {"90", 90.0}}, {{"b", {}}, {"1.0", 1.0}, {"80", 80.0}}})
          .text();
  EXPECT_THAT(two, HasSubstr("<td class=\"best\">1.0</td>"));
  EXPECT_THAT(two, HasSubstr("<td class=\"best\">90</td>"));
  EXPECT_EQ(count(two, "best"), 2U);
  EXPECT_EQ(count(table(columns, {{{"a", {}}, {"2.0", 2.0}}}).text(), "best"), 0U);
  EXPECT_EQ(count(table(columns, {{{"a", {}}, {"2.0", 2.0}}, {{"b", {}}, {"-", {}}}}).text(), "best"), 0U);
}

TEST(Charts, TicksAreRoundAndInside) {
  EXPECT_THAT(ticks(0, 10, 5), ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_THAT(ticks(0, 0.037, 4), ElementsAre(0, 0.01, 0.02, 0.03));
  EXPECT_THAT(log_ticks(0.3, 7), ElementsAre(testing::DoubleEq(0.5), 1, 2, 5));
  EXPECT_THAT(log_ticks(0.02, 30), ElementsAre(testing::DoubleEq(0.1), 1, 10));
  for (const double high : {1e-9, 0.7, 3.0, 999.0, 1e12}) {
    const auto got = ticks(0, high, 5);
    EXPECT_GE(got.size(), 3U) << high;
    EXPECT_LE(got.size(), 7U) << high;
    EXPECT_LE(got.back(), high * (1 + 1e-9));
  }
  EXPECT_THAT(ticks(3, 3, 5), ElementsAre(3));
}

TEST(Charts, TimeReadsInTheUnitThatSuitsIt) {
  EXPECT_EQ(time_axis(1, 100).unit, "s");
  EXPECT_EQ(time_axis(4, 100).unit, "min");
  EXPECT_EQ(time_axis(128, 225).unit, "h");
  EXPECT_DOUBLE_EQ(time_axis(36, 1000).step, 0.01);
}

TEST(Charts, ALineBreaksWhereNothingWasMeasured) {
  LineChart chart{"t", "s", {}, {{"a", {1, 2, kNone, 3, 4}}}, false, ""};
  const std::string text = line_chart(chart).text();
  const std::size_t at = text.find("class=\"line");
  const std::string path = text.substr(at, text.find("/>", at) - at);
  EXPECT_EQ(count(path, "M"), 2U);
  EXPECT_EQ(count(path, "L"), 2U);
  EXPECT_THAT(text, HasSubstr("[1,2,null,3,4]")) << "and says so under the pointer";
  chart.series[0].values = {0, -1, 5, 50};
  chart.logarithmic = true;
  const std::string logs = line_chart(chart).text();
  EXPECT_EQ(count(logs.substr(logs.find("class=\"line")), "M"), 1U) << "what has no logarithm is a gap";
  chart.series[0].values = {kNone, kNone};
  EXPECT_THAT(line_chart(chart).text(), HasSubstr("nothing to show"));
}

TEST(Charts, MarksStandWhereSomethingHappenedAndTheirNamesAreText) {
  LineChart chart{"c", "s", {0, 1, "s"}, {{"a", {1, 2, 3, 4}}}, false, ""};
  chart.marks = {
      {1.0, "<b>first"}, {1.001, "the same to the eye"}, {3.0, "later"}, {4.5, "outside"}, {-1, "before"}};
  const std::string text = line_chart(chart).text();
  // The drawing area is 400 wide from 50 on, and has four columns.
  EXPECT_NE(text.find("<path class=\"mark\" d=\"M150.0 10V220\"><title>&lt;b&gt;first</title>"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("M350.0 10V220\"><title>later"), std::string::npos);
  for (const char* absent : {"the same to the eye", "outside", "before"})
    EXPECT_EQ(text.find(absent), std::string::npos) << absent;
}

TEST(Charts, HeatIsRelativeToTheHottestCell) {
  const std::string text =
      heat_map({"t", "x", {}, {"r0", "r1"}, {{0, 5, 10}, {10, kNone, 0}}, "", {}, {}, {}}).text();
  EXPECT_EQ(count(text, "<path class=\"h0\""), 1U);
  EXPECT_EQ(count(text, "<path class=\"h5\""), 1U);
  EXPECT_EQ(count(text, "<path class=\"h9\""), 1U);
  EXPECT_EQ(count(text.substr(text.find("<path class=\"h9\"")), "M"), 2U + 1U) << "two cells, and the axis";
}

TEST(Charts, ManyRowsBecomeRanksByLoadAndManyColumnsMeans) {
  HeatMap map{"t", "x", {0, 1, "s"}, {}, {}, "", {}, {}, {}};
  for (std::size_t r = 0; r < 300; ++r) {
    map.rows.push_back("rank " + std::to_string(r));
    map.values.emplace_back(200, static_cast<double>(r));
  }
  const std::string text = heat_map(map, 64).text();
  EXPECT_THAT(text, HasSubstr("300 rows are shown as 64"));
  EXPECT_THAT(text, HasSubstr("1 busiest of 300"));
  EXPECT_THAT(text, HasSubstr("&quot;columns&quot;:100,&quot;first&quot;:0,&quot;step&quot;:2"));
  EXPECT_LT(text.size(), 100'000U);
}

TEST(Charts, BarsAreSharesOfTheirWhole) {
  const std::string text = stacked_bars({"loss", {"ideal", "wait", "none"}, {{"a", {3, 1, 0}}}, ""}).text();
  EXPECT_THAT(text, HasSubstr("width:75.000%"));
  EXPECT_THAT(text, HasSubstr("title=\"wait: 25.00 %\""));
  EXPECT_EQ(count(text, "<span"), 2U);
  EXPECT_THAT(text, HasSubstr("<em>75.0 %</em>"));
  EXPECT_THAT(stacked_bars({"loss", {"ideal"}, {{"a", {0}}}, ""}).text(), HasSubstr("<em>0.0 %</em>"));
  const std::string bars = value_bars({"b", "x", {{"r", 1.0, 2.0}, {"s", 0.5, 0.5}}, 1, ""}).text();
  EXPECT_THAT(bars, HasSubstr("1.0 (was 2.0)"));
  EXPECT_THAT(bars, HasSubstr("class=\"was\" style=\"width:100.000%\""));
}

}  // namespace
}  // namespace trimtab::report
