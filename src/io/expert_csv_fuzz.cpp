#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "io/expert_csv.h"

/// Any bytes as CSV: an array whose values fill its shape, or an error.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace trimtab;
  io::MemorySource source(std::as_bytes(std::span(data, size)));
  const auto counts = io::read_csv(source, 1 << 16);
  if (!counts) return 0;
  const auto count = io::element_count(counts->array.shape, 1 << 16);
  TRIMTAB_CHECK(count.has_value() && *count == static_cast<std::int64_t>(counts->array.values.size()));
  return 0;
}
