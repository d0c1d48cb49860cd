#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "io/decision_log.h"
#include "io/explain.h"

/// Any bytes as the payload of a record: it decodes to an entry that can be told, or to nothing.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace trimtab;
  io::LoggedRequest request;
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  // Several records, cut at a length byte, so that journeys of more than one step are reached.
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t length = std::min(std::to_integer<std::size_t>(bytes[at]), bytes.size() - at - 1);
    if (auto entry = io::decode_entry(bytes.subspan(at + 1, length))) {
      if (request.entries.empty()) request.id = entry->request();
      request.entries.push_back(std::move(*entry));
    }
    at += 1 + length;
  }
  (void)io::explain_text(request);
  (void)io::explain_json(request);
  return 0;
}
