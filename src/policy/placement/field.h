#pragma once

#include <cstdint>
#include <vector>

namespace trimtab::placement {

/// The finite field of p or p^2 elements, p an odd prime; elements are 0 .. size - 1, a + b p for a + b x
/// with x^2 a fixed non-residue.
class Field {
 public:
  /// `size` must be a prime or the square of an odd prime (`exists`).
  explicit Field(std::uint32_t size);
  static bool exists(std::uint32_t size);

  std::uint32_t size() const { return size_; }
  std::uint32_t add(std::uint32_t a, std::uint32_t b) const;
  std::uint32_t multiply(std::uint32_t a, std::uint32_t b) const;
  std::uint32_t negative(std::uint32_t a) const;
  std::uint32_t power(std::uint32_t a, std::uint32_t exponent) const;
  /// The least element that generates all others but zero.
  std::uint32_t generator() const { return generator_; }

 private:
  std::uint32_t size_, prime_, non_residue_ = 0, generator_ = 0;
};

}  // namespace trimtab::placement
