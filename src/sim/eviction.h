#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "base/error.h"
#include "policy/cost/cost_model.h"
#include "policy/eviction/policies.h"

namespace trimtab::sim {

/// The order in which blocks of the trace leave a full pool: the one that real stores use.
/// Errors: an unknown name (the nearest is offered).
base::Result<std::unique_ptr<eviction::Policy>> make_eviction(std::string_view name,
                                                              std::int64_t capacity_blocks,
                                                              const policy::CostModel* cost = nullptr,
                                                              std::int64_t block_tokens = 128);

inline std::span<const std::string_view> eviction_names() { return eviction::policy_names(); }

}  // namespace trimtab::sim
