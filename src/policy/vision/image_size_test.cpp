#include "policy/vision/image_size.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace trimtab::policy {
namespace {

using model::VisionSpec;

VisionSpec v41() {
  VisionSpec spec;
  spec.formula = VisionSpec::Formula::kDeepSeekV41;
  spec.patch = 14;
  spec.downsample = 3;
  spec.max_tokens = 1'024;
  spec.min_pixels = 295'936;
  return spec;
}

VisionSpec grid(std::int64_t patch, std::int64_t downsample, std::int64_t max_tokens) {
  VisionSpec spec;
  spec.formula = VisionSpec::Formula::kGrid;
  spec.patch = patch;
  spec.downsample = downsample;
  spec.max_tokens = max_tokens;
  return spec;
}

TEST(ImagePatches, TheWorkedExampleAtBothPatchSizes) {
  EXPECT_EQ(*image_patches(grid(16, 1, 1'024), 1'280, 800), 4'000);
  EXPECT_EQ(*image_patches(v41(), 1'280, 800), 5'336);
  EXPECT_EQ(*image_patches(v41(), 1, 1), 1);
  EXPECT_EQ(*image_patches(v41(), 15, 14), 2);
}

TEST(ImageTokens, DeepSeekV41Examples) {
  const auto tokens = [](std::int64_t width, std::int64_t height) {
    return image_tokens(v41(), width, height)->value;
  };
  EXPECT_EQ(tokens(544, 544), 184);
  EXPECT_EQ(tokens(100, 100), 184);  // scaled up to the least size
  EXPECT_EQ(tokens(1, 1), 184);
  EXPECT_EQ(tokens(800, 600), 317);
  EXPECT_EQ(tokens(1'024, 1'024), 652);
  EXPECT_EQ(tokens(1'280, 720), 578);
  EXPECT_EQ(tokens(1'280, 800), 642);
  EXPECT_EQ(tokens(1'920, 1'080), 968);
  EXPECT_EQ(tokens(3'840, 2'160), 968);
  EXPECT_EQ(tokens(4'000, 3'000), 1'001);
  EXPECT_EQ(tokens(1'344, 1'344), 994);
  EXPECT_EQ(tokens(100'000, 1), 1'024);  // one row of 1,021
  EXPECT_EQ(tokens(1, 100'000), 1'024);  // 511 rows of one
}

RC_GTEST_PROP(ImageTokens, DeepSeekV41NeverExceedsItsMaximumNorHasNoRow, ()) {
  const auto width = *rc::gen::inRange<std::int64_t>(1, 60'000);
  const auto height = *rc::gen::inRange<std::int64_t>(1, 60'000);
  const std::int64_t tokens = image_tokens(v41(), width, height)->value;
  RC_ASSERT(tokens <= 1'024);
  RC_ASSERT(tokens >= 4);
}

TEST(ImageTokens, GridCountsMergedPatchesUpToItsMaximum) {
  EXPECT_EQ(image_tokens(grid(16, 1, 5'000), 1'280, 800)->value, 4'000);
  EXPECT_EQ(image_tokens(grid(16, 2, 5'000), 1'280, 800)->value, 1'000);
  EXPECT_EQ(image_tokens(grid(16, 2, 256), 1'280, 800)->value, 256);
  EXPECT_EQ(image_tokens(grid(16, 4, 256), 17, 1)->value, 1);
  EXPECT_EQ(image_tokens(grid(16, 4, 256), 65, 64)->value, 2);
}

TEST(ImageSize, BadSizesAreNamed) {
  VisionSpec spec = grid(16, 2, 256);
  spec.pixels_max = 20'000'000;
  const auto message = [&](std::int64_t width, std::int64_t height) {
    const auto tokens = image_tokens(spec, width, height);
    const auto patches = image_patches(spec, width, height);
    EXPECT_FALSE(tokens);
    EXPECT_FALSE(patches);
    EXPECT_EQ(tokens.error().code, base::Code::kInvalidArgument);
    return tokens ? std::string() : tokens.error().message;
  };
  EXPECT_EQ(message(0, 0), "an image of 0x0 pixels has no content");
  EXPECT_EQ(message(-5, 10), "an image of -5x10 pixels has no content");
  EXPECT_EQ(message(100'000, 100'000),
            "an image of 100000x100000 pixels is too large: at most 20000000 pixels; scale it down");
  EXPECT_EQ(message(INT64_MAX, 2).find("too large") == std::string::npos, false);
  EXPECT_TRUE(image_tokens(spec, 20'000'000, 1));
  EXPECT_EQ(image_tokens(VisionSpec{}, 10, 10).error().code, base::Code::kUnsupported);
}

}  // namespace
}  // namespace trimtab::policy
