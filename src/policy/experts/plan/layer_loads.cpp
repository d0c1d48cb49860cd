#include "policy/experts/plan/layer_loads.h"

#include <algorithm>
#include <cmath>

#include "policy/experts/plan/kernels.h"

namespace trimtab::experts {
namespace {

std::size_t at(std::int32_t value) { return static_cast<std::size_t>(value); }

/// exp(-x), x >= 0: Taylor on x / 2^n, squared n times.
double decay(double x) {
  if (x > 700) return 0;
  int halvings = 0;
  for (; x > 0.125; x /= 2) ++halvings;
  double term = 1, sum = 1;
  for (int k = 1; k <= 12; ++k) {
    term *= -x / k;
    sum += term;
  }
  for (; halvings > 0; --halvings) sum *= sum;
  return sum;
}

}  // namespace

std::vector<double> recency_weights(std::int32_t steps, double recency_steps) {
  std::vector<double> weights(at(steps), 1.0);
  if (recency_steps <= 0) return weights;
  const double factor = decay(1 / recency_steps);
  for (std::size_t age = 1; age < weights.size(); ++age) weights[age] = weights[age - 1] * factor;
  std::ranges::reverse(weights);
  return weights;
}

void LayerLoads::assign(const LoadWindow& window, std::span<const double> weights, std::int32_t bin) {
  assign_by_expert(window, weights, bin);
  transpose();
  multiply(weights, bin);
}

void LayerLoads::assign_by_expert(const LoadWindow& window, std::span<const double> weights,
                                  std::int32_t bin) {
  experts = window.experts();
  experts_padded = (experts + kExpertPad - 1) / kExpertPad * kExpertPad;
  steps = (window.steps() + bin - 1) / bin;
  steps_padded = (steps + LoadWindow::kLanes - 1) / LoadWindow::kLanes * LoadWindow::kLanes;
  fill(window, weights, bin);
}

void LayerLoads::fill(const LoadWindow& window, std::span<const double> weights, std::int32_t bin) {
  by_expert.assign(at(experts) * at(steps_padded), 0.0F);
  std::vector<float> factors(at(window.steps()), 1.0F);
  for (std::size_t step = 0; step < weights.size(); ++step) factors[step] = static_cast<float>(weights[step]);
  for (std::int32_t expert = 0; expert < experts; ++expert) {
    const std::span<const float> from = window.of(expert);
    float* to = by_expert.data() + at(expert) * at(steps_padded);
    if (bin == 1) {
      for (std::size_t step = 0; step < factors.size(); ++step) to[step] = from[step] * factors[step];
    } else {
      for (std::size_t step = 0; step < factors.size(); ++step)
        to[step / at(bin)] += from[step] * factors[step];
    }
  }
}

void LayerLoads::transpose() {
  by_step.assign(at(steps) * at(experts_padded), 0.0F);
  step_totals.assign(at(steps), 0.0);
  constexpr std::int32_t kTile = 16;
  for (std::int32_t first = 0; first < experts; first += kTile) {
    const std::int32_t last = std::min(first + kTile, experts);
    for (std::int32_t step = 0; step < steps; ++step) {
      float* to = by_step.data() + at(step) * at(experts_padded);
      for (std::int32_t expert = first; expert < last; ++expert)
        to[expert] = by_expert[at(expert) * at(steps_padded) + at(step)];
    }
  }
  for (std::int32_t step = 0; step < steps; ++step) {
    const float* row = by_step.data() + at(step) * at(experts_padded);
    for (std::int32_t expert = 0; expert < experts; ++expert)
      step_totals[at(step)] += static_cast<double>(row[expert]);
  }
}

void LayerLoads::multiply(std::span<const double> weights, std::int32_t bin) {
  // A step of weight v enters by_expert times v; its square must carry v once, so divide by sqrt(v).
  std::vector<float> correction(at(steps), 1.0F);
  if (!weights.empty()) {
    for (std::int32_t step = 0; step < steps; ++step) {
      const std::size_t newest = std::min(at((step + 1) * bin), weights.size()) - 1;
      const double weight = weights[newest];
      correction[at(step)] = weight > 0 ? static_cast<float>(1 / std::sqrt(weight)) : 0.0F;
    }
  }
  // Power-of-two scale: no sum of squares reaches 2^31 (so by Cauchy and Schwarz no product does), no load
  // 2^15. Rounding adds at most half a unit a step, far less than the room left.
  double square_max = 0, load_max = 0;
  for (std::int32_t expert = 0; expert < experts; ++expert) {
    const std::span<const float> loads = of(expert);
    double square = 0;
    for (std::size_t step = 0; step < at(steps); ++step) {
      const double load = static_cast<double>(loads[step] * correction[step]);
      square += load * load;
      load_max = std::max(load_max, load);
    }
    square_max = std::max(square_max, square);
  }
  constexpr double kSquareRoom = 45'000.0 * 45'000.0, kLoadRoom = 32'000.0;
  float scale = 1;
  if (load_max > 0) {
    while (load_max * 2 * scale <= kLoadRoom && square_max * 4 * scale * scale <= kSquareRoom) scale *= 2;
    while (load_max * scale > kLoadRoom || square_max * scale * scale > kSquareRoom) scale /= 2;
  }
  const std::int32_t pair_count = (steps + 1) / 2;
  pairs_.assign(at(pair_count) * at(experts_padded) * 2, std::int16_t{0});
  for (std::int32_t step = 0; step < steps; ++step) {
    const float* from = by_step.data() + at(step) * at(experts_padded);
    std::int16_t* to = pairs_.data() + at(step / 2) * at(experts_padded) * 2 + at(step % 2);
    const float factor = correction[at(step)] * scale;
    for (std::int32_t expert = 0; expert < experts; ++expert)
      to[2 * expert] = static_cast<std::int16_t>(from[expert] * factor + 0.5F);
  }
  gram.resize(at(experts_padded) * at(experts_padded));
  kernels().gram(pairs_.data(), pair_count, experts_padded, gram.data());
}

}  // namespace trimtab::experts
