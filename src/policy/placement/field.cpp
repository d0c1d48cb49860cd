#include "policy/placement/field.h"

#include <algorithm>

#include "base/check.h"

namespace trimtab::placement {
namespace {

bool is_prime(std::uint32_t n) {
  if (n < 2) return false;
  for (std::uint32_t d = 2; d * d <= n; ++d)
    if (n % d == 0) return false;
  return true;
}

/// The prime whose square is n, or 0.
std::uint32_t prime_root(std::uint32_t n) {
  for (std::uint32_t p = 3; p * p <= n; ++p)
    if (p * p == n && is_prime(p)) return p;
  return 0;
}

}  // namespace

bool Field::exists(std::uint32_t size) { return is_prime(size) || prime_root(size) != 0; }

Field::Field(std::uint32_t size) : size_(size), prime_(is_prime(size) ? size : prime_root(size)) {
  TRIMTAB_CHECK(exists(size));
  std::vector<bool> square(prime_, false);
  for (std::uint32_t a = 1; a < prime_; ++a) square[a * a % prime_] = true;
  for (non_residue_ = 1; non_residue_ < prime_ && square[non_residue_];) ++non_residue_;
  for (generator_ = 1; generator_ < size_; ++generator_) {
    std::uint32_t order = 1;
    for (std::uint32_t a = generator_; a != 1; a = multiply(a, generator_)) ++order;
    if (order == size_ - 1) break;
  }
}

std::uint32_t Field::add(std::uint32_t a, std::uint32_t b) const {
  return (a % prime_ + b % prime_) % prime_ + (a / prime_ + b / prime_) % prime_ * prime_;
}

std::uint32_t Field::negative(std::uint32_t a) const {
  return (prime_ - a % prime_) % prime_ + (prime_ - a / prime_) % prime_ * prime_;
}

std::uint32_t Field::multiply(std::uint32_t a, std::uint32_t b) const {
  const std::uint64_t a0 = a % prime_, a1 = a / prime_, b0 = b % prime_, b1 = b / prime_;
  const std::uint64_t low = (a0 * b0 + a1 * b1 % prime_ * non_residue_) % prime_;
  const std::uint64_t high = (a0 * b1 + a1 * b0) % prime_;
  return static_cast<std::uint32_t>(low + high * prime_);
}

std::uint32_t Field::power(std::uint32_t a, std::uint32_t exponent) const {
  std::uint32_t result = 1;
  for (; exponent > 0; exponent /= 2, a = multiply(a, a))
    if (exponent % 2 == 1) result = multiply(result, a);
  return result;
}

}  // namespace trimtab::placement
