#include "policy/vision/image_size.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/check.h"

namespace trimtab::policy {
namespace {

struct Grid {
  std::int64_t columns = 0, rows = 0;
};

constexpr std::int64_t kSideMax = std::int64_t{1} << 30;  // products of two sides stay exact

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

std::string size_text(std::int64_t width, std::int64_t height) {
  return std::to_string(width) + "x" + std::to_string(height);
}

base::Status check(const model::VisionSpec& spec, std::int64_t width, std::int64_t height) {
  if (spec.formula == model::VisionSpec::Formula::kNone)
    return base::fail(base::Code::kUnsupported, "this model takes no images; send text only",
                      "policy/vision");
  TRIMTAB_CHECK(spec.patch > 0 && spec.downsample > 0 && spec.max_tokens > 0, "vision profile");
  if (width <= 0 || height <= 0)
    return base::fail(base::Code::kInvalidArgument,
                      "an image of " + size_text(width, height) + " pixels has no content", "policy/vision");
  if (width > kSideMax || height > kSideMax || (spec.pixels_max > 0 && width * height > spec.pixels_max))
    return base::fail(base::Code::kInvalidArgument,
                      "an image of " + size_text(width, height) + " pixels is too large: at most " +
                          std::to_string(spec.pixels_max > 0 ? spec.pixels_max : kSideMax) +
                          " pixels; scale it down",
                      "policy/vision");
  return {};
}

Grid merged_grid(const model::VisionSpec& spec, std::int64_t width, std::int64_t height) {
  return {ceil_div(ceil_div(width, spec.patch), spec.downsample),
          ceil_div(ceil_div(height, spec.patch), spec.downsample)};
}

std::int64_t v41_tokens(Grid grid) { return grid.rows * (grid.columns + 1) + 2; }

/// The largest grid of the image's shape whose tokens fit: rows * (columns + 1) + 2 <= max_tokens with
/// rows / columns = height / width, in the engine's own floating-point steps so that the rounding agrees.
Grid v41_scaled_down(const model::VisionSpec& spec, double width, double height) {
  const double ratio = height / width;
  const auto inner = static_cast<double>(spec.max_tokens - 2);
  const double columns = std::sqrt(inner / ratio + 0.25) - 0.5;
  const double rows = columns * ratio;
  if (columns < 1) return {1, (spec.max_tokens - 2) / 2};
  if (rows < 1) return {spec.max_tokens - 3, 1};
  const auto cell = static_cast<double>(spec.patch * spec.downsample);
  const double scale = std::min(std::floor(columns) * cell / width, std::floor(rows) * cell / height);
  const auto patch = static_cast<double>(spec.patch);
  return merged_grid(spec, static_cast<std::int64_t>(std::floor(width * scale / patch)) * spec.patch,
                     static_cast<std::int64_t>(std::floor(height * scale / patch)) * spec.patch);
}

std::int64_t v41_tokens_of(const model::VisionSpec& spec, std::int64_t width, std::int64_t height) {
  if (width * height < spec.min_pixels) {
    const double scale = std::sqrt(static_cast<double>(spec.min_pixels) /
                                   (static_cast<double>(width) * static_cast<double>(height)));
    width = static_cast<std::int64_t>(static_cast<double>(width) * scale);
    height = static_cast<std::int64_t>(static_cast<double>(height) * scale);
  }
  const std::int64_t tokens = v41_tokens(merged_grid(spec, width, height));
  if (tokens <= spec.max_tokens) return tokens;
  return v41_tokens(v41_scaled_down(spec, static_cast<double>(width), static_cast<double>(height)));
}

}  // namespace

base::Result<std::int64_t> image_patches(const model::VisionSpec& spec, std::int64_t width,
                                         std::int64_t height) {
  TRIMTAB_TRY(check(spec, width, height));
  return ceil_div(width, spec.patch) * ceil_div(height, spec.patch);
}

base::Result<base::TokenCount> image_tokens(const model::VisionSpec& spec, std::int64_t width,
                                            std::int64_t height) {
  TRIMTAB_TRY(check(spec, width, height));
  if (spec.formula == model::VisionSpec::Formula::kDeepSeekV41)
    return base::TokenCount{v41_tokens_of(spec, width, height)};
  const Grid grid = merged_grid(spec, width, height);
  return base::TokenCount{std::min(grid.columns * grid.rows, spec.max_tokens)};
}

}  // namespace trimtab::policy
