#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "base/prng.h"
#include "policy/experts/types.h"

// Layers for the tests and benchmarks of dispatch and repair; no part of the product.
namespace trimtab::experts::made {

/// Lognormal popularity, exp(sigma * normal), scaled to `total` tokens.
inline std::vector<double> popularity(base::Prng& prng, std::int32_t experts, double sigma, double total) {
  std::vector<double> loads(static_cast<std::size_t>(experts));
  double sum = 0;
  for (double& load : loads) sum += load = std::exp(sigma * prng.normal());
  for (double& load : loads) load *= total / sum;
  return loads;
}

/// Whole counts about the given rates (normal with a Poisson's variance).
inline std::vector<std::int64_t> counts(base::Prng& prng, const std::vector<double>& rates) {
  std::vector<std::int64_t> out;
  for (const double rate : rates) {
    out.push_back(std::llround(std::max(0.0, rate + std::sqrt(rate) * prng.normal())));
  }
  return out;
}

/// A copy at a time for the expert with most load a copy; then copies by falling load to the lightest rank
/// that has room and lacks the expert (any full one exchanges a slot if none does).
inline SlotMap greedy_map(const Shape& shape, const std::vector<double>& loads) {
  std::vector<std::int32_t> copies(loads.size(), 1), held;
  for (std::int32_t i = 0; i < shape.redundant(); ++i) {
    std::size_t best = loads.size();
    for (std::size_t e = 0; e < loads.size(); ++e) {
      if (copies[e] < shape.ranks &&
          (best == loads.size() || loads[e] / copies[e] > loads[best] / copies[best])) {
        best = e;
      }
    }
    ++copies[best];
  }
  for (std::int32_t e = 0; e < shape.experts; ++e) {
    held.insert(held.end(), static_cast<std::size_t>(copies[static_cast<std::size_t>(e)]), e);
  }
  const auto each = [&](std::int32_t e) {
    return loads[static_cast<std::size_t>(e)] / copies[static_cast<std::size_t>(e)];
  };
  // Experts with most copies first: they are the ones that run out of ranks.
  std::ranges::stable_sort(held, [&](std::int32_t a, std::int32_t b) {
    const std::int32_t ca = copies[static_cast<std::size_t>(a)], cb = copies[static_cast<std::size_t>(b)];
    return (ca > 1) != (cb > 1) ? ca > 1 : each(a) > each(b);
  });
  const std::int32_t width = shape.slots_per_rank();
  SlotMap map(static_cast<std::size_t>(shape.slots), -1);
  std::vector<std::int32_t> used(static_cast<std::size_t>(shape.ranks));
  std::vector<double> carried(used.size());
  const auto holds = [&](std::int32_t rank, std::int32_t e) {
    const auto first = map.begin() + rank * width;
    return std::find(first, first + width, e) != first + width;
  };
  for (const std::int32_t e : held) {
    std::int32_t best = -1;
    for (std::int32_t rank = 0; rank < shape.ranks; ++rank) {
      const auto at = static_cast<std::size_t>(rank);
      if (used[at] < width && !holds(rank, e) &&
          (best < 0 || carried[at] < carried[static_cast<std::size_t>(best)])) {
        best = rank;
      }
    }
    if (best < 0) return initial_map(shape);  // tiny shapes only
    map[static_cast<std::size_t>(best * width + used[static_cast<std::size_t>(best)]++)] = e;
    carried[static_cast<std::size_t>(best)] += each(e);
  }
  return map;
}

/// Any legal map without two copies of an expert on a rank: `initial_map`, shuffled by swaps.
inline SlotMap shuffled_map(const Shape& shape, base::Prng& prng, std::int32_t swaps) {
  SlotMap map = initial_map(shape);
  const auto slots = static_cast<std::uint64_t>(shape.slots);
  for (std::int32_t i = 0; i < swaps; ++i) {
    const auto a = static_cast<std::size_t>(prng.below(slots)),
               b = static_cast<std::size_t>(prng.below(slots));
    std::swap(map[a], map[b]);
    if (duplicate_copies(shape, map) > 0) std::swap(map[a], map[b]);
  }
  return map;
}

}  // namespace trimtab::experts::made
