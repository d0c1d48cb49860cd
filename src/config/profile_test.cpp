#include "config/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <numeric>

namespace trimtab::config {
namespace {

using ::testing::HasSubstr;

constexpr const char* kProfiles = "profiles";  // tests run in the repository's root

model::Profile load(const std::string& name) {
  auto profile = load_profile(name, kProfiles);
  if (!profile) ADD_FAILURE() << base::to_string(profile.error());
  return profile.value_or(model::Profile{});
}

std::int64_t layers_sum(const model::Profile& profile) {
  std::int64_t sum = 0;
  for (const auto bytes : profile.kv.layer_bytes) sum += bytes.value;
  return sum;
}

TEST(Profile, EveryShippedProfileLoads) {
  for (const char* name : {"deepseek-v4.1-flash", "deepseek-v3", "quadratic-example", "smollm2-135m"}) {
    const auto profile = load(name);
    EXPECT_EQ(profile.name, name);
    EXPECT_THAT(profile.source, ::testing::Not(::testing::IsEmpty()));
  }
}

TEST(Profile, V41HasThePublishedLayout) {
  const auto profile = load("deepseek-v4.1-flash");
  EXPECT_EQ(profile.kv.block_bytes.value, 114'048);
  EXPECT_EQ(layers_sum(profile), 113'920) << "128 bytes of padding";
  EXPECT_EQ(profile.kv.ring_slots, 134);
  EXPECT_EQ(profile.kv.state_bytes.value, 3'128'928);
  EXPECT_EQ(profile.vision.patch, 14);
  EXPECT_EQ(profile.vision.formula, model::VisionSpec::Formula::kDeepSeekV41);
  const auto& cost = std::get<model::FlopsCost>(profile.cost);
  EXPECT_TRUE(cost.compact);
  EXPECT_EQ(cost.keep, 140);
  EXPECT_EQ(cost.producer_terms.size(), 3U);
  EXPECT_EQ(cost.consumer_terms.size(), 4U);
  // Both modes run the same projections in all.
  EXPECT_NEAR(static_cast<double>(cost.attention_row),
              static_cast<double>(cost.attention_row_producer + cost.attention_row_consumer), 1.0);
}

TEST(Profile, SmolLM2HasTheEnginesBlock) {
  const auto profile = load("smollm2-135m");
  EXPECT_EQ(profile.context_limit.value, 8192);
  EXPECT_EQ(profile.kv.block_bytes.value, 2'949'120);
  EXPECT_EQ(profile.kv.layer_bytes.size(), 30U);
  EXPECT_EQ(layers_sum(profile), 2'949'120);
  EXPECT_EQ(profile.kv.window_tokens, 0);
  EXPECT_EQ(profile.quota_scope, model::QuotaScope::kWholeStep);
}

TEST(Profile, V3AndTheExampleHaveTheirNumbers) {
  const auto v3 = load("deepseek-v3");
  EXPECT_EQ(v3.kv.layer_bytes.size(), 61U);
  EXPECT_EQ(layers_sum(v3), v3.kv.block_bytes.value);
  EXPECT_EQ(v3.kv.layer_bytes[0].value, 1152 * 128);
  const auto cost = std::get<model::QuadraticCost>(load("quadratic-example").cost);
  EXPECT_EQ(cost.fixed_ns, 5'000'000);
  EXPECT_EQ(cost.token_ps, 10'000'000);
  EXPECT_EQ(cost.pair_ps, 500);
}

/// The example's text with one piece replaced: one fault at a time.
std::string altered(const std::string& from, const std::string& to) {
  std::ifstream in("profiles/quadratic-example.toml");
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const auto at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string fault(const std::string& text) {
  const auto profile = parse_profile(text, "p.toml");
  return profile ? "no fault" : base::to_string(profile.error());
}

TEST(Profile, EachFaultIsNamed) {
  EXPECT_EQ(fault(altered("x", "x")), "no fault");
  EXPECT_THAT(fault(altered("pair_ps = 500", "pair_pss = 500")), HasSubstr("pair_ps"));
  EXPECT_THAT(fault(altered("pair_ps = 500", "pair_ps = 500\nfixed_n = 1")),
              HasSubstr("did you mean 'cost.fixed_ns'"));
  EXPECT_THAT(fault(altered("pair_ps = 500", "pair_ps = -1")), HasSubstr("-1 is outside"));
  EXPECT_THAT(fault(altered("pair_ps = 500", "pair_ps = 'x'")), HasSubstr("string where integer"));
  EXPECT_THAT(fault(altered("form = \"quadratic\"", "form = \"cubic\"")), HasSubstr("'cubic' is not one of"));
  EXPECT_THAT(fault(altered("[cost]", "[costs]")), HasSubstr("cost: this table is required"));
  EXPECT_THAT(fault(altered("[kv]", "[kvs]")), HasSubstr("kv: this table is required"));
  EXPECT_THAT(fault(altered("45_568", "45_700")), HasSubstr("the layers need"));
  EXPECT_THAT(fault(altered("ring_slots = 134", "ring_slots = 100")), HasSubstr("cannot hold a window"));
  EXPECT_THAT(fault(altered("per_token = 6", "per_token = 600")), HasSubstr("600 of 384"));
  EXPECT_THAT(fault(altered("context_limit_tokens = 1_048_576", "context_limit_tokens = 0")),
              HasSubstr("outside"));
}

TEST(Profile, FlopsFormRefusesWhatWouldOverflowOrMakeNoSense) {
  const std::string head =
      "name='x'\nsource='y'\ncontext_limit_tokens=1048576\n[kv]\nblock_bytes=1\n[cost]\nform='flops'\nfixed_"
      "ns=0\n"
      "flops_per_second=1e12\n";
  EXPECT_EQ(fault(head + "mode='off'\nattention_row=5\n"), "no fault");
  EXPECT_THAT(fault(head + "mode='compact'\n"), HasSubstr("keeps at least one row"));
  EXPECT_THAT(fault(head + "mode='off'\n[[cost.producer_terms]]\nname='a'\nflops=100000000000\n"),
              HasSubstr("sums hold"));
  EXPECT_THAT(fault(head + "mode='off'\n[[cost.producer_terms]]\nname='a'\nflops=1\nwindowed=true\n"),
              HasSubstr("for consumer terms"));
  EXPECT_THAT(fault(head + "mode='off'\n[[cost.producer_terms]]\nname='a'\nflops=1\nratio=0\n"),
              HasSubstr("outside"));
  EXPECT_THAT(fault(head + "mode='off'\nother_moved=7\n"), HasSubstr("other_row_consumer"));
}

TEST(Profile, AMissingProfileSaysWhereItWasSought) {
  const auto profile = load_profile("deepseek-v5", kProfiles);
  ASSERT_FALSE(profile);
  EXPECT_EQ(profile.error().code, base::Code::kNotFound);
  EXPECT_EQ(profile.error().origin, "profiles/deepseek-v5.toml");
}

TEST(Profile, CalibrationRoundTrip) {
  const std::string path = ::testing::TempDir() + "trimtab_calibration_test.toml";
  const CalibrationNote note{"a \"quoted\" \\ machine\n, 2 cores", 24, 0.0125, 0.05};
  {
    std::ofstream out(path);
    out << cost_toml({1234, 5'000'000'000, 7'000'001}, note);
  }
  const auto calibration = load_cost(path);
  std::remove(path.c_str());
  ASSERT_TRUE(calibration) << base::to_string(calibration.error());
  const auto& cost = std::get<model::QuadraticCost>(calibration->cost);
  EXPECT_EQ(cost.fixed_ns, 1234);
  EXPECT_EQ(cost.token_ps, 5'000'000'000);
  EXPECT_EQ(cost.pair_ps, 7'000'001);
  EXPECT_EQ(calibration->note.machine, "a \"quoted\" \\ machine , 2 cores");
  EXPECT_EQ(calibration->note.samples, 24);
  EXPECT_DOUBLE_EQ(calibration->note.error_ratio_mean, 0.0125);
}

TEST(Profile, TakesBothTablesOfACalibrationAsTheyAre) {
  const std::string head =
      "name = \"mine\"\nsource = \"measured\"\ncontext_limit_tokens = 4096\n[kv]\nblock_bytes = 1024\n";
  const std::string tables = cost_toml({1234, 5'000'000, 7}, {"this host", 24, 0.0125, 0.05});
  const auto profile = parse_profile(head + tables, "mine.toml");
  ASSERT_TRUE(profile) << base::to_string(profile.error());
  EXPECT_EQ(std::get<model::QuadraticCost>(profile->cost).token_ps, 5'000'000);
  const auto wrong = parse_profile(head + tables + "steps = 3\n", "mine.toml");
  ASSERT_FALSE(wrong) << "the note is checked";
  EXPECT_THAT(wrong.error().message, HasSubstr("steps"));
}

}  // namespace
}  // namespace trimtab::config
