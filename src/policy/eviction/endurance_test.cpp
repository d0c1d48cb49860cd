#include "policy/eviction/endurance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace trimtab::eviction {
namespace {

Endurance pool() {
  Endurance pool;
  pool.device_bytes = 30.72e12;
  pool.devices = 20;
  pool.nodes = 64;
  pool.write_bytes_per_second = 100e9;
  return pool;
}

TEST(Endurance, CountsTheCodeAndTheAmplification) {
  Endurance each = pool();
  const EndurancePlan plan = plan_endurance(each).value();
  EXPECT_DOUBLE_EQ(plan.budget_bytes_per_day, 30.72e12);
  EXPECT_NEAR(plan.written_bytes_per_day, 100e9 * 1.2 * 86'400 / 1'280, 1);
  EXPECT_NEAR(plan.years, 5 * 30.72e12 / 8.1e12, 1e-9);
  EXPECT_DOUBLE_EQ(plan.admitted_ratio, 1);
  each.write_amplification = 2.5;
  EXPECT_NEAR(plan_endurance(each)->years, plan.years / 2.5, 1e-9);
}

TEST(Endurance, OverTheBudgetAdmitsWhatTheRatingAllows) {
  Endurance each = pool();
  each.drive_writes_per_day = 0.1;
  const EndurancePlan plan = plan_endurance(each).value();
  EXPECT_LT(plan.years, 5);
  EXPECT_NEAR(plan.admitted_ratio, 3.072 / 8.1, 1e-9);
  each.write_bytes_per_second = plan.allowed_bytes_per_second;
  EXPECT_NEAR(plan_endurance(each)->years, 5, 1e-9);
  EXPECT_DOUBLE_EQ(plan_endurance(each)->admitted_ratio, 1);
}

TEST(Endurance, NothingWrittenLastsForEver) {
  Endurance each = pool();
  each.write_bytes_per_second = 0;
  EXPECT_TRUE(std::isinf(plan_endurance(each)->years));
}

TEST(Endurance, ErrorsNameTheValueAndTheOption) {
  Endurance each = pool();
  each.write_amplification = 0.5;
  EXPECT_THAT(plan_endurance(each).error().message, ::testing::HasSubstr("0.500000"));
  EXPECT_EQ(plan_endurance(each).error().origin, "--write-amplification");
  each = pool();
  each.nodes = 0;
  EXPECT_EQ(plan_endurance(each).error().origin, "--nodes");
  each = pool();
  each.device_bytes = std::nan("");
  EXPECT_EQ(plan_endurance(each).error().origin, "--device-bytes");
}

}  // namespace
}  // namespace trimtab::eviction
