#include <gtest/gtest.h>

#include "kv/hit_rule.h"
#include "kv/testing/window_model.h"

namespace trimtab::kv {
namespace {

constexpr std::int64_t kLayers = 5, kBlocks = 8, kAfter = 40;

const testing::WindowStudy& study() {
  static const testing::WindowStudy once(kLayers, kBlocks, kAfter, 1);
  return once;
}

Hit hit_of(WindowMode mode, std::vector<std::uint32_t> snapshots) {
  model::KvLayout layout;
  layout.window_tokens = testing::WindowModel::kWindow;
  layout.window_layers = kLayers;
  return decide_hit({study().end() + kAfter, kBlocks, snapshots, mode}, layout);
}

TEST(WindowDrift, WithTheSnapshotTheLogitsAreTheSameBits) {
  ASSERT_TRUE(study().copied());
  const Hit hit = hit_of(WindowMode::kApproximate, {kBlocks});
  EXPECT_EQ(hit.tokens.value, study().end());
  EXPECT_EQ(study().restored(), study().truth());
}

TEST(WindowDrift, ExactIsTheSameBitsAndNoBlockOfItIsTooMuch) {
  const Hit hit = hit_of(WindowMode::kExact, {});
  EXPECT_EQ(hit.tokens.value, study().end() - kLayers * 128);
  EXPECT_TRUE(hit.exact);
  EXPECT_EQ(study().recomputed_from(hit.tokens.value), study().truth());
  EXPECT_NE(study().recomputed_from(hit.tokens.value + 128), study().truth());
}

TEST(WindowDrift, ApproximateDriftsLessTheMoreIsComputedAgain) {
  const Hit hit = hit_of(WindowMode::kApproximate, {});
  EXPECT_EQ(hit.tokens.value, study().end() - 128);
  EXPECT_FALSE(hit.exact);
  const auto drift = testing::measure_drift(study().truth(), study().recomputed_from(hit.tokens.value));
  EXPECT_GT(drift.largest, 0);
  // Nearer to the truth than a computation that sees nothing of the prompt.
  const auto blind = testing::measure_drift(study().truth(), study().recomputed_from(study().end()));
  EXPECT_LT(drift.relative, blind.relative / 2);
  EXPECT_GT(drift.same_first, blind.same_first);
  // One block more, and the drift is less: what is missing lies further back.
  const auto more = testing::measure_drift(study().truth(), study().recomputed_from(hit.tokens.value - 128));
  EXPECT_LT(more.relative, drift.relative);
}

}  // namespace
}  // namespace trimtab::kv
