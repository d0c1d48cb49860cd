#pragma once

#include <array>
#include <cstdint>

#include "base/units.h"

namespace trimtab::kv_store {

/// The distribution of a target's latest answer times: a histogram with four buckets an octave (a quantile is
/// right to 19 %), whose counts are halved whenever they reach `kMemory`, so that about the last thousand
/// answers count. O(1) to add, O(buckets) to ask. Integers only.
class Latency {
 public:
  void add(base::Nanos span);
  /// The upper edge of the bucket with the `per_mille`-th thousandth; `otherwise` below `kEnough` answers.
  base::Nanos quantile(std::uint32_t per_mille, base::Nanos otherwise) const;
  std::uint32_t count() const { return total_; }

 private:
  static constexpr std::uint32_t kMemory = 1'024, kEnough = 8, kBuckets = 160;
  static std::uint32_t bucket(std::int64_t span_ns);
  static std::int64_t upper_edge(std::uint32_t bucket);

  std::array<std::uint16_t, kBuckets> counts_{};
  std::uint32_t total_ = 0;
};

}  // namespace trimtab::kv_store
