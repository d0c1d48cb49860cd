#pragma once

#include <cstdint>
#include <span>

#include "policy/experts/types.h"

namespace trimtab::experts_eval {

/// Mean number of nodes that a token visits. `routing` [tokens, top_k]: each token's experts. In the token's
/// order, an expert is taken on a node that the token visits already if it has a copy there, else on its
/// lowest node (the handbook's rule). A token without experts visits none.
double nodes_per_token(const experts::Shape& shape, std::span<const std::int32_t> map,
                       std::span<const std::int32_t> routing, std::int32_t top_k);

}  // namespace trimtab::experts_eval
