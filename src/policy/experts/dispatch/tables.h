#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"
#include "policy/experts/types.h"

namespace trimtab::experts {

/// What an engine's gate reads. Row-major; slots of one expert in ascending order, so that column k of
/// `logical_to_physical` and of a share table are the same copy.
struct DispatchTables {
  std::int32_t layers = 0, experts = 0, slots = 0, copies_max = 0;
  std::vector<std::int32_t> physical_to_logical;  // [layers, slots]
  std::vector<std::int32_t> logical_to_physical;  // [layers, experts, copies_max], -1 behind the last copy
  std::vector<std::int32_t> logical_count;        // [layers, experts]

  std::span<const std::int32_t> slots_of(std::int32_t layer, std::int32_t expert) const {
    const std::size_t row = static_cast<std::size_t>(layer) * static_cast<std::size_t>(experts) +
                            static_cast<std::size_t>(expert);
    return {logical_to_physical.data() + row * static_cast<std::size_t>(copies_max),
            static_cast<std::size_t>(logical_count[row])};
  }
};

/// Width of the third dimension.
enum class TableWidth : std::uint8_t {
  kEngine,   // redundant slots + 1: the most copies any map of this shape can hold; never changes
  kTightest  // the most copies that one of these maps holds
};

/// `maps`: [layers, slots], each row a legal map (copies of one expert may share a rank: old maps do).
/// Errors name the layer: a length that is no multiple of the slots, an illegal map.
base::Result<DispatchTables> dispatch_tables(const Shape& shape, std::span<const std::int32_t> maps,
                                             TableWidth width);

}  // namespace trimtab::experts
