#pragma once

#include <memory>

#include "policy/vision/encoders.h"

/// The one line of each vision policy. To add one: write `<name>.cpp` with a class over `EncoderLedger` that
/// overrides `decide`, and `std::unique_ptr<VisionPolicy> make_<name>(const VisionConfig&)`; add its line.
#define TRIMTAB_VISION_POLICIES(POLICY) \
  POLICY(random_machine)                \
  POLICY(least_patches)

namespace trimtab::policy {

#define TRIMTAB_DECLARE(name) std::unique_ptr<VisionPolicy> make_##name(const VisionConfig& config);
TRIMTAB_VISION_POLICIES(TRIMTAB_DECLARE)
#undef TRIMTAB_DECLARE

}  // namespace trimtab::policy
