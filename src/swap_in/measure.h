#pragma once

#include <span>

#include "policy/swap_in/planner.h"
#include "swap_in/backend.h"

namespace trimtab::swap_in {

/// Measures what a backend's calls, copies and bytes cost on this machine, for `policy::choose_swap`: calls
/// of one and of many copies, of small and of large pieces, each a few times, of which the least disturbed
/// counts. `source` and `destination` are memory of the backend's two sides, of equal size, at least 1 MiB;
/// destination is overwritten. Takes some milliseconds. Errors: the backend's own.
base::Result<policy::SwapBackendCost> measure(Backend& backend, std::span<const std::byte> source,
                                              std::span<std::byte> destination);

}  // namespace trimtab::swap_in
