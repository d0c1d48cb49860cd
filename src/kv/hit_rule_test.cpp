#include "kv/hit_rule.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <vector>

#include "config/profile.h"

namespace trimtab::kv {
namespace {

/// The layout that `trimtab serve` would use for DeepSeek-V4.1-Flash.
const model::KvLayout& windowed() {
  static const auto profile = config::load_profile("deepseek-v4.1-flash", "profiles");
  EXPECT_TRUE(profile) << base::to_string(profile.error());
  return profile->kv;
}

Hit hit_of(std::int64_t prompt, std::int64_t matched, std::vector<std::uint32_t> snapshots = {},
           WindowMode mode = WindowMode::kApproximate, const model::KvLayout& layout = windowed()) {
  return decide_hit({prompt, matched, snapshots, mode}, layout);
}

// The worked example: 757 of 100,000 tokens' blocks are present (system facts, section 15).
TEST(HitRule, WorkedExample) {
  const Hit with = hit_of(100'000, 757, {757});
  EXPECT_EQ(with.tokens.value, 96'896);
  EXPECT_EQ(with.to_compute.value, 3'104);
  EXPECT_TRUE(with.exact);
  EXPECT_FALSE(with.recomputes_window);
  EXPECT_EQ(with.snapshot_blocks, 757);
  const Hit without = hit_of(100'000, 757);
  EXPECT_EQ(without.tokens.value, 96'896 - 128);
  EXPECT_EQ(without.to_compute.value, 3'232);
  EXPECT_EQ(without.block_kv_blocks, 757) << "block KV alone decides the length";
  EXPECT_FALSE(without.exact) << "drift is reported";
  EXPECT_TRUE(without.recomputes_window);
  EXPECT_EQ(without.snapshot_blocks, 0);
}

TEST(HitRule, ExactModeRecomputesWhatStackedWindowsSee) {
  const Hit hit = hit_of(100'000, 757, {}, WindowMode::kExact);
  EXPECT_EQ(hit.to_compute.value, 3'104 + 20 * 128);
  EXPECT_TRUE(hit.exact);
}

TEST(HitRule, AnOlderSnapshotIsUsedWhereItCostsNoMore) {
  const Hit one_back = hit_of(100'000, 757, {756});
  EXPECT_EQ(one_back.to_compute.value, 3'232);
  EXPECT_TRUE(one_back.exact) << "the same work as the approximation, and nothing lost";
  EXPECT_FALSE(hit_of(100'000, 757, {755}).exact);
  EXPECT_EQ(hit_of(100'000, 757, {100, 745}, WindowMode::kExact).to_compute.value, 3'104 + 12 * 128);
  EXPECT_EQ(hit_of(100'000, 757, {100, 700}, WindowMode::kExact).to_compute.value, 3'104 + 20 * 128);
  EXPECT_EQ(hit_of(100'000, 757, {800}).to_compute.value, 3'232) << "a snapshot beyond the hit is of no use";
}

TEST(HitRule, ModelsWithoutAWindowNeedNoSnapshot) {
  const Hit hit = hit_of(1'000, 5, {}, WindowMode::kApproximate, {});
  EXPECT_EQ(hit.tokens.value, 640);
  EXPECT_TRUE(hit.exact);
  EXPECT_EQ(hit_of(1'000, 5, {5}, WindowMode::kApproximate, {}).snapshot_blocks, 0);
}

TEST(HitRule, AtLeastOneTokenIsComputed) {
  EXPECT_EQ(hit_of(512, 4, {}, WindowMode::kApproximate, {}).tokens.value, 384);
  EXPECT_EQ(hit_of(513, 4, {}, WindowMode::kApproximate, {}).tokens.value, 512);
  EXPECT_EQ(hit_of(128, 1, {}, WindowMode::kApproximate, {}).tokens.value, 0);
  // The snapshot that counts is the one at the shortened end.
  EXPECT_EQ(hit_of(512, 4, {4}).to_compute.value, 256);
  EXPECT_EQ(hit_of(512, 4, {3}).to_compute.value, 128);
  EXPECT_EQ(hit_of(512, 4, {3, 4}).to_compute.value, 128);
}

TEST(HitRule, AShortHitIsRecomputedFromTheStartExactly) {
  const Hit hit = hit_of(1'000, 1);
  EXPECT_EQ(hit.tokens.value, 0);
  EXPECT_TRUE(hit.exact) << "from the prompt's start nothing is missing";
  EXPECT_TRUE(hit_of(4'000, 20, {}, WindowMode::kExact).exact);
  EXPECT_EQ(hit_of(4'000, 20, {}, WindowMode::kExact).tokens.value, 0);
}

RC_GTEST_PROP(HitRuleProperty, LegalAndNoWorseThanItsAlternatives, ()) {
  const auto prompt = *rc::gen::inRange<std::int64_t>(1, 9'000);
  const auto matched = *rc::gen::inRange<std::int64_t>(0, prompt / 128 + 1);
  auto snapshots = *rc::gen::container<std::vector<std::uint32_t>>(rc::gen::inRange<std::uint32_t>(1, 75));
  std::sort(snapshots.begin(), snapshots.end());
  const auto mode = *rc::gen::element(WindowMode::kApproximate, WindowMode::kExact);
  const Hit hit = hit_of(prompt, matched, snapshots, mode);
  const std::int64_t end = std::min(matched, (prompt - 1) / 128);
  RC_ASSERT(hit.tokens.value % 128 == 0 && hit.tokens.value >= 0);
  RC_ASSERT(hit.to_compute.value == prompt - hit.tokens.value && hit.to_compute.value >= 1);
  RC_ASSERT(hit.block_kv_blocks == end && hit.tokens.value / 128 <= end);
  const std::int64_t back = end - hit.tokens.value / 128;
  const bool snapshot =
      std::binary_search(snapshots.begin(), snapshots.end(), static_cast<std::uint32_t>(end - back));
  RC_ASSERT(back <= (mode == WindowMode::kExact ? 20 : 1));
  // The state that is loaded is one that is held, and it ends where the computation starts.
  RC_ASSERT(hit.snapshot_blocks == (snapshot && hit.tokens.value > 0 ? hit.tokens.value / 128 : 0));
  RC_ASSERT(hit.exact == (snapshot || back == end || (mode == WindowMode::kExact && back == 20)));
  // No legal resume point nearer to the end was passed over.
  for (std::int64_t nearer = 0; nearer < back; ++nearer) {
    RC_ASSERT(
        !std::binary_search(snapshots.begin(), snapshots.end(), static_cast<std::uint32_t>(end - nearer)));
  }
}

// sglang#39147: the least of the pools' lengths is not a place where all of them can resume.
TEST(GreatestCommonEndpoint, IsLegalInEveryPool) {
  const auto common = [](std::vector<std::vector<std::uint32_t>> pools) {
    std::vector<std::span<const std::uint32_t>> spans(pools.begin(), pools.end());
    return greatest_common_endpoint(spans);
  };
  EXPECT_EQ(common({{3}, {2}}), 0U);
  EXPECT_EQ(common({{1, 3}, {1, 2}}), 1U);
  EXPECT_EQ(common({{1, 2, 3, 4, 5}, {2, 4}, {1, 2, 4, 6}}), 4U);
  EXPECT_EQ(common({{1, 2}, {}}), 0U);
  EXPECT_EQ(common({{1, 2}}), 2U);
  EXPECT_EQ(common({}), 0U);
}

TEST(GreatestCommonEndpoint, DecidesTheHitWhereSeveralPoolsMustAgree) {
  const std::vector<std::uint32_t> twelves = {12, 24, 36}, some = {3, 12, 20, 36}, none;
  const auto hit = [&](std::int64_t matched, std::vector<std::span<const std::uint32_t>> pools) {
    HitQuery query;
    query.prompt_tokens = 40 * 128;
    query.matched_blocks = matched;
    query.pools = pools;
    return decide_hit(query, {}).tokens.value / 128;
  };
  EXPECT_EQ(hit(39, {twelves}), 36) << "blocks of 1,536 tokens end where they end (pegaflow PR#450)";
  EXPECT_EQ(hit(35, {twelves}), 24);
  EXPECT_EQ(hit(35, {twelves, some}), 12) << "not 20, which is the least of the three maxima below 35";
  EXPECT_EQ(hit(39, {twelves, some}), 36);
  EXPECT_EQ(hit(11, {twelves}), 0);
  EXPECT_EQ(hit(39, {twelves, none}), 0);
}

}  // namespace
}  // namespace trimtab::kv
