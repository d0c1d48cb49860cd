#pragma once

#include <string>

#include "base/units.h"

namespace trimtab::base {

/// A span as people read it, to three digits or so: "0.3 ms", "296 ms", "1176 ms", "12.5 s", "600 s", and
/// "no limit" for kForever. For reasons and explanations; programs get the numbers.
std::string duration_text(Nanos span);

}  // namespace trimtab::base
