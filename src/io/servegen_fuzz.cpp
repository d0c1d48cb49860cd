// Any text as a client's windows and as its lengths: an error that says something, or models from which a
// trace whose parts lie inside it can be drawn.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "io/servegen.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace trimtab::io;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::size_t cut = text.find('\0');
  ServegenClient client;
  client.name = "fuzz";
  auto windows = parse_servegen_windows(text.substr(0, cut), "fuzz.csv", client.notes);
  auto lengths = parse_servegen_lengths(cut == std::string_view::npos ? R"({"0": {"input_tokens": "{9: 1.0}",
      "output_tokens": "{9: 1.0}"}})"
                                                                      : text.substr(cut + 1),
                                        "fuzz.json");
  if (!windows && windows.error().message.empty()) std::abort();
  if (!lengths && lengths.error().message.empty()) std::abort();
  if (!windows || !lengths) return 0;
  double requests = 0;
  for (const ServegenWindow& window : *windows) requests += window.rate * (window.end_s - window.begin_s);
  if (requests > 1e4) return 0;  // nothing new, and slow
  client.windows = std::move(*windows);
  client.lengths = std::move(*lengths);
  const auto trace = generate_servegen({client}, {}, "fuzz");
  if (!trace) return 0;
  for (const auto& request : trace->requests) {
    if (request.images_begin + request.images_count > trace->images.size()) std::abort();
    if (request.prompt_tokens < 1 || request.output_tokens < 1 || request.arrival.value < 0) std::abort();
  }
  return 0;
}
