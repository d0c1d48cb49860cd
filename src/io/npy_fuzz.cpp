#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "io/npy.h"

/// Any bytes as a .npy file: an array whose values fill its shape, or an error.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace trimtab;
  io::MemorySource source(std::as_bytes(std::span(data, size)));
  const auto array = io::read_npy(source, 1 << 16);
  if (!array) return 0;
  const auto count = io::element_count(array->shape, 1 << 16);
  TRIMTAB_CHECK(count.has_value() && *count == static_cast<std::int64_t>(array->values.size()));
  return 0;
}
