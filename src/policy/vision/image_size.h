#pragma once

#include <cstdint>

#include "base/error.h"
#include "base/units.h"
#include "model/profile.h"

namespace trimtab::policy {

/// Image patches, the unit of vision balancing: ceil(width / patch) * ceil(height / patch) (system facts,
/// section 5). 1280x800 gives 4,000 at 16 pixels and 5,336 at 14. Errors: a model without vision, a size that
/// is not positive or beyond the model's pixel limit.
base::Result<std::int64_t> image_patches(const model::VisionSpec& spec, std::int64_t width,
                                         std::int64_t height);

/// Placeholder tokens that the image takes in the prompt, from its header alone.
///   kGrid: ceil(pw / downsample) * ceil(ph / downsample), at most max_tokens, over the patch grid pw x ph.
///   kDeepSeekV41: rows of patches merged by `downsample`, one more token per row and two around, small
///   images scaled up to min_pixels, large ones down to max_tokens (public engine facts, section 6).
base::Result<base::TokenCount> image_tokens(const model::VisionSpec& spec, std::int64_t width,
                                            std::int64_t height);

}  // namespace trimtab::policy
