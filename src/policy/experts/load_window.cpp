#include "policy/experts/load_window.h"

#include <fmt/format.h>

#include <cmath>
#include <type_traits>

namespace trimtab::experts {
namespace {

constexpr double kLoadMax = 1e15;  // squares and sums of these stay far inside single and double precision

template <class T>
base::Status check_value(T value, std::int32_t step, std::int32_t expert) {
  const char* fault = nullptr;
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(value))
      fault = "is not a number";
    else if (std::isinf(value))
      fault = "is infinite";
  }
  if (fault == nullptr && value < T{0}) fault = "is negative";
  if (fault == nullptr && static_cast<double>(value) > kLoadMax) fault = "is more than 1e15";
  if (fault == nullptr) return {};
  return base::fail(
      base::Code::kInvalidArgument,
      fmt::format("the load of expert {} in step {} is {}, which {}: loads are counts of tokens", expert,
                  step, value, fault),
      "policy/experts");
}

}  // namespace

template <class T>
base::Result<LoadWindow> LoadWindow::build(const T* first, std::int32_t steps, std::int32_t experts,
                                           std::ptrdiff_t step_stride) {
  if (steps < 1) {
    return base::fail(base::Code::kInvalidArgument, "the window of loads is empty: record at least one step",
                      "policy/experts");
  }
  if (experts < 1) {
    return base::fail(base::Code::kInvalidArgument, "the loads have no expert", "policy/experts");
  }
  LoadWindow out;
  out.steps_ = steps;
  out.padded_ = (steps + kLanes - 1) / kLanes * kLanes;
  out.experts_ = experts;
  out.loads_.resize(static_cast<std::size_t>(out.padded_) * static_cast<std::size_t>(experts));
  out.totals_.resize(static_cast<std::size_t>(experts));
  for (std::int32_t step = 0; step < steps; ++step) {
    const T* row = first + step * step_stride;
    for (std::int32_t expert = 0; expert < experts; ++expert) {
      const T value = row[expert];
      if (!(value >= T{0} && static_cast<double>(value) <= kLoadMax))
        TRIMTAB_TRY(check_value(value, step, expert));
      out.loads_[static_cast<std::size_t>(expert) * static_cast<std::size_t>(out.padded_) +
                 static_cast<std::size_t>(step)] = static_cast<float>(value);
      out.totals_[static_cast<std::size_t>(expert)] += static_cast<double>(value);
    }
  }
  return out;
}

base::Result<LoadWindow> LoadWindow::make(const std::int32_t* first, std::int32_t steps, std::int32_t experts,
                                          std::ptrdiff_t step_stride) {
  return build(first, steps, experts, step_stride);
}
base::Result<LoadWindow> LoadWindow::make(const std::int64_t* first, std::int32_t steps, std::int32_t experts,
                                          std::ptrdiff_t step_stride) {
  return build(first, steps, experts, step_stride);
}
base::Result<LoadWindow> LoadWindow::make(const float* first, std::int32_t steps, std::int32_t experts,
                                          std::ptrdiff_t step_stride) {
  return build(first, steps, experts, step_stride);
}
base::Result<LoadWindow> LoadWindow::make(const double* first, std::int32_t steps, std::int32_t experts,
                                          std::ptrdiff_t step_stride) {
  return build(first, steps, experts, step_stride);
}

}  // namespace trimtab::experts
