#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "io/expert_maps.h"

/// Any bytes as a map file: ids within what the map says, as many as it says, or an error.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace trimtab;
  const auto maps = io::read_expert_maps_bytes(std::as_bytes(std::span(data, size)), 1 << 16);
  if (!maps) return 0;
  TRIMTAB_CHECK(maps->logical.size() ==
                static_cast<std::size_t>(maps->layers) * static_cast<std::size_t>(maps->slots));
  for (const auto id : maps->logical) TRIMTAB_CHECK(id >= 0 && id < maps->experts);
  if (maps->ranks > 0 && maps->slots % maps->ranks == 0)
    (void)io::expert_maps_json(*maps, io::MapFormat::kAscend);
  return 0;
}
