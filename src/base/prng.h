#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <utility>

namespace trimtab::base {

/// xoshiro256** by Blackman and Vigna, seeded through SplitMix64. The same seed gives the same stream on
/// every machine, which
/// `<random>` does not promise for its distributions. Not for secrets.
class Prng {
 public:
  explicit Prng(std::uint64_t seed);

  /// An independent generator for a component: the same (seed, stream) gives the same numbers whatever others
  /// draw.
  Prng(std::uint64_t seed, std::uint64_t stream);

  std::uint64_t next();
  /// Uniform in [0, bound), without bias (Lemire's method). `bound` must be positive.
  std::uint64_t below(std::uint64_t bound);
  /// Uniform in [0, 1), 53 bits.
  double uniform();
  /// Normal(0, 1), Box-Muller, one value a call.
  double normal();
  /// Exponential with the given mean.
  double exponential(double mean);

  template <class T>
  void shuffle(std::span<T> values) {
    for (std::size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[below(i)]);
  }

 private:
  std::array<std::uint64_t, 4> state_;
};

}  // namespace trimtab::base
