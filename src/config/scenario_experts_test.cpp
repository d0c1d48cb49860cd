#include "config/scenario_experts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/scenario.h"

namespace trimtab::config {
namespace {

using testing::HasSubstr;

TEST(ScenarioExperts, ReadsItsTables) {
  const model::Scenario scenario =
      parse_scenario(
          "[simulation.experts]\npolicy = \"repair\"\nskew = \"zipf\"\nskew_amount = 0.7\n"
          "[simulation.experts.decode]\nredundant_slots_per_rank = 2\ninterval_steps = 800\nwindow_steps = "
          "200\n"
          "[simulation.verify]\npolicy = \"group\"\nunprofiled_ns = 3_800_000\n",
          "s.toml", "profiles")
          .value();
  EXPECT_EQ(scenario.experts.policy, model::ExpertPolicy::kRepair);
  EXPECT_EQ(scenario.experts.skew, model::ExpertSkew::kZipf);
  EXPECT_EQ(scenario.experts.skew_amount, 0.7);
  EXPECT_EQ(scenario.experts.decode.redundant_slots_per_rank, 2);
  EXPECT_EQ(scenario.experts.decode.interval_steps, 800);
  EXPECT_EQ(scenario.experts.prefill.redundant_slots_per_rank, 4) << "the other side keeps its defaults";
  EXPECT_EQ(scenario.verify.policy, model::VerifyPolicy::kGroup);
  EXPECT_EQ(scenario.verify.unprofiled.value, 3'800'000);
}

TEST(ScenarioExperts, RefusesWhatCannotBe) {
  const auto refused = [](std::string_view text) {
    return parse_scenario(text, "s.toml", "profiles").error().message;
  };
  EXPECT_THAT(refused("[simulation.experts]\npolicy = \"deepinfers\"\n"), HasSubstr("deepinfer"));
  EXPECT_THAT(refused("[simulation.experts]\nskew_ammount = 1.0\n"), HasSubstr("skew_amount"));
  EXPECT_THAT(refused("[simulation.experts.decode]\ninterval_steps = 50\nwindow_steps = 60\n"),
              HasSubstr("a window of 60 steps does not fit"));
  EXPECT_THAT(refused("[simulation.verify]\ndrafts = 0\n"), HasSubstr("drafts"));
}

}  // namespace
}  // namespace trimtab::config
