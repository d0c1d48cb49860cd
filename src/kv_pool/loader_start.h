#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/error.h"
#include "kv_pool/loader.h"
#include "kv_pool/store_tier.h"
#include "policy/eviction/policy.h"

namespace trimtab::kv_pool {

/// Of the index at start: larger than any of an earlier loader whose users may still live. They all dial this
/// socket, so the counter beside it lives as long as they do; no life sees that many changes.
base::Result<std::uint64_t> first_epoch(const std::string& socket_path);

/// Who leaves a pool that is in memory only, of so many slots; null where there are targets below it.
base::Result<std::unique_ptr<eviction::Policy>> memory_order(const LoaderOptions& options,
                                                             std::uint64_t slots);

/// What the operator chose, for the tier below memory.
void tell(const LoaderOptions& options, StoreTier::Options& tier);

}  // namespace trimtab::kv_pool
