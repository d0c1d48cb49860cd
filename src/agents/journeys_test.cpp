#include "agents/journeys.h"

#include <gtest/gtest.h>

namespace trimtab::agents {
namespace {

io::Entry named(std::uint64_t id, const std::string& name) {
  return {io::NameEntry{model::RequestId{id}, base::Nanos{}, 0, name}};
}
io::Entry token(std::uint64_t id, std::int32_t value) {
  io::TokenEntry entry;
  entry.request = model::RequestId{id};
  entry.token = value;
  return {entry};
}

TEST(Journeys, FindsByNameAndNumberAndKeepsTheOrder) {
  Journeys journeys(1 << 20);
  journeys.append(named(1, "a"));
  journeys.append(named(2, "b"));
  for (std::int32_t i = 0; i < 5; ++i) journeys.append(token(1, i));
  const auto found = journeys.find("a");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->name, "a");
  ASSERT_EQ(found->entries.size(), 6U);
  for (std::int32_t i = 0; i < 5; ++i)
    EXPECT_EQ(std::get<io::TokenEntry>(found->entries[static_cast<std::size_t>(i) + 1].body).token, i);
  EXPECT_EQ(journeys.find("2")->name, "b");
  EXPECT_FALSE(journeys.find("3"));
  EXPECT_FALSE(journeys.find("2x"));
  EXPECT_FALSE(journeys.find(""));
}

TEST(Journeys, TheClusterItselfIsNoRequest) {
  Journeys journeys(1 << 20);
  journeys.append(token(0, 1));
  EXPECT_EQ(journeys.requests(), 0U);
  EXPECT_EQ(journeys.bytes(), 0U);
}

TEST(Journeys, TheOldestGoWhenTheBytesAreUsedUp) {
  Journeys journeys(10'000);
  for (std::uint64_t id = 1; id <= 1000; ++id) {
    journeys.append(named(id, "name" + std::to_string(id)));
    for (std::int32_t i = 0; i < 3; ++i) journeys.append(token(id, i));
    ASSERT_LE(journeys.bytes(), 10'000U);
  }
  EXPECT_GT(journeys.requests(), 10U);
  EXPECT_TRUE(journeys.find("name1000"));
  EXPECT_FALSE(journeys.find("name1"));
  EXPECT_FALSE(journeys.find("1"));
}

TEST(Journeys, ANameThatIsTakenAgainLeadsToTheNewest) {
  Journeys journeys(1'050);
  journeys.append(named(1, "same"));
  journeys.append(named(2, "same"));
  EXPECT_EQ(journeys.find("same")->id.value, 2U);
  // Room for three: the first goes, and must not take the name of the second with it.
  journeys.append(named(3, "x"));
  journeys.append(named(4, "y"));
  ASSERT_FALSE(journeys.find("1"));
  ASSERT_TRUE(journeys.find("2"));
  EXPECT_EQ(journeys.find("same")->id.value, 2U);
}

}  // namespace
}  // namespace trimtab::agents
