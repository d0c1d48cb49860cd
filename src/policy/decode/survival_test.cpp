#include "policy/decode/survival.h"

#include <gtest/gtest.h>

#include "base/prng.h"

namespace trimtab::policy {
namespace {

double survives(const SurvivalTable& table, std::int64_t age) {
  return static_cast<double>(table.survives(age)) / static_cast<double>(SurvivalTable::kOne);
}

/// One life of `length` tokens.
void live(SurvivalTable& table, std::int64_t length) {
  for (std::int64_t age = 0; age < length; ++age) table.streamed(age, 1);
  table.ended(length - 1);
}

TEST(Survival, SpansCoverAllAgesInOrder) {
  std::uint32_t last = SurvivalTable::span_of(0);
  EXPECT_EQ(last, 0u);
  for (std::int64_t age = 1; age < 100'000; ++age) {
    const std::uint32_t span = SurvivalTable::span_of(age);
    ASSERT_TRUE(span == last || span == last + 1) << age;
    last = span;
  }
  for (std::uint32_t span = 0; span <= 92; ++span)  // later ones are beyond all ages
    EXPECT_EQ(SurvivalTable::span_of(SurvivalTable::first_age(span)), span);
  EXPECT_EQ(SurvivalTable::span_of(7), 7u);
  EXPECT_EQ(SurvivalTable::span_of(8), 8u);
  EXPECT_EQ(SurvivalTable::span_of(9), 8u);
  EXPECT_EQ(SurvivalTable::span_of(10), 9u);
  EXPECT_LT(SurvivalTable::span_of(INT64_MAX), 96u);
  EXPECT_EQ(SurvivalTable::span_of(-5), 0u);
}

TEST(Survival, KnowsOnlyThePriorMeanAtFirst) {
  const SurvivalTable table(4, 300);
  EXPECT_EQ(table.mean_tokens(), 300);
  for (const std::int64_t age : {0, 5, 300, 100'000}) EXPECT_NEAR(survives(table, age), 0.98673, 1e-4) << age;
}

TEST(Survival, LearnsWhereLivesEnd) {
  SurvivalTable table(4, 300);
  base::Prng prng(3);
  // Half end within 10 tokens, half live to exactly 500.
  for (int i = 0; i < 4'096; ++i) live(table, prng.below(2) == 0 ? 1 + prng.below(10) : 500);
  // At age 0 a tenth of the half is gone by each token: 4 tokens lose 20 %.
  EXPECT_NEAR(survives(table, 0), 0.8, 0.03);
  EXPECT_GT(survives(table, 30), 0.99);
  EXPECT_GT(survives(table, 200), 0.99);
  EXPECT_LT(survives(table, 499), 0.97);
  EXPECT_TRUE(table.take_refreshed());
  EXPECT_FALSE(table.take_refreshed());
}

TEST(Survival, LivesThatStillRunCount) {
  // Kaplan-Meier: requests that have streamed 2,000 tokens and go on say that lives are long, though none of
  // them ended. Completed lives alone would say that all end by 20.
  SurvivalTable table(4, 300);
  for (int i = 0; i < 512; ++i) {
    for (std::int64_t age = 0; age < 2'000; ++age) table.streamed(age, 1);
    live(table, 20);
  }
  EXPECT_GT(survives(table, 1'000), 0.999);
  EXPECT_NEAR(survives(table, 18), 0.6, 0.15);  // the span 16 ... 19 has 512 ends in 4,096 tokens
}

TEST(Survival, ForgetsOldTraffic) {
  SurvivalTable table(4, 300);
  for (int i = 0; i < 16'384; ++i) live(table, 8);
  EXPECT_EQ(table.horizon_tokens(), 1);
  EXPECT_GT(survives(table, 6), 0.9);
  EXPECT_LT(survives(table, 7), 0.1);  // none lives longer than 8
  for (int i = 0; i < 6 * 16'384; ++i) live(table, 64);
  EXPECT_GT(survives(table, 7), 0.98);
  EXPECT_NEAR(static_cast<double>(table.mean_tokens()), 63, 3);
}

TEST(Survival, NeverLeavesItsRange) {
  SurvivalTable table(64, 1);
  for (int i = 0; i < 2'000; ++i) table.ended(0);
  for (const std::int64_t age : {0, 1, 50}) {
    EXPECT_GE(table.survives(age), 0);
    EXPECT_LE(table.survives(age), SurvivalTable::kOne);
  }
  EXPECT_GE(table.survives_any(), 0);
}

}  // namespace
}  // namespace trimtab::policy
