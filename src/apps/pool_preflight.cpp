#include "apps/pool_preflight.h"

#include <iostream>
#include <vector>

#include "kv_code/stripe.h"
#include "kv_pool/preflight.h"

namespace trimtab::apps {

base::Status check_pool(const Instance& instance, const std::string& who) {
  const model::PoolConfig& pool = instance.config.pool;
  const std::vector<std::string> targets = pool_targets_of(instance);
  const auto bytes = static_cast<std::uint64_t>(pool.file_bytes);
  const auto notes = kv_pool::check_places(targets, bytes);
  if (!notes) return tl::unexpected(notes.error());
  for (const std::string& note : *notes) std::cerr << who << ": " << note << "\n";
  const auto layout = kv_code::StripeLayout::make(instance.profile.kv);
  if (!layout) return tl::unexpected(layout.error());
  const std::vector<std::uint32_t> racks(pool.racks.begin(), pool.racks.end());
  return kv_pool::check_racks(targets, racks, bytes, layout->shard_bytes);
}

}  // namespace trimtab::apps
