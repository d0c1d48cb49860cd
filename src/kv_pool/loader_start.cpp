#include "kv_pool/loader_start.h"

#include "ipc/life_counter.h"
#include "policy/eviction/policies.h"

namespace trimtab::kv_pool {

base::Result<std::uint64_t> first_epoch(const std::string& socket_path) {
  constexpr unsigned kChangesOfALife = 42;  // bits
  const auto life = ipc::next_life(socket_path + ".lives");
  if (!life) return tl::unexpected<base::Error>(life.error());
  return *life << kChangesOfALife;
}

base::Result<std::unique_ptr<eviction::Policy>> memory_order(const LoaderOptions& options,
                                                             std::uint64_t slots) {
  if (!options.targets.empty()) return std::unique_ptr<eviction::Policy>();
  eviction::Settings settings;
  settings.capacity_blocks = static_cast<std::int64_t>(slots);
  settings.cost = options.cost;
  return eviction::make_policy(options.eviction, settings);
}

void tell(const LoaderOptions& options, StoreTier::Options& tier) {
  tier.eviction = options.eviction;
  tier.cost = options.cost;
  tier.ttl = options.ttl;
  tier.store.racks = options.racks;
  if (options.writes_all) tier.store.write_policy = kv_store::WritePolicy::kAll;
}

}  // namespace trimtab::kv_pool
