#include "config/fault_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/scenario.h"

namespace trimtab::config {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string refused(std::string_view text) {
  const auto plan = parse_fault_plan(text, "plan.toml");
  return plan ? "accepted" : plan.error().message + " " + plan.error().origin;
}

TEST(FaultPlan, ReadsWhatItSays) {
  const model::FaultPlan plan = parse_fault_plan(R"(seed = 7
[[fault]]
kind = "engine"
role = "decode"
targets = [0, 3]
at_s = 60
for_s = 30.5
start_up_s = 20
[[fault]]
kind = "storage_node"
down_share = 0.01
for_s = 5
until_s = 100
loses_content = true
[[fault]]
kind = "queue"
at_s = 0
)",
                                                 "plan.toml")
                                    .value();
  EXPECT_EQ(plan.seed, 7U);
  ASSERT_EQ(plan.faults.size(), 3U);
  const model::Fault& engine = plan.faults[0];
  EXPECT_EQ(engine.kind, model::FaultKind::kEngine);
  EXPECT_EQ(engine.role, model::Role::kDecode);
  EXPECT_THAT(engine.targets, testing::ElementsAre(0, 3));
  EXPECT_EQ(engine.at, base::Nanos{60'000'000'000});
  EXPECT_EQ(engine.span, base::Nanos{30'500'000'000});
  EXPECT_EQ(engine.start_up, base::Nanos{20'000'000'000});
  EXPECT_FALSE(plan.faults[1].at.has_value());
  EXPECT_EQ(plan.faults[1].down_share, 0.01);
  EXPECT_EQ(plan.faults[1].until, base::Nanos{100'000'000'000});
  EXPECT_TRUE(plan.faults[1].loses_content);
  EXPECT_EQ(plan.faults[2].at, base::Nanos{0});
  EXPECT_EQ(plan.faults[2].span, base::kForever) << "for good";
}

TEST(FaultPlan, AScenarioMayHaveItsOwn) {
  const model::Scenario scenario =
      parse_scenario(
          "[[fault]]\nkind = \"queue\"\nat_s = 1\nfor_s = 2\n[simulation.storage]\nnodes = 4\n"
          "[simulation.reports]\ndelay_ms = 30\ndelay_steps = 32\nloss = "
          "0.1\n[simulation.entrypoints]\ncount = 4\n"
          "[simulation.encoder]\npatches_per_s = 5000\n",
          "s.toml", "profiles")
          .value();
  ASSERT_EQ(scenario.faults.faults.size(), 1U);
  EXPECT_EQ(scenario.storage.nodes, 4U);
  EXPECT_EQ(scenario.reports.delay, base::Nanos{30'000'000});
  EXPECT_EQ(scenario.reports.delay_steps, 32);
  EXPECT_EQ(scenario.reports.loss, 0.1);
  EXPECT_EQ(scenario.entrypoints.count, 4U);
  EXPECT_EQ(scenario.encoder.patches_per_s, 5000);
}

TEST(FaultPlan, UnknownWordsNameTheNearestAndTheLine) {
  EXPECT_THAT(refused("[[fault]]\nkind = \"queue\"\nat_s = 1\nfor_ss = 2\n"),
              AllOf(HasSubstr("for_s"), HasSubstr("4")));
  EXPECT_THAT(refused("[[fault]]\nkind = \"queue\"\nat_s = 1\nfors = 3\n"),
              HasSubstr("did you mean 'fault.for_s'?"));
  EXPECT_THAT(refused("[[fault]]\nkind = \"engin\"\nrole = \"decode\"\nat_s = 1\n"), HasSubstr("engine"));
  EXPECT_THAT(refused("[[fault]]\nkind = \"engine\"\nrole = \"decoder\"\nat_s = 1\n"), HasSubstr("decode"));
  EXPECT_THAT(refused("[[faults]]\nkind = \"queue\"\nat_s = 1\n"), HasSubstr("fault"));
  EXPECT_THAT(refused("[[fault]]\nkind = \"queue\"\nat_s = 1\nrole = \"decode\"\n"), HasSubstr("role"))
      << "a key that this kind does not have";
}

TEST(FaultPlan, ContradictionsAreRefused) {
  EXPECT_THAT(refused("[[fault]]\nkind = \"queue\"\n"), HasSubstr("give one of them"));
  EXPECT_THAT(refused("[[fault]]\nkind = \"queue\"\nat_s = 1\nrate_per_hour = 3\n"),
              HasSubstr("give one of them"));
  EXPECT_THAT(refused("[[fault]]\nkind = \"queue\"\nrate_per_hour = 3\n"), HasSubstr("needs for_s"));
  EXPECT_THAT(refused("[[fault]]\nkind = \"queue\"\ndown_share = 0.1\nfor_s = 0\n"), HasSubstr("down_share"));
  EXPECT_THAT(refused("[[fault]]\nkind = \"queue\"\nrate_per_hour = nan\nfor_s = 1\n"),
              HasSubstr("rate_per_hour"));
  EXPECT_THAT(refused("[[fault]]\nkind = \"queue\"\nat_s = -1\n"), HasSubstr("at_s"));
  EXPECT_THAT(refused("[[fault]]\nkind = \"late_start\"\nrole = \"prefill\"\nat_s = 1\nfor_s = 1\n"),
              HasSubstr("late start"));
}

}  // namespace
}  // namespace trimtab::config
