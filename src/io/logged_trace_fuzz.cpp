// Any records as a decision log: a trace whose parts lie inside it.
#include <cstdint>
#include <cstdlib>
#include <span>

#include "io/logged_trace.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace trimtab::io;
  LoggedTrace gathered;
  auto rest = std::as_bytes(std::span(data, size));
  while (!rest.empty()) {
    const std::size_t length = std::min<std::size_t>(static_cast<std::size_t>(rest[0]), rest.size() - 1);
    if (const auto entry = decode_entry(rest.subspan(1, length))) gathered.add(*entry);
    rest = rest.subspan(1 + length);
  }
  const auto trace = std::move(gathered).finish("fuzz");
  for (const auto& request : trace.requests) {
    if (request.runs_begin + request.runs_count > trace.runs.size()) std::abort();
    if (request.images_begin + request.images_count > trace.images.size()) std::abort();
    if (request.prompt_tokens < 1 || request.output_tokens < 1 || request.arrival.value < 0) std::abort();
  }
  return 0;
}
