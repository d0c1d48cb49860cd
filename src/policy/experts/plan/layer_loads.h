#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/experts/load_window.h"

namespace trimtab::experts {

/// Weight of steps of age 0, 1, 2 ...: exp(-age / recency_steps), or all 1 when that is 0. Computed with +, *
/// and / alone, so that every machine gets the same bits (libraries differ in the last bit of exp).
std::vector<double> recency_weights(std::int32_t steps, double recency_steps);

/// One layer's loads in the layouts that the planner's loops read, weighted by recency, in bins of `bin`
/// steps (1: as they are). Arrays are padded with zeros: experts to a multiple of 32, steps of 16. The
/// buffers are kept between layers.
struct LayerLoads {
  static constexpr std::int32_t kExpertPad = 32;

  std::int32_t experts = 0, experts_padded = 0;
  std::int32_t steps = 0, steps_padded = 0;
  std::vector<float> by_expert;  // [experts, steps_padded]
  std::vector<float> by_step;    // [steps, experts_padded]
  std::vector<float> gram;       // [experts_padded, experts_padded]: products of loads, in units of `unit`^2
  std::vector<double> step_totals;  // [steps]

  /// `weights`: of each step of the window, oldest first; empty: all 1. The Gram matrix takes each step's
  /// square with its weight once.
  void assign(const LoadWindow& window, std::span<const double> weights, std::int32_t bin);
  /// Only `by_expert`, which the walk reads.
  void assign_by_expert(const LoadWindow& window, std::span<const double> weights, std::int32_t bin);

  std::span<const float> of(std::int32_t expert) const {
    return {by_expert.data() + static_cast<std::size_t>(expert) * static_cast<std::size_t>(steps_padded),
            static_cast<std::size_t>(steps_padded)};
  }
  const float* gram_row(std::int32_t expert) const {
    return gram.data() + static_cast<std::size_t>(expert) * static_cast<std::size_t>(experts_padded);
  }

 private:
  void fill(const LoadWindow& window, std::span<const double> weights, std::int32_t bin);
  void transpose();
  void multiply(std::span<const double> weights, std::int32_t bin);

  std::vector<std::int16_t> pairs_;  // [step pairs, experts_padded, 2]
};

}  // namespace trimtab::experts
