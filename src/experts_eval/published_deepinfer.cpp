#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "experts_eval/published.h"

namespace trimtab::experts_eval {
namespace {

using experts::LoadWindow;
using experts::Shape;
using experts::SlotMap;

std::size_t at(std::int32_t index) { return static_cast<std::size_t>(index); }

/// The two highest per-copy loads of each step: the drop that one more copy brings is nothing but at the
/// steps where its expert stands highest.
class Peaks {
 public:
  Peaks(const LoadWindow& window, const std::vector<std::int32_t>& copies)
      : window_(window),
        copies_(copies),
        first_(at(window.steps())),
        second_(at(window.steps())),
        top_(at(window.steps())) {
    for (std::int32_t step = 0; step < window.steps(); ++step) scan(step);
  }

  /// The rule's choice for the next redundant slot.
  std::int32_t choose() const {
    double base = 0;
    std::vector<double> drop(at(window_.experts()));
    for (std::int32_t step = 0; step < window_.steps(); ++step) {
      base += first_[at(step)];
      const std::int32_t expert = top_[at(step)];
      const float after = window_.of(expert)[at(step)] / static_cast<float>(copies_[at(expert)] + 1);
      drop[at(expert)] += first_[at(step)] - std::max(after, second_[at(step)]);
    }
    std::int32_t best = 0;
    float best_score = 0;
    for (std::int32_t expert = 0; expert < window_.experts(); ++expert) {
      // Single precision, as published: differences below its resolution are ties, which the lowest id wins.
      const auto score = static_cast<float>(base - drop[at(expert)]);
      if (expert == 0 || score < best_score) best = expert, best_score = score;
    }
    return best;
  }

  /// After a copy of `expert` was added.
  void update(std::int32_t expert) {
    for (std::int32_t step = 0; step < window_.steps(); ++step) {
      const float before = told_apart(expert, step) / static_cast<float>(copies_[at(expert)] - 1);
      if (top_[at(step)] == expert || before >= second_[at(step)]) scan(step);
    }
  }

 private:
  /// The published tie-breaker.
  float told_apart(std::int32_t expert, std::int32_t step) const {
    return window_.of(expert)[at(step)] + 1e-4F * static_cast<float>(expert);
  }
  void scan(std::int32_t step) {
    float first = -1, second = -1;
    std::int32_t top = 0;
    for (std::int32_t expert = 0; expert < window_.experts(); ++expert) {
      const float load = told_apart(expert, step) / static_cast<float>(copies_[at(expert)]);
      if (load > first) {
        second = first, first = load, top = expert;
      } else if (load > second) {
        second = load;
      }
    }
    first_[at(step)] = first, second_[at(step)] = std::max(second, 0.0F), top_[at(step)] = top;
  }

  const LoadWindow& window_;
  const std::vector<std::int32_t>& copies_;
  std::vector<float> first_, second_;
  std::vector<std::int32_t> top_;
};

/// Sum over steps of max(peak, rank + copy), in 16 lanes so that it is one order whatever the instruction
/// set.
float sum_of_peaks(const float* peak, const float* rank, const float* copy, std::size_t padded) {
  std::array<float, LoadWindow::kLanes> lanes{};
  for (std::size_t step = 0; step < padded; step += lanes.size()) {
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
      lanes[lane] += std::max(peak[step + lane], rank[step + lane] + copy[step + lane]);
    }
  }
  for (std::size_t width = lanes.size() / 2; width > 0; width /= 2) {
    for (std::size_t lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

SlotMap place(const Shape& shape, const LoadWindow& window, const std::vector<std::int32_t>& physical,
              const std::vector<std::int32_t>& copies) {
  std::vector<std::int32_t> order(physical.size());
  std::iota(order.begin(), order.end(), 0);
  const auto load = [&](std::int32_t slot) {
    const std::int32_t expert = physical[at(slot)];
    return static_cast<float>(window.totals()[at(expert)]) / static_cast<float>(copies[at(expert)]);
  };
  std::ranges::stable_sort(order, [&](std::int32_t a, std::int32_t b) { return load(a) > load(b); });
  const std::size_t padded = at(window.padded_steps());
  const std::int32_t room = shape.slots_per_rank();
  std::vector<float> ranks(at(shape.ranks) * padded), peak(padded), copy(padded);
  std::vector<std::int32_t> held(at(shape.ranks));
  SlotMap map(at(shape.slots));
  for (const std::int32_t item : order) {
    const std::int32_t expert = physical[at(item)];
    for (std::size_t t = 0; t < padded; ++t)
      copy[t] = window.of(expert)[t] / static_cast<float>(copies[at(expert)]);
    std::int32_t best = -1;
    float best_sum = 0;
    for (std::int32_t rank = 0; rank < shape.ranks; ++rank) {
      if (held[at(rank)] == room) continue;
      const float sum = sum_of_peaks(peak.data(), ranks.data() + at(rank) * padded, copy.data(), padded);
      if (best < 0 || sum < best_sum) best = rank, best_sum = sum;
    }
    float* chosen = ranks.data() + at(best) * padded;
    for (std::size_t t = 0; t < padded; ++t) peak[t] = std::max(peak[t], chosen[t] += copy[t]);
    map[at(best * room + held[at(best)]++)] = expert;
  }
  return map;
}

}  // namespace

base::Result<SlotMap> deepinfer_plan(const Shape& shape, const LoadWindow& window) {
  TRIMTAB_TRY(experts::check(shape));
  if (window.experts() != shape.experts) {
    return base::fail(base::Code::kInvalidArgument,
                      fmt::format("the window has {} experts, the shape {}", window.experts(), shape.experts),
                      "experts_eval");
  }
  std::vector<std::int32_t> copies(at(shape.experts), 1), physical(at(shape.experts));
  std::iota(physical.begin(), physical.end(), 0);
  Peaks peaks(window, copies);
  while (std::ssize(physical) < shape.slots) {
    const std::int32_t expert = peaks.choose();
    physical.push_back(expert);
    ++copies[at(expert)];
    peaks.update(expert);
  }
  return place(shape, window, physical, copies);
}

}  // namespace trimtab::experts_eval
