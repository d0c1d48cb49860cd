#pragma once

#include <string>
#include <string_view>

#include "base/error.h"
#include "ipc/segment.h"

namespace trimtab::engine {

/// Another rank's memory, which is a whole number of units of `unit_bytes`; `units` is what an error calls
/// them. kDataLoss when it is not.
base::Result<ipc::Segment> open_segment(const std::string& path, std::size_t unit_bytes,
                                        std::string_view units);

}  // namespace trimtab::engine
