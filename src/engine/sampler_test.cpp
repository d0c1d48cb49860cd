#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <vector>

namespace trimtab::engine {
namespace {

TEST(Sampler, GreedyTakesTheLargestAndTheSmallerIdOfEquals) {
  const std::vector<float> logits = {0.5F, 2.0F, -1.0F, 2.0F};
  EXPECT_EQ(sample(logits, {}, 7), 1);
  EXPECT_EQ(sample(logits, {-1.0F, 1.0F, 3}, 7), 1);
}

TEST(Sampler, DrawsByProbability) {
  const std::vector<float> logits = {std::log(0.5F), std::log(0.3F), std::log(0.2F)};
  std::array<int, 3> seen{};
  constexpr int kDraws = 20'000;
  for (int i = 0; i < kDraws; ++i)
    ++seen[static_cast<std::size_t>(sample(logits, {1.0F, 1.0F, 9}, static_cast<std::uint64_t>(i)))];
  // Five standard deviations of a binomial.
  EXPECT_NEAR(seen[0], kDraws * 0.5, 354);
  EXPECT_NEAR(seen[1], kDraws * 0.3, 324);
  EXPECT_NEAR(seen[2], kDraws * 0.2, 283);
}

TEST(Sampler, TheNucleusIsTheFewestTokensThatReachTopP) {
  const std::vector<float> logits = {std::log(0.2F), std::log(0.5F), std::log(0.3F)};
  std::array<int, 3> seen{};
  for (std::uint64_t i = 0; i < 2000; ++i)
    ++seen[static_cast<std::size_t>(sample(logits, {1.0F, 0.7F, 4}, i))];
  EXPECT_EQ(seen[0], 0);
  EXPECT_GT(seen[1], 1100);
  EXPECT_GT(seen[2], 600);
  for (std::uint64_t i = 0; i < 200; ++i) EXPECT_EQ(sample(logits, {5.0F, 0.0F, 4}, i), 1);
}

TEST(Sampler, ColdIsSharpAndHotIsFlat) {
  const std::vector<float> logits = {1.0F, 0.0F};
  int cold = 0, hot = 0;
  for (std::uint64_t i = 0; i < 4000; ++i) {
    cold += sample(logits, {0.1F, 1.0F, 1}, i);
    hot += sample(logits, {100.0F, 1.0F, 1}, i);
  }
  EXPECT_LT(cold, 4);
  EXPECT_NEAR(hot, 1990, 160);
}

TEST(Sampler, ADrawIsAFunctionOfSeedAndPosition) {
  std::vector<float> logits(500);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i % 17) * 0.1F;
  int other_seed = 0, other_position = 0;
  for (std::uint64_t p = 0; p < 100; ++p) {
    const auto token = sample(logits, {1.0F, 0.95F, 11}, p);
    EXPECT_EQ(sample(logits, {1.0F, 0.95F, 11}, p), token);
    other_seed += sample(logits, {1.0F, 0.95F, 12}, p) == token;
    other_position += sample(logits, {1.0F, 0.95F, 11}, p + 1) == token;
  }
  EXPECT_LT(other_seed, 20);
  EXPECT_LT(other_position, 20);
}

}  // namespace
}  // namespace trimtab::engine
