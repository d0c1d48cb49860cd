#pragma once

#include <string>
#include <string_view>

#include "base/error.h"
#include "model/scenario.h"

namespace trimtab::config {

/// A simulation's scenario: a cluster configuration with the limits of a fleet as defaults (no cap on
/// requests in flight, KV for a long context), and the table [simulation]. `profiles_dir`: where profile
/// names are looked up; the profile's [decode_step] is the decode model. Unknown keys are errors that name
/// the nearest known one.
base::Result<model::Scenario> load_scenario(const std::string& path, const std::string& profiles_dir);
base::Result<model::Scenario> parse_scenario(std::string_view text, const std::string& origin,
                                             const std::string& profiles_dir);

}  // namespace trimtab::config
