// Any text as any format: an error or a trace whose spans lie inside it.
#include <cstdlib>
#include <string_view>

#include "io/trace_reader.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  trimtab::io::TraceOptions options;
  options.format = static_cast<trimtab::io::TraceFormat>(data[0] % 7);
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto trace = trimtab::io::parse_trace(text, "fuzz", options);
  if (!trace) return 0;
  for (const auto& request : trace->requests) {
    if (request.runs_begin + request.runs_count > trace->runs.size()) std::abort();
    if (request.prompt_tokens < 1 || request.arrival.value < 0) std::abort();
    if (request.conversation >= trace->conversations) std::abort();
  }
  return 0;
}
