#include "sim/distribution.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace trimtab::sim {
namespace {

// A bucket is an octave of microseconds and the next 7 bits of the value, linear inside the octave.
constexpr unsigned kBits = 7;

double lower_edge_s(std::size_t bucket) {
  const double octave = std::ldexp(1e-6, static_cast<int>(bucket >> kBits));
  const double part = static_cast<double>(bucket & ((1U << kBits) - 1)) / static_cast<double>(1U << kBits);
  return octave * (1.0 + part);
}

}  // namespace

std::size_t Distribution::bucket(base::Nanos value) {
  const auto scaled =
      static_cast<std::uint64_t>(std::max<std::int64_t>(value.value, 1'000)) * (1U << kBits) / 1'000;
  const auto octave = static_cast<unsigned>(std::bit_width(scaled)) - kBits - 1;
  return (static_cast<std::size_t>(octave) << kBits) | ((scaled >> octave) & ((1U << kBits) - 1));
}

void Distribution::add(base::Nanos value) {
  const std::size_t at = bucket(value);
  if (at >= buckets_.size()) buckets_.resize(at + 1);
  ++buckets_[at];
  ++count_;
  sum_s_ += base::to_seconds(value);
  largest_ = std::max(largest_, value);
}

void Distribution::add(const Distribution& other) {
  if (other.buckets_.size() > buckets_.size()) buckets_.resize(other.buckets_.size());
  for (std::size_t i = 0; i < other.buckets_.size(); ++i) buckets_[i] += other.buckets_[i];
  count_ += other.count_;
  sum_s_ += other.sum_s_;
  largest_ = std::max(largest_, other.largest_);
}

double Distribution::quantile_s(double q) const {
  if (count_ == 0) return 0;
  const auto rank = static_cast<std::uint64_t>(std::ceil(q * static_cast<double>(count_)));
  std::uint64_t seen = 0;
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    seen += buckets_[i];
    if (seen >= std::max<std::uint64_t>(rank, 1)) {
      return std::min((lower_edge_s(i) + lower_edge_s(i + 1)) / 2, largest_s());
    }
  }
  return largest_s();
}

double Distribution::share_within(base::Nanos limit) const {
  if (count_ == 0) return 1;
  const std::size_t last = bucket(limit);
  std::uint64_t seen = 0;
  for (std::size_t i = 0; i < buckets_.size() && i <= last; ++i) seen += buckets_[i];
  return static_cast<double>(seen) / static_cast<double>(count_);
}

}  // namespace trimtab::sim
