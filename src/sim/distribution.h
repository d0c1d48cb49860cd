#pragma once

#include <cstdint>
#include <vector>

#include "base/units.h"

namespace trimtab::sim {

/// A distribution of times in bounded memory: logarithmic buckets of 1/128 of an octave (0.54 % wide) from 1
/// us to 6 days; a quantile is right to half a bucket. Sums are exact.
class Distribution {
 public:
  void add(base::Nanos value);
  void add(const Distribution& other);
  std::uint64_t count() const { return count_; }
  double mean_s() const { return count_ == 0 ? 0.0 : sum_s_ / static_cast<double>(count_); }
  /// q in [0, 1]; 0 without values.
  double quantile_s(double q) const;
  double largest_s() const { return base::to_seconds(largest_); }
  /// Share of the values that are at most `limit` (to half a bucket).
  double share_within(base::Nanos limit) const;

 private:
  static std::size_t bucket(base::Nanos value);
  std::vector<std::uint64_t> buckets_;
  std::uint64_t count_ = 0;
  double sum_s_ = 0;
  base::Nanos largest_;
};

}  // namespace trimtab::sim
