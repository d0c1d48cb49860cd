#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "io/step_log.h"

/// Whatever the file holds, the reader answers with steps that the fit can take, or with an error.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto log = trimtab::io::parse_step_log({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!log) return 0;
  for (const auto& step : log->steps) {
    if (step.chunks.empty() || step.actual.value <= 0) std::abort();
    for (const auto& chunk : step.chunks)
      if (chunk.tokens.value < 1 || chunk.computed.value < 0) std::abort();
  }
  return 0;
}
