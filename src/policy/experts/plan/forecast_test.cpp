#include "policy/experts/plan/forecast.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/prng.h"

namespace trimtab::experts {
namespace {

/// One expert's counts, repeated for `experts` of them.
std::vector<float> forecast_of(const std::vector<std::int32_t>& counts, std::int32_t experts = 1) {
  std::vector<std::int32_t> loads;
  for (const std::int32_t count : counts) loads.insert(loads.end(), static_cast<std::size_t>(experts), count);
  return forecast_loads(
      LoadWindow::make(loads.data(), static_cast<std::int32_t>(counts.size()), experts, experts).value());
}

TEST(Forecast, SteadyCountsStay) {
  EXPECT_FLOAT_EQ(forecast_of(std::vector<std::int32_t>(40, 100))[0], 100);
  EXPECT_FLOAT_EQ(forecast_of(std::vector<std::int32_t>(40, 0))[0], 0);
  EXPECT_FLOAT_EQ(forecast_of({7})[0], 7);
}

TEST(Forecast, AJumpIsTakenAtOnce) {
  std::vector<std::int32_t> counts(39, 100);
  counts.push_back(330);
  EXPECT_FLOAT_EQ(forecast_of(counts)[0], 330);
  counts.assign(39, 330);
  counts.push_back(100);
  EXPECT_FLOAT_EQ(forecast_of(counts)[0], 100);
}

TEST(Forecast, ALastingShiftIsTakenFromItsFirstStep) {
  // 140 after 100 is under 4 deviations: no jump, but three in a row are a shift, and only they count from
  // then on.
  std::vector<std::int32_t> counts(37, 100);
  counts.insert(counts.end(), 3, 140);
  EXPECT_FLOAT_EQ(forecast_of(counts)[0], 140);
}

TEST(Forecast, BusyExpertsHaveShortMemories) {
  const auto answer = [](std::int32_t level) {
    std::vector<std::int32_t> counts(40, level);
    counts.back() = level + level / 50;  // 2 % up, inside the noise
    return (forecast_of(counts)[0] / static_cast<float>(level) - 1) / 0.02F;
  };
  EXPECT_GT(answer(5000), 0.6F);
  EXPECT_LT(answer(50), 0.3F);
}

TEST(Forecast, LongWindowsCountForTheirLength) {
  std::vector<std::int32_t> counts(512, 100);
  for (std::size_t step = 256; step < 512; ++step) counts[step] = 300;
  EXPECT_FLOAT_EQ(forecast_of(counts)[0], 0.25F * 300 + 0.75F * 200);
}

TEST(Forecast, EveryExpertOfATileIsTheSame) {
  const std::vector<float> all = forecast_of({30, 35, 28, 90, 95, 31}, 21);
  for (std::size_t expert = 1; expert < 21; ++expert) EXPECT_EQ(all[expert], all[0]);
}

}  // namespace
}  // namespace trimtab::experts
