#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "experts_eval/published.h"

namespace trimtab::experts_eval {
namespace {

using experts::Shape;
using experts::SlotMap;

std::size_t at(std::int32_t index) { return static_cast<std::size_t>(index); }

/// Items by falling weight, ties by index.
std::vector<std::int32_t> by_falling(std::span<const float> weights) {
  std::vector<std::int32_t> order(weights.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order,
                           [&](std::int32_t a, std::int32_t b) { return weights[at(a)] > weights[at(b)]; });
  return order;
}

/// Experts of the physical slots before packing: all experts, then one more copy at a time.
std::vector<std::int32_t> replicate(std::span<const float> weights, std::int32_t slots) {
  std::vector<std::int32_t> physical(weights.size());
  std::iota(physical.begin(), physical.end(), 0);
  std::vector<float> copies(weights.size(), 1.0F), per_copy(weights.begin(), weights.end());
  while (std::ssize(physical) < slots) {
    const auto hottest = std::ranges::max_element(per_copy) - per_copy.begin();  // the first of equals
    const auto expert = static_cast<std::size_t>(hottest);
    physical.push_back(static_cast<std::int32_t>(expert));
    copies[expert] += 1.0F;
    per_copy[expert] = weights[expert] / copies[expert];
  }
  return physical;
}

/// Replicates and packs `members` (ids of experts) over `ranks` ranks, appending each rank's slots to `map`.
void plan_node(std::span<const double> totals, std::span<const std::int32_t> members, std::int32_t slots,
               std::int32_t ranks, SlotMap& map) {
  std::vector<float> weights(members.size());
  for (std::size_t i = 0; i < members.size(); ++i) weights[i] = static_cast<float>(totals[at(members[i])]);
  const std::vector<std::int32_t> physical = replicate(weights, slots);
  std::vector<float> copies(members.size()), load(physical.size());
  for (const std::int32_t expert : physical) copies[at(expert)] += 1.0F;
  for (std::size_t i = 0; i < physical.size(); ++i)
    load[i] = weights[at(physical[i])] / copies[at(physical[i])];
  const std::vector<std::int32_t> rank_of = balanced_packing(load, ranks);
  // A rank's slots stand in the order in which the packing filled them: heaviest first, unless nothing was
  // packed.
  std::vector<std::vector<std::int32_t>> held(at(ranks));
  for (const std::int32_t item : by_falling(load)) {
    held[at(rank_of[at(item)])].push_back(members[at(physical[at(item)])]);
  }
  for (const auto& rank : held) map.insert(map.end(), rank.begin(), rank.end());
}

base::Status check_totals(const Shape& shape, std::span<const double> totals) {
  TRIMTAB_TRY(experts::check(shape));
  if (totals.size() != at(shape.experts)) {
    return base::fail(base::Code::kInvalidArgument,
                      fmt::format("{} totals for {} experts", totals.size(), shape.experts), "experts_eval");
  }
  return {};
}

}  // namespace

std::vector<std::int32_t> balanced_packing(std::span<const float> weights, std::int32_t packs) {
  TRIMTAB_CHECK(packs > 0 && weights.size() % at(packs) == 0);
  const auto room = static_cast<std::int32_t>(weights.size() / at(packs));
  std::vector<std::int32_t> pack_of(weights.size()), items(at(packs));
  if (room == 1) {  // one item a pack: the published code leaves them in order
    std::iota(pack_of.begin(), pack_of.end(), 0);
    return pack_of;
  }
  std::vector<float> loads(at(packs));
  for (const std::int32_t item : by_falling(weights)) {
    std::int32_t best = -1;
    for (std::int32_t pack = 0; pack < packs; ++pack) {
      if (items[at(pack)] < room && (best < 0 || loads[at(pack)] < loads[at(best)])) best = pack;
    }
    pack_of[at(item)] = best;
    ++items[at(best)];
    loads[at(best)] += weights[at(item)];
  }
  return pack_of;
}

base::Result<SlotMap> deepseek_global(const Shape& shape, std::span<const double> totals) {
  TRIMTAB_TRY(check_totals(shape, totals));
  std::vector<std::int32_t> all(at(shape.experts));
  std::iota(all.begin(), all.end(), 0);
  SlotMap map;
  plan_node(totals, all, shape.slots, shape.ranks, map);
  return map;
}

base::Result<SlotMap> deepseek_hierarchical(const Shape& shape, std::span<const double> totals) {
  TRIMTAB_TRY(check_totals(shape, totals));
  if (shape.groups % shape.nodes != 0) {
    return base::fail(base::Code::kInvalidArgument,
                      fmt::format("{} nodes do not divide {} groups of experts: use the global placement",
                                  shape.nodes, shape.groups),
                      "experts_eval");
  }
  const std::int32_t group_size = shape.experts / shape.groups;
  std::vector<float> group_load(at(shape.groups));
  for (std::int32_t expert = 0; expert < shape.experts; ++expert) {
    group_load[at(shape.group_of_expert(expert))] += static_cast<float>(totals[at(expert)]);
  }
  const std::vector<std::int32_t> node_of = balanced_packing(group_load, shape.nodes);
  const bool one_each = shape.groups == shape.nodes;
  std::vector<std::int32_t> order =
      by_falling(group_load);  // the order in which the packing filled the nodes
  if (one_each) std::iota(order.begin(), order.end(), 0);
  SlotMap map;
  for (std::int32_t node = 0; node < shape.nodes; ++node) {
    std::vector<std::int32_t> members;
    for (const std::int32_t group : order) {
      if (node_of[at(group)] != node) continue;
      for (std::int32_t i = 0; i < group_size; ++i) members.push_back(group * group_size + i);
    }
    plan_node(totals, members, shape.slots / shape.nodes, shape.ranks / shape.nodes, map);
  }
  return map;
}

base::Result<SlotMap> deepseek_plan(const Shape& shape, std::span<const double> totals) {
  return shape.groups % shape.nodes == 0 ? deepseek_hierarchical(shape, totals)
                                         : deepseek_global(shape, totals);
}

}  // namespace trimtab::experts_eval
