#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "policy/cost/fit.h"

namespace trimtab::io {

/// Measured prefill steps, for `trimtab cost fit`.
struct StepLog {
  std::vector<policy::StepSample> steps;  // in the order of the file
  std::size_t steps_partial = 0;          // left out: not all of their chunks are in the log
  bool last_line_torn = false;            // left out: the recorder died in the middle of it
};

/// Reads steps from
///  - the directory of a decision log (`STATE_DIR/decisions`), which the reference engine's ranks fill;
///  - JSON lines, one step each: {"actual_ms": 41.5, "chunks": [{"tokens": 512, "computed": 4096}, ...]},
///    or, for a step of one chunk, {"tokens": 512, "computed": 4096, "actual_ms": 41.5};
///  - CSV whose header names tokens, computed and actual_ms.
/// Times are actual_ns, actual_us, actual_ms or actual_s. Rows with the same `step` (and `engine` and `rank`,
/// where given) are chunks of one step. Other members and columns are passed over.
/// Errors name file, line, value and fix.
base::Result<StepLog> read_step_log(const std::string& path);
/// The same from text; `name` stands for the file in messages.
base::Result<StepLog> parse_step_log(std::string_view text, const std::string& name);

}  // namespace trimtab::io
