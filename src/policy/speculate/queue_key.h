#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "policy/speculate/types.h"

/// One draft as a number that sorts likeliest first, ties by flat index: bits of a float in [0, 1] order like
/// the float. The host's limits (kDraftsMax, requests of a rank) keep the flat index below 2^32.
namespace trimtab::policy::queue_key {

inline std::uint64_t make(float rate, std::uint32_t request, std::uint32_t draft) {
  const std::uint32_t likelier_is_less = ~std::bit_cast<std::uint32_t>(rate + 0.0F);  // -0 becomes 0
  return std::uint64_t{likelier_is_less} << 32 | (request * std::uint32_t{kDraftsMax} + draft);
}
inline float rate(std::uint64_t key) { return std::bit_cast<float>(~static_cast<std::uint32_t>(key >> 32)); }
inline std::uint32_t request(std::uint64_t key) {
  return static_cast<std::uint32_t>(key) / std::uint32_t{kDraftsMax};
}

/// The rates that a queue uses. Size queue (`previous`): of round N-2, which are the previous ones where the
/// newest round is processed already. Empty ones stand for `unknown`.
struct Rates {
  std::span<const float> known;
  float unknown = 0;
  float operator[](std::size_t j) const { return known.empty() ? unknown : known[j]; }
};

inline Rates rates_of(const DraftView& view, bool previous) {
  TRIMTAB_CHECK(view.drafts >= 0 && view.drafts <= kDraftsMax, std::to_string(view.drafts) + " drafts");
  const bool paired = view.processed == view.scheduled;
  const std::span<const float> known = previous && paired ? view.previous_rates : view.rates;
  TRIMTAB_CHECK(known.empty() || known.size() >= static_cast<std::size_t>(view.drafts),
                std::to_string(known.size()) + " rates for " + std::to_string(view.drafts) + " drafts");
  return {known, view.has_draft || !paired ? 1.0F : 0.0F};
}

/// Takes the `count` likeliest of `queue` (which it reorders) and counts them into `rows`.
inline void count_likeliest(std::vector<std::uint64_t>& queue, std::size_t count,
                            std::vector<std::int32_t>& rows) {
  TRIMTAB_CHECK(count <= queue.size(), std::to_string(count) + " of " + std::to_string(queue.size()));
  if (count > 0 && count < queue.size())
    std::nth_element(queue.begin(), queue.begin() + static_cast<std::ptrdiff_t>(count) - 1, queue.end());
  for (std::size_t i = 0; i < count; ++i) ++rows[request(queue[i])];
}

}  // namespace trimtab::policy::queue_key
