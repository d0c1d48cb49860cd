#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <array>

#include "base/codec.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/nearest.h"
#include "base/ring.h"
#include "base/units.h"

namespace trimtab::base {
namespace {

struct Inner {
  std::string text;
  std::optional<std::int32_t> maybe;
  template <class A>
  void visit(A& a) {
    a(text, maybe);
  }
};
struct Outer {
  std::uint64_t number = 0;
  Nanos span;
  std::vector<Inner> inners;
  std::vector<std::int32_t> ids;
  template <class A>
  void visit(A& a) {
    a(number, span, inners, ids);
  }
};

RC_GTEST_PROP(Codec, RoundTrips,
              (std::uint64_t number, std::vector<std::string> texts, std::vector<std::int32_t> ids)) {
  Outer outer{number, Nanos{-5}, {}, ids};
  for (const std::string& text : texts)
    outer.inners.push_back({text, text.size() % 2 ? std::optional<int>{7} : std::nullopt});
  const auto back = decode<Outer>(encode(outer));
  RC_ASSERT(back.has_value());
  RC_ASSERT(back->number == number && back->span == Nanos{-5} && back->ids == ids);
  RC_ASSERT(back->inners.size() == texts.size());
  for (std::size_t i = 0; i < texts.size(); ++i) {
    RC_ASSERT(back->inners[i].text == texts[i]);
    RC_ASSERT(back->inners[i].maybe.has_value() == (texts[i].size() % 2 == 1));
  }
}

RC_GTEST_PROP(Codec, AnyCutIsAnErrorAndNeverACrash, (std::vector<std::string> texts)) {
  Outer outer;
  for (const std::string& text : texts) outer.inners.push_back({text, 1});
  const std::vector<std::byte> bytes = encode(outer);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    RC_ASSERT(!decode<Outer>(std::span{bytes}.first(size)).has_value());
  }
}

TEST(Codec, AHugeLengthIsRefusedBeforeMemoryIsTaken) {
  Writer writer;
  writer(std::uint64_t{1}, std::int64_t{2}, std::uint64_t{1} << 60);
  EXPECT_FALSE(decode<Outer>(writer.take()).has_value());
}

TEST(Error, EveryCodeHasANameAndAStatus) {
  for (int code = 0; code <= static_cast<int>(Code::kInternal); ++code) {
    EXPECT_FALSE(name(static_cast<Code>(code)).empty());
    EXPECT_GE(http_status(static_cast<Code>(code)), 400);
  }
  EXPECT_EQ(to_string(Error{Code::kNotFound, "no model 'x'", "gateway"}),
            "not_found: no model 'x' (gateway)");
}

TEST(Nearest, FindsTyposAndRefusesStrangers) {
  constexpr std::array<std::string_view, 3> kWords = {"engines", "ranks", "tier_bounds_tokens"};
  EXPECT_EQ(nearest("engine", kWords), "engines");
  EXPECT_EQ(nearest("tier_bound_token", kWords), "tier_bounds_tokens");
  EXPECT_EQ(nearest("zzzzzzzzzzzz", kWords), "");
}

TEST(Ring, KeepsOrderAndItsLimit) {
  Ring<int> ring(2);
  EXPECT_TRUE(ring.push(1));
  EXPECT_TRUE(ring.push(2));
  EXPECT_FALSE(ring.push(3));
  ring.push_dropping(3);
  EXPECT_EQ(ring[0], 2);
  EXPECT_EQ(ring.pop(), 2);
  EXPECT_EQ(ring.pop(), 3);
  EXPECT_TRUE(ring.empty());
}

TEST(Units, SameUnitsAddAndCompare) {
  EXPECT_EQ(2_ms + 500_us, Nanos{2'500'000});
  EXPECT_LT(1_s, kForever);
  EXPECT_EQ((10_ms) / (3_ms), 3);
}

TEST(Hash, ChecksumSeesEveryByte) {
  EXPECT_NE(checksum("abc"), checksum("abd"));
  EXPECT_NE(checksum("abc", 1), checksum("abc", 2));
  EXPECT_NE(mix(mix(0, 1), 2), mix(mix(0, 2), 1));
}

}  // namespace
}  // namespace trimtab::base
