#include "base/prng.h"

#include <cmath>
#include <numbers>

#include "base/check.h"

namespace trimtab::base {

namespace {

std::uint64_t split_mix(std::uint64_t& state) {
  state += 0x9e3779b97f4a7c15ULL;
  std::uint64_t z = state;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

constexpr std::uint64_t rotate_left(std::uint64_t x, int k) { return (x << k) | (x >> (64 - k)); }

}  // namespace

Prng::Prng(std::uint64_t seed) : Prng(seed, 0) {}

Prng::Prng(std::uint64_t seed, std::uint64_t stream) {
  std::uint64_t mixed = seed;
  std::uint64_t salt = stream ^ 0xd1b54a32d192ed03ULL;
  std::uint64_t state = split_mix(mixed) ^ split_mix(salt);
  for (std::uint64_t& word : state_) word = split_mix(state);
}

std::uint64_t Prng::next() {
  const std::uint64_t result = rotate_left(state_[1] * 5, 7) * 9;
  const std::uint64_t t = state_[1] << 17;
  state_[2] ^= state_[0];
  state_[3] ^= state_[1];
  state_[1] ^= state_[2];
  state_[0] ^= state_[3];
  state_[2] ^= t;
  state_[3] = rotate_left(state_[3], 45);
  return result;
}

std::uint64_t Prng::below(std::uint64_t bound) {
  TRIMTAB_CHECK(bound > 0);
  unsigned __int128 product = static_cast<unsigned __int128>(next()) * bound;
  auto low = static_cast<std::uint64_t>(product);
  if (low < bound) {
    const std::uint64_t threshold = -bound % bound;
    while (low < threshold) {
      product = static_cast<unsigned __int128>(next()) * bound;
      low = static_cast<std::uint64_t>(product);
    }
  }
  return static_cast<std::uint64_t>(product >> 64);
}

double Prng::uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

double Prng::normal() {
  const double u = 1.0 - uniform();
  const double v = uniform();
  return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
}

double Prng::exponential(double mean) { return -mean * std::log(1.0 - uniform()); }

}  // namespace trimtab::base
