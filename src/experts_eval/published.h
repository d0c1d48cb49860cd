#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"
#include "policy/experts/load_window.h"
#include "policy/experts/types.h"

namespace trimtab::experts_eval {

/// DeepInfer's rule as its engine publishes it: each redundant slot goes to the expert whose further copy
/// makes the sum over steps of the worst per-copy load least (loads plus 1e-4 x expert id, in single
/// precision: ties of large loads all go to expert 0); copies sorted by total load, heaviest first, each on
/// the rank with a free slot that makes the sum over steps of the busiest rank least (ties: lowest rank).
/// Nothing keeps two copies off one rank. Errors: a bad shape, a window of another number of experts.
base::Result<experts::SlotMap> deepinfer_plan(const experts::Shape& shape, const experts::LoadWindow& window);

/// DeepSeek's published greedy, with totals only, [experts]: redundant slots one by one to the expert with
/// the most load per copy; then, heaviest copy first, to the least loaded rank with room. Ignores nodes and
/// groups.
base::Result<experts::SlotMap> deepseek_global(const experts::Shape& shape, std::span<const double> totals);

/// The same inside nodes: groups packed on nodes first (heaviest to the lightest node with room), then each
/// node's experts replicated and packed on its ranks. Errors also when nodes do not divide groups, or ranks.
base::Result<experts::SlotMap> deepseek_hierarchical(const experts::Shape& shape,
                                                     std::span<const double> totals);

/// What DeepSeek's entry point does: hierarchical where nodes divide groups, else global without a word.
base::Result<experts::SlotMap> deepseek_plan(const experts::Shape& shape, std::span<const double> totals);

/// The greedy's packing: item i goes to pack result[i]; every pack gets the same number of items. Errors:
/// packs that do not divide the items.
std::vector<std::int32_t> balanced_packing(std::span<const float> weights, std::int32_t packs);

}  // namespace trimtab::experts_eval
