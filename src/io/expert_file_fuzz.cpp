#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "io/expert_file.h"

/// Any bytes as a dump of whatever format (archives and torch files among them): arrays whose values fill
/// their shapes, or an error. Few elements are allowed, so that a lie about sizes shows as memory.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace trimtab;
  constexpr std::int64_t kElementsMax = 1 << 16;
  const auto file = io::read_array_bytes(std::as_bytes(std::span(data, size)), "", kElementsMax);
  if (!file) {
    TRIMTAB_CHECK(!file.error().message.empty());
    return 0;
  }
  for (const auto& array : file->arrays) {
    const auto count = io::element_count(array.shape, kElementsMax);
    TRIMTAB_CHECK(count.has_value() && *count == static_cast<std::int64_t>(array.values.size()));
  }
  (void)file->contents();
  return 0;
}
