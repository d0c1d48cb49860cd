#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/request.h"

namespace trimtab::engine {

/// Draws the token that follows position `position` (the index of the new token in its sequence). Greedy at
/// temperature 0 (ties: the smaller id). Otherwise the nucleus of `top_p`, ordered by probability and then
/// id, and one uniform number that is a function of (seed, position) alone: the same request draws the same
/// tokens on any rank, in any batch, after any restart. Cost: O(vocabulary), plus sorting the nucleus.
std::int32_t sample(std::span<const float> logits, const model::Sampling& sampling, std::uint64_t position);

}  // namespace trimtab::engine
