#include "config/scenario.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/profile.h"

namespace trimtab::config {
namespace {

using testing::HasSubstr;

std::string refused(std::string_view text) {
  return parse_scenario(text, "s.toml", "profiles").error().message;
}

TEST(Scenario, DefaultsAreAFleet) {
  const model::Scenario scenario = parse_scenario("", "s.toml", "profiles").value();
  EXPECT_EQ(scenario.profile.name, "deepseek-v4.1-flash");
  EXPECT_GE(scenario.cluster.gateway.requests_in_flight_max, 1'000'000);
  EXPECT_EQ(scenario.speed, model::SimulationSpeed::kFast);
  EXPECT_EQ(scenario.cluster.prefill.order, "edf");
  EXPECT_TRUE(scenario.cluster.prefill.tier_bounds_tokens.empty()) << "one queue";
}

TEST(Scenario, TiersStaySelectable) {
  const model::Scenario scenario =
      parse_scenario("[prefill]\ntier_bounds_tokens = [16384, 65536]\norder = \"fifo\"\n", "s.toml",
                     "profiles")
          .value();
  EXPECT_EQ(scenario.cluster.prefill.order, "fifo");
  EXPECT_EQ(scenario.cluster.prefill.tier_bounds_tokens, (std::vector<std::int64_t>{16'384, 65'536}));
}

TEST(Scenario, ReadsItsTable) {
  const model::Scenario scenario = parse_scenario(
                                       "seed = 9\n[decode]\npolicy = \"dualpath\"\n[simulation]\nspeed = "
                                       "\"exact\"\ntokens_per_step = 3.2\npool = false\n",
                                       "s.toml", "profiles")
                                       .value();
  EXPECT_EQ(scenario.seed, 9U);
  EXPECT_EQ(scenario.cluster.decode.policy, "dualpath");
  EXPECT_EQ(scenario.speed, model::SimulationSpeed::kExact);
  EXPECT_EQ(scenario.decode.tokens_per_step, 3.2);
  EXPECT_FALSE(scenario.pool.enabled);
}

TEST(Scenario, UnknownKeysNameTheNearest) {
  EXPECT_THAT(refused("[simulation]\nspede = \"fast\"\n"), HasSubstr("speed"));
  EXPECT_THAT(refused("[simulation]\ntokens_per_step = 0.5\n"), HasSubstr("tokens_per_step"));
  EXPECT_THAT(refused("[model]\nprofile = \"nobody\"\n"), HasSubstr("nobody"));
}

TEST(Scenario, MemoryOfARankIsInBlocks) {
  EXPECT_THAT(refused("[decode]\nkv_bytes = 1_000_000_000\n"), HasSubstr("kv_blocks, not kv_bytes"));
}

TEST(Scenario, SharesOfAStepAreCoefficientsAtTheStatedLoads) {
  const model::Profile profile = load_profile("share", "profiles").value();
  const model::DecodeStepCost& cost = profile.decode_step;
  const double step = static_cast<double>(cost.fixed.value) / 0.2;
  EXPECT_NEAR(cost.attention_ns_per_kv_token * 64 * 13'126, 0.4 * step, 1.0);
  EXPECT_NEAR(cost.dispatch_ns_per_request * 64, 0.2 * step, 1.0);
  EXPECT_NEAR(cost.moe_ns_per_request * 64, 0.2 * step, 1.0);
}

}  // namespace
}  // namespace trimtab::config
