#include <algorithm>
#include <string>

#include "base/nearest.h"
#include "policy/vision/policies.h"

namespace trimtab::policy {
namespace {

using Maker = std::unique_ptr<VisionPolicy> (*)(const VisionConfig&);

#define TRIMTAB_NAME(name) #name,
constexpr std::string_view kNames[] = {TRIMTAB_VISION_POLICIES(TRIMTAB_NAME)};
#undef TRIMTAB_NAME
#define TRIMTAB_MAKER(name) make_##name,
constexpr Maker kMakers[] = {TRIMTAB_VISION_POLICIES(TRIMTAB_MAKER)};
#undef TRIMTAB_MAKER

}  // namespace

std::span<const std::string_view> vision_policy_names() { return kNames; }

base::Result<std::unique_ptr<VisionPolicy>> make_vision_policy(const VisionConfig& config) {
  const auto found = std::find(std::begin(kNames), std::end(kNames), config.policy);
  if (found == std::end(kNames)) {
    const std::string nearest = base::nearest(config.policy, kNames);
    std::string known;
    for (const std::string_view name : kNames) known += (known.empty() ? "" : ", ") + std::string(name);
    return base::fail(base::Code::kInvalidArgument,
                      "there is no vision policy \"" + config.policy + "\"" +
                          (nearest.empty() ? "" : "; did you mean \"" + nearest + "\"?") + " Known: " + known,
                      "policy/vision");
  }
  return kMakers[found - std::begin(kNames)](config);
}

}  // namespace trimtab::policy
