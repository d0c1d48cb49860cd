#include "config/strict_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trimtab::config {
namespace {

using ::testing::HasSubstr;

StrictTable parsed(std::string_view text) {
  auto table = StrictTable::parse(text, "test.toml");
  EXPECT_TRUE(table) << base::to_string(table.error());
  return std::move(*table);
}

TEST(StrictTable, ReadsEveryTypeAndKeepsDefaults) {
  auto root = parsed(
      "name = 'a'\nport = 80\nrate = 2\nflag = true\nbounds = [1, 2]\nwords = ['x']\n"
      "[sub]\nkey = 7\n[[row]]\nid = 1\n[[row]]\nid = 2\n");
  std::string name;
  std::uint16_t port = 0;
  double rate = 0;
  bool flag = false;
  std::vector<std::int64_t> bounds;
  std::vector<std::string> words;
  std::int64_t key = 0, absent = 5;
  root.require("name", name);
  root.read("port", port);
  root.read("rate", rate);
  root.read("flag", flag);
  root.read("bounds", bounds);
  root.read("words", words);
  root.read("absent", absent);
  root.table("sub").require("key", key, 0, 10);
  root.table("other").read("nothing", absent);
  std::vector<int> ids;
  for (auto& row : root.tables("row")) row.require("id", ids.emplace_back());
  ASSERT_TRUE(root.finish()) << base::to_string(root.finish().error());
  EXPECT_EQ(name, "a");
  EXPECT_EQ(port, 80);
  EXPECT_EQ(rate, 2.0);
  EXPECT_TRUE(flag);
  EXPECT_EQ(bounds, (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(words, std::vector<std::string>{"x"});
  EXPECT_EQ(key, 7);
  EXPECT_EQ(absent, 5);
  EXPECT_EQ(ids, (std::vector<int>{1, 2}));
}

TEST(StrictTable, UnknownKeyIsNamedWithItsNearestAndLine) {
  auto root = parsed("[gateway]\nprot = 80\n");
  std::int64_t port = 0;
  auto gateway = root.table("gateway");
  gateway.read("port", port);
  gateway.read("host", port);
  const auto status = root.finish();
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().origin, "test.toml:2");
  EXPECT_EQ(status.error().message, "unknown key 'gateway.prot'; did you mean 'gateway.port'?");
}

TEST(StrictTable, TheFirstUnknownLineIsReported) {
  auto root = parsed("zebra = 1\nant = 2\n");
  EXPECT_EQ(root.finish().error().origin, "test.toml:1");
  EXPECT_THAT(root.finish().error().message, HasSubstr("zebra"));
}

TEST(StrictTable, UnknownKeyInsideAnArrayOfTables) {
  auto root = parsed("[[row]]\nid = 1\n[[row]]\nidd = 2\n");
  std::int64_t id = 0;
  for (auto& row : root.tables("row")) row.read("id", id);
  EXPECT_EQ(root.finish().error().message, "unknown key 'row.idd'; did you mean 'row.id'?");
}

TEST(StrictTable, WrongTypeSaysBoth) {
  auto root = parsed("port = 'eighty'\n");
  std::uint16_t port = 1;
  root.read("port", port);
  EXPECT_EQ(port, 1);
  EXPECT_EQ(root.finish().error().message, "port: string where integer is expected");
  auto nested = parsed("gateway = 3\n");
  nested.table("gateway").read("port", port);
  EXPECT_EQ(nested.finish().error().message, "gateway: integer where table is expected");
}

TEST(StrictTable, RangesFollowTheOutputType) {
  std::uint16_t port = 1;
  auto large = parsed("port = 65536\n");
  large.read("port", port);
  EXPECT_EQ(large.finish().error().message, "port: 65536 is outside [0, 65535]");
  auto zero = parsed("\n\nport = 0\n");
  zero.read("port", port, 1, 65535);
  EXPECT_EQ(zero.finish().error().origin, "test.toml:3");
  double share = 0;
  auto nan = parsed("share = nan\n");
  nan.read("share", share, 0.0, 1.0);
  EXPECT_FALSE(nan.finish());
}

TEST(StrictTable, TheFirstFaultWins) {
  auto root = parsed("a = 'x'\nb = 'y'\nc = 1\n");
  std::int64_t value = 9;
  root.read("a", value);
  root.read("b", value);
  root.read("c", value);
  EXPECT_EQ(value, 9) << "after a fault nothing is read any more";
  EXPECT_THAT(root.finish().error().message, HasSubstr("a:"));
}

TEST(StrictTable, MissingKeyChoiceAndReject) {
  std::string name;
  auto missing = parsed("[model]\nx = 1\n");
  missing.table("model").require("name", name);
  EXPECT_EQ(missing.finish().error().message, "model.name: this key is required and missing");

  std::size_t order = 0;
  auto choice = parsed("order = 'fifoo'\n");
  choice.read_choice("order", order, {"fifo", "edf"});
  EXPECT_EQ(choice.finish().error().message, "order: 'fifoo' is not one of fifo, edf; did you mean 'fifo'?");
  auto right = parsed("order = 'edf'\n");
  right.read_choice("order", order, {"fifo", "edf"});
  ASSERT_TRUE(right.finish());
  EXPECT_EQ(order, 1U);

  auto clash = parsed("port = 80\n");
  clash.reject("port", "80 is taken");
  EXPECT_EQ(clash.finish().error().message, "port: 80 is taken");
}

TEST(StrictTable, BadTextNamesItsLine) {
  const auto broken = StrictTable::parse("a = 1\nb = = 2\n", "test.toml");
  ASSERT_FALSE(broken);
  EXPECT_EQ(broken.error().origin, "test.toml:2");
  EXPECT_FALSE(StrictTable::parse("[:x]\n", "t")) << "toml++ 3.3 would abort here";
  const auto stray =
      StrictTable::parse("a = \"\xc3\xa9\\\"\" # \xc3\xa9\nb = '''\n\xc3\xa9\n'''\n\xc3\xa9 = 1\n", "t");
  ASSERT_FALSE(stray);
  EXPECT_EQ(stray.error().origin, "t:5");
  EXPECT_FALSE(StrictTable::parse(std::string(5000, '#'), "t"));
  EXPECT_FALSE(StrictTable::parse(std::string(300 << 10, '\n'), "t"));
  std::string deep = "[a";
  for (int i = 0; i < 100; ++i) deep += ".a";
  EXPECT_FALSE(StrictTable::parse(deep + "]\n", "t"));
  EXPECT_EQ(StrictTable::parse_file("no/such/file.toml").error().code, base::Code::kNotFound);
}

TEST(StrictTable, StringsMayHoldAnyCharacter) {
  auto table = StrictTable::parse(
      "path = \"/home/\u00e9t\u00e9/\u7528\u6237\" # \u6ce8\u91ca ~u\nliteral = '~u\u4f60'\n", "t.toml");
  ASSERT_TRUE(table.has_value()) << to_string(table.error());
  std::string path, literal;
  table->read("path", path);
  table->read("literal", literal);
  EXPECT_TRUE(table->finish().has_value());
  EXPECT_EQ(path, "/home/\u00e9t\u00e9/\u7528\u6237");
  EXPECT_EQ(literal, "~u\u4f60");
}

// Inputs on which the parser below ran into its own unreachable statements.
TEST(StrictTable, CharactersThatTheParserCannotStand) {
  EXPECT_FALSE(StrictTable::parse("z=2'''\xcf\x92%.''", "t.toml").has_value());
  EXPECT_FALSE(StrictTable::parse("z=-.:\"_=\xef\xbb\xb9", "t.toml").has_value());
}

}  // namespace
}  // namespace trimtab::config
