#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "policy/experts/dispatch/shares.h"
#include "policy/experts/types.h"

namespace trimtab::experts {

/// Parts that a whole expert is divided into; a power of two.
inline constexpr std::int32_t kShareParts = 64, kPartsMax = 256;
/// Choices of one expert that one rank can split in a step.
inline constexpr std::int64_t kTokensMax = (std::int64_t{1} << 31) - 1;

/// Where rank g starts in the copies of expert e: frac((g + 1/2) * 0.6180 + e * 0.7549) in 2^-24ths, from the
/// golden ratio and the plastic number's reciprocals, so that the ranks' roundings spread instead of adding
/// up. Integer arithmetic: alike on all machines.
constexpr std::uint32_t share_phase(std::int32_t rank, std::int32_t expert) {
  constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15ULL, kPlastic = 0xc13fa9a902a6328fULL;
  const std::uint64_t turn = static_cast<std::uint64_t>(rank) * kGolden + kGolden / 2 +
                             static_cast<std::uint64_t>(expert) * kPlastic;
  return static_cast<std::uint32_t>(turn >> 40);
}

/// How many of `tokens` choices a rank sends before the boundary that lies at `part` of `parts`: choice i
/// lies at (i + phase) / tokens. `parts` is a power of two. The whole rule of
/// dispatch rests on this.
constexpr std::int64_t choices_below(std::int64_t tokens, std::int32_t part, std::int32_t parts,
                                     std::uint32_t phase) {
  const int bits = 24 + std::countr_zero(static_cast<std::uint32_t>(parts));
  const std::int64_t reach = ((tokens * part) << 24) - static_cast<std::int64_t>(phase) * parts;
  return reach <= 0 ? 0 : (reach + ((std::int64_t{1} << bits) - 1)) >> bits;
}

/// Shares of one layer in `parts`-ths, as every rank holds them to split its own tokens without talk.
///
/// Quantising: largest remainder (Hamilton), ties to the lower slot, so each part is off by less than 1 and
/// the parts of an expert add up to `parts`. Splitting: see choices_below; a rank needs only its own count of
/// the expert, and sends each copy its exact share rounded up or down. Bound: no rank carries more than the
/// peak of the shares + the sum over its replicated copies of (tokens of the expert / parts + source ranks).
class ShareTable {
 public:
  /// Even shares to begin with. `copies_max`: columns, at least the most copies in the map (0: just that).
  /// Errors: illegal shape or map; parts not a power of two in [2, 256]; too few columns.
  static base::Result<ShareTable> make(const Shape& shape, std::span<const std::int32_t> map,
                                       std::int32_t copies_max = 0, std::int32_t parts = kShareParts);

  /// Takes the solver's shares; the solver must have been made for the same map.
  void set(const ShareSolver& solver) { set(solver.flow()); }
  void set(const ShareFlow& flow);
  /// One expert's row from any parts, one for each of its hosts in the flow's order, not negative.
  void set_row(const ShareFlow& flow, std::int32_t expert, std::span<const std::int64_t> units);

  std::int32_t parts() const { return parts_; }
  std::int32_t copies_max() const { return copies_max_; }
  /// [experts, copies_max]: parts of each copy, columns as in `logical_to_physical`, zero behind the last.
  std::span<const std::uint16_t> table() const { return table_; }
  std::span<const std::uint16_t> parts_of(std::int32_t expert) const {
    const auto width = static_cast<std::size_t>(copies_max_);
    return {table_.data() + static_cast<std::size_t>(expert) * width, width};
  }
  std::span<const std::int32_t> slots_of(std::int32_t expert) const;

  /// Slot of choice `choice` of the `tokens` that rank `rank` routes to the expert in this step. Needs
  /// 0 <= choice < tokens < 2^31.
  std::int32_t slot_of(std::int32_t expert, std::int32_t rank, std::int64_t choice,
                       std::int64_t tokens) const;
  /// Tokens that the rank sends to each copy (columns as above), adding up to `tokens`. `out`: [copies_max].
  void split(std::int32_t expert, std::int32_t rank, std::int64_t tokens, std::span<std::int64_t> out) const;

 private:
  Shape shape_;
  std::int32_t parts_ = kShareParts, copies_max_ = 0;
  std::vector<std::uint16_t> table_;
  std::vector<std::int32_t> slots_, first_;  // slots by expert, ascending; first_ [experts + 1]
  std::vector<std::int32_t> column_;         // of each slot
  std::vector<std::int64_t> units_;
  std::vector<std::pair<std::int64_t, std::int32_t>> remainders_;
};

}  // namespace trimtab::experts
