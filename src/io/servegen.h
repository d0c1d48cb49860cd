#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "io/servegen_model.h"
#include "model/trace.h"

namespace trimtab::io {

struct ServegenOptions {
  double from_s = 0;         // the slice of the day; arrivals count from its begin
  double for_s = 0;          // 0: to the end of the last window
  std::int64_t clients = 0;  // only so many, those that ask most in the slice; 0: all
  std::uint64_t seed = 1;
  std::int64_t requests_max = INT64_MAX;  // later ones are left out
};

/// More expected requests than this in a slice are an error: the trace is held in memory, 64 bytes each.
inline constexpr std::int64_t kServegenRequestsMax = 20'000'000;

/// Draws a trace from client models. In each window a client's arrivals are a stationary renewal process with
/// the window's rate and shape of gaps: the first gap is the rest of one that the window's begin cuts, so the
/// expected count is exactly rate x length however bursty the gaps are. Lengths are independent draws from
/// the tables in force (the nearest published ones when they are silent); a client without any borrows those
/// of one that has them, drawn by how often it asks. Prompts are text and images together; 0 becomes 1. Every
/// client and window has random numbers of its own, so a slice, or fewer clients, gives the same requests as
/// the whole. Errors: a slice that is empty or outside the windows, no table at all, too many requests.
base::Result<model::Trace> generate_servegen(const std::vector<ServegenClient>& clients,
                                             const ServegenOptions& options, const std::string& name);

}  // namespace trimtab::io
