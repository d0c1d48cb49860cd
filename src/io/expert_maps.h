#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace trimtab::io {

/// physical_to_logical of every layer, as files carry it.
struct ExpertMaps {
  std::int32_t layers = 0, slots = 0, experts = 0;
  std::int32_t ranks = 0;             // 0: the file does not say
  std::vector<std::int32_t> logical;  // [layers, slots]
};

enum class MapFormat : std::uint8_t {
  kNpz,     // physical_to_logical, logical_to_physical, logical_count, ep_size for numpy.load
  kSglang,  // JSON for --init-expert-location
  kAscend,  // vllm-ascend's expert_map.json (eplb_config.expert_map_path)
};

std::string_view name(MapFormat format);

/// Reads a map in any of the formats: the three above, SGLang's .pt form, a bare [layers, slots] .npy or JSON
/// list. `experts` is the largest logical id + 1 unless the file says more. Errors name the file, layer, slot
/// and value: ids below 0, layers of different lengths, a device list that does not match its count.
base::Result<ExpertMaps> read_expert_maps(const std::string& path);
/// The same of bytes in memory; at most `elements_max` numbers.
base::Result<ExpertMaps> read_expert_maps_bytes(std::span<const std::byte> bytes, std::int64_t elements_max);

/// Writes through a temporary file and a rename. kAscend needs ranks > 0 that divide the slots.
base::Status write_expert_maps(const std::string& path, const ExpertMaps& maps, MapFormat format);

/// The JSON text of the two JSON formats.
std::string expert_maps_json(const ExpertMaps& maps, MapFormat format);

}  // namespace trimtab::io
