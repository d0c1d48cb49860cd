#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace trimtab::base {

/// A quantity with a unit. Same units add and compare; different units do not convert. Scaling takes a plain
/// integer.
template <class Tag>
struct Quantity {
  std::int64_t value = 0;

  constexpr Quantity() = default;
  constexpr explicit Quantity(std::int64_t v) : value(v) {}

  constexpr auto operator<=>(const Quantity&) const = default;
  constexpr Quantity operator+(Quantity o) const { return Quantity{value + o.value}; }
  constexpr Quantity operator-(Quantity o) const { return Quantity{value - o.value}; }
  constexpr Quantity operator-() const { return Quantity{-value}; }
  constexpr Quantity operator*(std::int64_t k) const { return Quantity{value * k}; }
  constexpr Quantity operator/(std::int64_t k) const { return Quantity{value / k}; }
  constexpr std::int64_t operator/(Quantity o) const { return value / o.value; }
  constexpr Quantity& operator+=(Quantity o) {
    value += o.value;
    return *this;
  }
  constexpr Quantity& operator-=(Quantity o) {
    value -= o.value;
    return *this;
  }
};

/// An identity. Ids of different kinds do not mix, and an id is no number to calculate with.
template <class Tag, class Rep = std::uint32_t>
struct Id {
  Rep value = 0;

  constexpr Id() = default;
  constexpr explicit Id(Rep v) : value(v) {}
  constexpr auto operator<=>(const Id&) const = default;
};

}  // namespace trimtab::base

template <class Tag, class Rep>
struct std::hash<trimtab::base::Id<Tag, Rep>> {
  std::size_t operator()(trimtab::base::Id<Tag, Rep> id) const noexcept { return std::hash<Rep>{}(id.value); }
};
