#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/error.h"

namespace trimtab::text {

/// Parses JSON that came from outside. `what` names it in errors (kInvalidArgument). Nesting deeper than
/// `kJsonDepthMax` is refused before parsing, since writing such a value again would exhaust the stack.
base::Result<nlohmann::json> parse_json(std::string_view text, std::string_view what);

inline constexpr int kJsonDepthMax = 100;

}  // namespace trimtab::text
