#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace trimtab::config {

/// One request of a recorded trace.
struct TraceRequest {
  std::int64_t arrival_ms = 0;
  std::int64_t input_tokens = 1, output_tokens = 1;
  std::vector<std::int64_t> blocks;  // names of its 512-token blocks: equal names hold equal tokens
};

/// Reads a trace in Mooncake's form (FAST'25 release): one JSON object a line with `timestamp` (ms),
/// `input_length`, `output_length` and `hash_ids`; other members are passed over, `hash_ids` may be missing.
/// Errors name file and line. Benchmarks and tests replay such load; without a trace they make their own.
base::Result<std::vector<TraceRequest>> load_trace(const std::string& path);
base::Result<std::vector<TraceRequest>> parse_trace(std::string_view text, const std::string& origin);

}  // namespace trimtab::config
