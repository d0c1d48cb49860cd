#pragma once

#include <cstdint>

namespace trimtab::experts {

struct ForecastTuning {
  /// Variance that the rate gains a step, relative to its square.
  float drift = 6.4e-4F;
  /// A single step further than this from what was expected, in deviations: the rate jumped.
  float jump = 4.5F;
  /// Page's test for lasting shifts: what each step must exceed to count, and the sum that tells.
  float slack = 1.0F, shift = 5.0F;
};

/// The planner's inner loops, compiled once per instruction set. All give the same bits: products of whole
/// numbers are exact, and floating point works lane by lane in a fixed order (no contraction, no
/// reassociation). Counts of experts are multiples of 32, of steps of 16; arrays are padded with zeros.
struct Kernels {
  /// gram[e * experts + f] = sum over steps of loads of e and f. `pairs`: [step pairs, experts, 2], scaled so
  /// that no sum of squares reaches 2^31.
  void (*gram)(const std::int16_t* pairs, std::int32_t pair_count, std::int32_t experts, float* gram);
  /// row[i] += factor * values[i].
  void (*add_scaled)(float* row, const float* values, float factor, std::int32_t count);
  /// out[i] = (products[i] - factor * gram[i]) * share[i] + penalty[i].
  void (*swap_row)(float* out, const float* products, const float* gram, float factor, const float* share,
                   const float* penalty, std::int32_t count);
  /// The two largest of row[0 .. count), ties to the lower index; {value, index} of each. count >= 16.
  void (*top_two)(const float* row, std::int32_t count, float* values, std::int32_t* indices);
  /// Sum over steps of the busiest rank after rank i gives `moved - taken` to rank j, or infinity as soon as
  /// it cannot fall below `limit`. `best`: [3, steps] loads of the three busiest ranks of each step, `who`
  /// their ranks; `rest[b]`: what the steps from block b on cost at least.
  float (*peaks_after_swap)(const float* load_i, const float* load_j, const float* moved, const float* taken,
                            const float* best, const std::int32_t* who, std::int32_t i, std::int32_t j,
                            const float* rest, float limit, std::int32_t steps);
  /// What 16 experts will draw, from loads [steps, stride] (the first 16 of each row): see forecast.h.
  void (*forecast)(const float* loads, std::int32_t steps, std::int32_t stride, const ForecastTuning& tuning,
                   float* expected);
  /// Updates `best` and `who` ([3, steps]) from loads [ranks, steps].
  void (*top_three)(const float* loads, std::int32_t ranks, std::int32_t steps, float* best,
                    std::int32_t* who);
};

enum class Isa : std::uint8_t { kBase, kAvx2, kAvx512 };

/// The table of one instruction set; null when this processor lacks it.
const Kernels* kernels_of(Isa isa);

/// The fastest table that this processor runs.
const Kernels& kernels();

}  // namespace trimtab::experts
