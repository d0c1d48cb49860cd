#include "policy/eviction/kinds.h"

#include <algorithm>
#include <array>

namespace trimtab::eviction {
namespace {

enum Coarse : std::uint8_t { kBranch, kEnd, kFresh, kGrown, kHitOnce, kHitTwice, kHitFew, kHitOften };

template <std::size_t n>
std::uint32_t bucket(std::int64_t value, const std::array<std::int64_t, n>& bounds) {
  return static_cast<std::uint32_t>(std::ranges::upper_bound(bounds, value) - bounds.begin());
}
constexpr std::array<std::int64_t, 7> kAdded{2, 4, 8, 16, 64, 128, 256};
constexpr std::array<std::int64_t, 7> kGapSeconds{8, 30, 60, 100, 150, 250, 500};

Kind make(Coarse coarse, std::uint32_t within) {
  return {static_cast<std::uint16_t>(coarse * kFineOfCoarse + within), static_cast<std::uint8_t>(coarse)};
}

}  // namespace

Kind kind_of(const Traits& traits, const Access& access) {
  const std::int64_t blocks = access.prompt_blocks, known = access.known_blocks;
  const std::uint32_t added = bucket(std::max<std::int64_t>(blocks - known, 0), kAdded);
  if (blocks > 0 && std::int64_t{traits.position} + 1 == blocks) return make(kEnd, added);
  if (traits.uses == 0) {
    if (traits.turn == 0) return make(kFresh, added);
    return make(kGrown, added * 4 + std::min(traits.turn - 1, 3U));
  }
  const std::uint32_t gap = traits.gap.value < 0 ? 0 : bucket(traits.gap.value / 1'000'000'000, kGapSeconds);
  const Coarse coarse = traits.uses == 1   ? kHitOnce
                        : traits.uses == 2 ? kHitTwice
                        : traits.uses <= 4 ? kHitFew
                                           : kHitOften;
  return make(coarse, added * 8 + gap);
}

Kind kind_of_branch(std::uint32_t uses) { return make(kBranch, std::min(uses, 3U)); }

std::vector<std::uint8_t> coarse_of_kinds() {
  std::vector<std::uint8_t> coarse(kFineKinds);
  for (std::uint32_t fine = 0; fine < kFineKinds; ++fine)
    coarse[fine] = static_cast<std::uint8_t>(fine / kFineOfCoarse);
  return coarse;
}

}  // namespace trimtab::eviction
