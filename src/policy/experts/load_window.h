#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"

namespace trimtab::experts {

/// One layer's tokens per step and expert, checked once and laid out for the planner: expert-major, steps
/// padded to a multiple of 16 with zeros, single precision (a count above 2^24 is rounded to 24 bits; sums
/// are double).
class LoadWindow {
 public:
  static constexpr std::int32_t kLanes = 16;

  /// `first`: count of (step 0, expert 0); step s, expert e is at first[s * step_stride + e]. So a layer of
  /// an array [steps, layers, experts] is first = data + layer * experts, step_stride = layers * experts.
  /// Errors name step, expert and value: NaN, infinite, negative; no step; no expert. All zero is legal.
  static base::Result<LoadWindow> make(const std::int32_t* first, std::int32_t steps, std::int32_t experts,
                                       std::ptrdiff_t step_stride);
  static base::Result<LoadWindow> make(const std::int64_t* first, std::int32_t steps, std::int32_t experts,
                                       std::ptrdiff_t step_stride);
  static base::Result<LoadWindow> make(const float* first, std::int32_t steps, std::int32_t experts,
                                       std::ptrdiff_t step_stride);
  static base::Result<LoadWindow> make(const double* first, std::int32_t steps, std::int32_t experts,
                                       std::ptrdiff_t step_stride);

  std::int32_t steps() const { return steps_; }
  std::int32_t padded_steps() const { return padded_; }
  std::int32_t experts() const { return experts_; }
  /// Loads of one expert over the steps, [padded_steps]; the padding is zero.
  std::span<const float> of(std::int32_t expert) const {
    return {loads_.data() + static_cast<std::size_t>(expert) * static_cast<std::size_t>(padded_),
            static_cast<std::size_t>(padded_)};
  }
  /// Sum over the window, [experts].
  std::span<const double> totals() const { return totals_; }

 private:
  LoadWindow() = default;
  template <class T>
  static base::Result<LoadWindow> build(const T* first, std::int32_t steps, std::int32_t experts,
                                        std::ptrdiff_t step_stride);

  std::int32_t steps_ = 0, padded_ = 0, experts_ = 0;
  std::vector<float> loads_;
  std::vector<double> totals_;
};

}  // namespace trimtab::experts
