#include "sim/eviction.h"

#include <algorithm>

namespace trimtab::sim {

base::Result<std::unique_ptr<eviction::Policy>> make_eviction(std::string_view name,
                                                              std::int64_t capacity_blocks,
                                                              const policy::CostModel* cost,
                                                              std::int64_t block_tokens) {
  eviction::Settings settings;
  settings.capacity_blocks = std::max<std::int64_t>(capacity_blocks, 1);
  settings.cost = cost;
  settings.block_tokens = block_tokens;
  auto made = eviction::make_policy(name, settings);
  if (!made) made.error().origin = "simulation.storage.eviction";
  return made;
}

}  // namespace trimtab::sim
