#include "config/cluster_config.h"

#include <gmock/gmock.h>

namespace trimtab::config {
namespace {

using ::testing::HasSubstr;

std::string message(std::string_view text) {
  const auto parsed = parse_cluster_config(text, "test.toml");
  return parsed ? "" : to_string(parsed.error());
}

TEST(ClusterConfig, TheShippedLaptopFileLoads) {
  const auto config = load_cluster_config("configs/laptop.toml");
  ASSERT_TRUE(config.has_value()) << to_string(config.error());
  EXPECT_EQ(config->prefill.tier_bounds_tokens, (std::vector<std::int64_t>{512, 2048, 4096}));
  EXPECT_EQ(config->prefill.quota_scope, model::QuotaScope::kWholeStep);
  EXPECT_EQ(config->gateway.port, 8000);
}

TEST(ClusterConfig, AnEmptyFileIsTheDefaults) { EXPECT_EQ(message(""), ""); }

TEST(ClusterConfig, UnknownKeysAreNamedWithTheNearest) {
  const std::string error = message("[prefill]\nengine = 2\n");
  EXPECT_THAT(error, HasSubstr("engine"));
  EXPECT_THAT(error, HasSubstr("engines"));
  EXPECT_THAT(error, HasSubstr("test.toml:2"));
}

TEST(ClusterConfig, WrongTypesAndRanges) {
  EXPECT_THAT(message("[prefill]\nranks = \"two\"\n"), HasSubstr("ranks"));
  EXPECT_THAT(message("[window_state]\nmode = \"lossy\"\n"), HasSubstr("approximate or exact"));
  EXPECT_THAT(message("[prefill]\nranks = 0\n"), HasSubstr("ranks"));
  EXPECT_THAT(message("[gateway]\nport = 70000\n"), HasSubstr("port"));
  EXPECT_THAT(message("[decode]\nmax_running = -1\n"), HasSubstr("max_running"));
  EXPECT_THAT(message("[decode]\ngroups = 2\nranks = 4\nspeeds_permille = [1000, 700, 1000]\n"),
              HasSubstr("speeds_permille has 3 values"));
  EXPECT_THAT(message("[decode]\nmoves_per_1000 = -1\n"), HasSubstr("moves_per_1000"));
  EXPECT_THAT(message("[pool]\ntargets = [\"/a\", \"/b\"]\nracks = [1]\n"),
              HasSubstr("1 values for 2 targets"));
  EXPECT_THAT(message("[pool]\neviction_saves = \"money\"\n"), HasSubstr("blocks or time"));
  EXPECT_THAT(message("[pool]\nwrite = \"eleven\"\n"), HasSubstr("ten or all"));
  EXPECT_THAT(message("not toml ["), HasSubstr("test.toml"));
}

TEST(ClusterConfig, ContradictionsNameBothValues) {
  EXPECT_THAT(message("[prefill]\ntier_bounds_tokens = [512, 512]\n"), HasSubstr("must increase"));
  EXPECT_THAT(message("[prefill]\ntier_bounds_tokens = [512]\ntier_quota_caps_ms = [1, 2, 3]\n"),
              HasSubstr("3 values for 2 tiers"));
  EXPECT_THAT(message("[prefill]\nchunk_tokens_min = 9\nchunk_tokens_max = 8\n"),
              HasSubstr("chunk_tokens_min = 9"));
}

TEST(ClusterConfig, PrintedConfigurationLoadsBackToTheSame) {
  model::ClusterConfig config;
  config.gateway.port = 8123;
  config.prefill.tier_bounds_tokens = {100, 200};
  config.prefill.tier_quota_caps_ms = {1, 2, 3};
  config.prefill.quota_scope = model::QuotaScope::kWholeStep;
  config.engine.logits_checksums = false;
  const std::string printed = cluster_config_toml(config);
  const auto back = parse_cluster_config(printed, "printed");
  ASSERT_TRUE(back.has_value()) << to_string(back.error());
  EXPECT_EQ(cluster_config_toml(*back), printed);
}

TEST(ClusterConfig, ArenasMustHoldOneLongestRequest) {
  model::ClusterConfig config;
  model::Profile profile;
  profile.name = "small";
  profile.context_limit = base::TokenCount{8192};
  EXPECT_TRUE(check_against_profile(config, profile).has_value());
  config.decode.kv_blocks = 64;
  EXPECT_THAT(check_against_profile(config, profile).error().message, HasSubstr("decode.kv_blocks = 64"));
  config.decode.kv_blocks = 65;
  config.engine.ffn_experts = 1;
  EXPECT_THAT(check_against_profile(config, profile).error().message, HasSubstr("engine.ffn_experts = 1"));
}

}  // namespace
}  // namespace trimtab::config
