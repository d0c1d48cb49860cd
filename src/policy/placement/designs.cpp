#include "policy/placement/designs.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/check.h"
#include "policy/placement/field.h"

namespace trimtab::placement {
namespace {

using Points = std::vector<std::uint32_t>;

Stripe stripe_of(const Points& points) {
  TRIMTAB_CHECK(points.size() == kShards);
  Stripe stripe{};
  std::ranges::transform(points, stripe.begin(), [](std::uint32_t p) { return static_cast<NodeId>(p); });
  return stripe;
}

/// Every translate of every base block.
Design develop(const Field& field, const std::vector<Points>& base, std::string how) {
  Design design{{}, std::move(how)};
  for (const Points& block : base) {
    for (std::uint32_t shift = 0; shift < field.size(); ++shift) {
      Points moved;
      for (const std::uint32_t point : block) moved.push_back(field.add(point, shift));
      design.groups.push_back(stripe_of(moved));
    }
  }
  return design;
}

Points complement(const Points& points, std::uint32_t nodes) {
  Points rest;
  for (std::uint32_t p = 0; p < nodes; ++p)
    if (std::ranges::find(points, p) == points.end()) rest.push_back(p);
  return rest;
}

/// The coset of the subgroup of `order` that holds generator^power.
Points coset(const Field& field, std::uint32_t order, std::uint32_t power) {
  const std::uint32_t step = field.power(field.generator(), (field.size() - 1) / order);
  Points points{field.power(field.generator(), power)};
  while (points.size() < order) points.push_back(field.multiply(points.back(), step));
  return points;
}

Design all_but_one() {
  Design design{{}, "all twelve of thirteen"};
  for (std::uint32_t out = 0; out < 13; ++out) design.groups.push_back(stripe_of(complement({out}, 13)));
  return design;
}

/// Over GF(4) = {0, 1, w, w + 1} as bits; addition is xor.
Design affine_plane_of_four() {
  constexpr std::array<std::array<std::uint32_t, 4>, 4> kTimes{
      {{0, 0, 0, 0}, {0, 1, 2, 3}, {0, 2, 3, 1}, {0, 3, 1, 2}}};
  Design design{{}, "complements of the lines of the affine plane of order 4"};
  for (std::uint32_t slope = 0; slope < 5; ++slope) {
    for (std::uint32_t offset = 0; offset < 4; ++offset) {
      Points line;
      for (std::uint32_t t = 0; t < 4; ++t)
        line.push_back(slope == 4 ? offset * 4 + t : t * 4 + (kTimes[slope][t] ^ offset));
      design.groups.push_back(stripe_of(complement(line, 16)));
    }
  }
  return design;
}

/// {0} and the non-residues mod 23, developed.
std::vector<Points> paley_23() {
  const Field field(23);
  Points block = coset(field, 11, 1);
  block.push_back(0);
  std::vector<Points> blocks;
  for (std::uint32_t shift = 0; shift < 23; ++shift) {
    blocks.emplace_back();
    for (const std::uint32_t point : block) blocks.back().push_back(field.add(point, shift));
  }
  return blocks;
}

/// The complement of a block of 12 has 11 points; the 24th joins it.
Design hadamard_24() {
  Design design{{}, "Hadamard 3-design of the residues mod 23"};
  for (const Points& block : paley_23()) {
    design.groups.push_back(stripe_of(block));
    design.groups.push_back(stripe_of(complement(block, 24)));
  }
  return design;
}

/// Points are (a, b, k) of Z3 x Z3 x Z5 as a + 3 b + 9 k.
Design mcfarland_45() {
  constexpr std::array<std::array<std::uint32_t, 2>, 4> kDirections{{{1, 0}, {0, 1}, {1, 1}, {1, 2}}};
  Design design{{}, "difference set of McFarland in Z3 x Z3 x Z5"};
  for (std::uint32_t shift = 0; shift < 45; ++shift) {
    Points block;
    for (std::uint32_t line = 0; line < 4; ++line) {
      for (std::uint32_t t = 0; t < 3; ++t) {
        const std::uint32_t a = (t * kDirections[line][0] + shift) % 3;
        const std::uint32_t b = (t * kDirections[line][1] + shift / 3) % 3;
        block.push_back(a + 3 * b + 9 * ((line + shift / 9) % 5));
      }
    }
    design.groups.push_back(stripe_of(block));
  }
  return design;
}

Design projective_plane_of_eleven() {
  using Triple = std::array<std::uint32_t, 3>;
  std::vector<Triple> triples;  // of points and of lines: the first coordinate that is not 0 is 1
  for (std::uint32_t a = 0; a < 11; ++a)
    for (std::uint32_t b = 0; b < 11; ++b) triples.push_back({1, a, b});
  for (std::uint32_t a = 0; a < 11; ++a) triples.push_back({0, 1, a});
  triples.push_back({0, 0, 1});
  Design design{{}, "projective plane of order 11"};
  for (const Triple& line : triples) {
    Points points;
    for (std::uint32_t p = 0; p < triples.size(); ++p) {
      const Triple& point = triples[p];
      if ((line[0] * point[0] + line[1] * point[1] + line[2] * point[2]) % 11 == 0) points.push_back(p);
    }
    design.groups.push_back(stripe_of(points));
  }
  return design;
}

/// One of each coset of order 11 and its negative, with zero.
Design half_cosets(std::uint32_t nodes) {
  const Field field(nodes);
  std::vector<Points> base;
  for (std::uint32_t power = 0; power < (nodes - 1) / 22; ++power) {
    // -1 lies in coset (q - 1) / 22 of (q - 1) / 11: the first half holds one of each pair.
    base.push_back(coset(field, 11, power));
    base.back().push_back(0);
  }
  return develop(field, base, fmt::format("{{0}} and half of the cosets of order 11 in GF({})", nodes));
}

Design cosets_of_twelve(std::uint32_t nodes) {
  const Field field(nodes);
  std::vector<Points> base;
  for (std::uint32_t power = 0; power < (nodes - 1) / 12; ++power) base.push_back(coset(field, 12, power));
  return develop(field, base, fmt::format("cosets of order 12 in GF({})", nodes));
}

}  // namespace

std::optional<Design> exact_design(std::uint32_t nodes) {
  if (nodes == 13) return all_but_one();
  if (nodes == 16) return affine_plane_of_four();
  if (nodes == 24) return hadamard_24();
  if (nodes == 45) return mcfarland_45();
  if (nodes == 133) return projective_plane_of_eleven();
  if (nodes > 13 && Field::exists(nodes)) {
    if (nodes % 22 == 1) return half_cosets(nodes);
    if (nodes % 12 == 1) return cosets_of_twelve(nodes);
  }
  return {};
}

}  // namespace trimtab::placement
