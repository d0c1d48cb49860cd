#include "policy/experts/dispatch/tables.h"

#include <fmt/format.h>

#include <algorithm>

namespace trimtab::experts {
namespace {

base::Status check_layers(const Shape& shape, std::span<const std::int32_t> maps) {
  TRIMTAB_TRY(check(shape));
  const auto slots = static_cast<std::size_t>(shape.slots);
  if (maps.size() % slots != 0) {
    return base::fail(base::Code::kInvalidArgument,
                      fmt::format("{} entries are not whole layers of {} slots", maps.size(), shape.slots),
                      "policy/experts");
  }
  for (std::size_t layer = 0; layer < maps.size() / slots; ++layer) {
    auto status = check(shape, maps.subspan(layer * slots, slots), /*distinct=*/false);
    if (!status) {
      status.error().message = fmt::format("layer {}: {}", layer, status.error().message);
      return status;
    }
  }
  return {};
}

}  // namespace

base::Result<DispatchTables> dispatch_tables(const Shape& shape, std::span<const std::int32_t> maps,
                                             TableWidth width) {
  TRIMTAB_TRY(check_layers(shape, maps));
  DispatchTables tables;
  tables.experts = shape.experts;
  tables.slots = shape.slots;
  tables.layers = static_cast<std::int32_t>(maps.size() / static_cast<std::size_t>(shape.slots));
  tables.physical_to_logical.assign(maps.begin(), maps.end());
  const auto experts = static_cast<std::size_t>(shape.experts);
  const auto slots = static_cast<std::size_t>(shape.slots);
  const auto layers = static_cast<std::size_t>(tables.layers);
  tables.logical_count.assign(layers * experts, 0);
  for (std::size_t i = 0; i < maps.size(); ++i) {
    ++tables.logical_count[i / slots * experts + static_cast<std::size_t>(maps[i])];
  }
  const auto most = std::ranges::max_element(tables.logical_count);
  tables.copies_max = width == TableWidth::kEngine         ? shape.redundant() + 1
                      : most == tables.logical_count.end() ? 1
                                                           : *most;
  const auto columns = static_cast<std::size_t>(tables.copies_max);
  tables.logical_to_physical.assign(layers * experts * columns, -1);
  std::vector<std::int32_t> next(layers * experts);
  for (std::size_t i = 0; i < maps.size(); ++i) {
    const std::size_t row = i / slots * experts + static_cast<std::size_t>(maps[i]);
    const auto column = static_cast<std::size_t>(next[row]++);
    tables.logical_to_physical[row * columns + column] = static_cast<std::int32_t>(i % slots);
  }
  return tables;
}

}  // namespace trimtab::experts
