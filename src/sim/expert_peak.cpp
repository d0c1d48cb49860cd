#include "sim/expert_peak.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace trimtab::sim {
namespace {

/// The normal distribution function, from a table: what a step costs allows no erfc for each rank and point.
class NormalTable {
 public:
  NormalTable() {
    for (std::size_t i = 0; i < values_.size(); ++i) {
      values_[i] = 0.5 * std::erfc(-(static_cast<double>(i) / kPerUnit - kEnd) / std::sqrt(2.0));
    }
  }
  double at(double z) const {
    if (z <= -kEnd) return 0;
    if (z >= kEnd) return 1;
    const double place = (z + kEnd) * kPerUnit;
    const auto below = static_cast<std::size_t>(place);
    const double part = place - static_cast<double>(below);
    return values_[below] + part * (values_[below + 1] - values_[below]);
  }

 private:
  static constexpr double kEnd = 7, kPerUnit = 128;
  std::array<double, static_cast<std::size_t>(2 * kEnd * kPerUnit) + 2> values_{};
};

struct Rank {
  double mean, deviation, skew6;  // a sixth of the skewness
};

/// Standard normal z that x corresponds to: the Cornish-Fisher expansion to the third moment, solved.
double normal_of(const Rank& rank, double x) {
  const double z = (x - rank.mean) / rank.deviation;
  if (rank.skew6 < 1e-6) return z;
  const double inside = 1 + 4 * rank.skew6 * (rank.skew6 + z);
  return inside <= 0 ? -8.0 : (std::sqrt(inside) - 1) / (2 * rank.skew6);
}

}  // namespace

void rank_moments(const experts::Shape& shape, std::span<const std::int32_t> map,
                  std::span<const double> slot_shares, std::span<const double> popularity,
                  std::span<RankMoments> out) {
  std::vector<double> held(popularity.size());
  const auto width = static_cast<std::size_t>(shape.slots_per_rank());
  for (std::size_t rank = 0; rank < out.size(); ++rank) {
    const auto slots = map.subspan(rank * width, width);
    for (std::size_t i = 0; i < width; ++i)
      held[static_cast<std::size_t>(slots[i])] += slot_shares[rank * width + i];
    RankMoments moments;
    for (const std::int32_t expert : slots) {
      double& share = held[static_cast<std::size_t>(expert)];
      const double load = share * popularity[static_cast<std::size_t>(expert)];
      moments.first += load;
      moments.second += load * share;
      moments.third += load * share * share;
      share = 0;
    }
    out[rank] = moments;
  }
}

double expected_peak(std::span<const RankMoments> ranks, double choices, double error_ratio) {
  constexpr int kPoints = 32;
  static const NormalTable normal;
  if (choices <= 0 || ranks.size() < 2) return 1;
  double sum = 0, from = 0, to = 0;
  std::vector<Rank> loads;
  loads.reserve(ranks.size());
  for (const RankMoments& rank : ranks) {
    sum += rank.first;
    // Multinomial ranks are independent Poisson ones less what all have in common, which moves no maximum.
    const double variance = choices * std::max(rank.second, 1e-18);
    const double deviation = std::sqrt(variance * (1 + error_ratio));
    const double skew = choices * rank.third / (variance * std::sqrt(variance));
    loads.push_back({choices * rank.first, deviation, skew / 6});
    // Below the first bound the maximum has no weight, above the second nothing but weight.
    from = std::max(from, choices * rank.first - 4 * deviation);
    to = std::max(to, choices * rank.first + 5 * deviation + 2 * skew * deviation);
  }
  std::erase_if(loads, [&](const Rank& rank) { return rank.mean + 7 * rank.deviation < from; });
  const double width = (to - from) / kPoints;
  double above = 0;
  for (int i = 0; i <= kPoints; ++i) {
    const double x = from + width * i;
    double below = 1;
    for (const Rank& rank : loads) {
      below *= normal.at(normal_of(rank, x));
      if (below < 1e-9) break;
    }
    above += (i == 0 || i == kPoints ? 0.5 : 1.0) * (1 - below);
  }
  const double mean = choices * sum / static_cast<double>(ranks.size());
  return std::max((from + above * width) / mean, 1.0);
}

double drawn_peak(const experts::Shape& shape, std::span<const std::int32_t> map,
                  std::span<const double> slot_shares, std::span<const std::int64_t> counts) {
  const auto width = static_cast<std::size_t>(shape.slots_per_rank());
  double peak = 0, sum = 0;
  for (std::size_t first = 0; first < map.size(); first += width) {
    double load = 0;
    for (std::size_t slot = first; slot < first + width; ++slot)
      load += slot_shares[slot] * static_cast<double>(counts[static_cast<std::size_t>(map[slot])]);
    peak = std::max(peak, load);
    sum += load;
  }
  return sum > 0 ? peak * shape.ranks / sum : 1;
}

}  // namespace trimtab::sim
