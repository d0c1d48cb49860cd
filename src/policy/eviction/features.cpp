#include "policy/eviction/features.h"

#include <algorithm>

namespace trimtab::eviction {
namespace {

template <std::size_t n>
std::uint8_t bucket(std::int64_t value, const std::array<std::int64_t, n>& bounds) {
  return static_cast<std::uint8_t>(std::ranges::upper_bound(bounds, value) - bounds.begin());
}
constexpr std::array<std::int64_t, 7> kUses{1, 2, 3, 5, 9, 17, 33};
constexpr std::array<std::int64_t, 8> kGapSeconds{8, 16, 30, 60, 100, 150, 250, 500};
constexpr std::array<std::int64_t, 3> kChildren{1, 2, 9};
constexpr std::array<std::int64_t, 7> kAdded{2, 4, 8, 16, 64, 128, 256};
constexpr std::array<std::int64_t, 11> kPrompt{2, 4, 8, 16, 32, 64, 128, 512, 1'024, 2'048, 4'096};
constexpr std::array<std::int64_t, 10> kAnswer{2, 8, 32, 80, 160, 250, 350, 500, 700, 1'500};

constexpr std::uint32_t kUsesBuckets = kUses.size() + 1, kGaps = kGapSeconds.size() + 2,
                        kChildrenBuckets = kChildren.size() + 1, kAddedBuckets = kAdded.size() + 1,
                        kPrompts = kPrompt.size() + 1, kAnswers = kAnswer.size() + 2;

struct Rows {
  Features out{};
  std::uint32_t feature = 0, count = 0;
  constexpr void add(std::uint32_t value, std::uint32_t values) {
    out[feature++] = static_cast<std::uint16_t>(count + value);
    count += values;
  }
};

/// Pairs where one changes what the other says: a long answer means more in a first turn than in a tenth.
constexpr Rows rows_of(const Traits& of) {
  Rows rows;
  const std::uint32_t branch = of.branch ? 1 : 0;
  rows.add((of.uses * 2U + (of.end ? 1 : 0)) * 2 + branch, kUsesBuckets * 4);
  rows.add(of.turn * kUsesBuckets + of.uses, kUsesBuckets * kUsesBuckets);
  rows.add(of.turn * kAddedBuckets + of.added, kUsesBuckets * kAddedBuckets);
  rows.add(of.gap * kUsesBuckets + of.uses, kGaps * kUsesBuckets);
  rows.add(of.pace, kPaces);
  rows.add(of.prompt, kPrompts);
  rows.add(of.answer * kGaps + of.since, kAnswers * kGaps);
  rows.add(of.answer * kAnswers + of.answer_before, kAnswers * kAnswers);
  rows.add(of.answer * kUsesBuckets + of.turn, kAnswers * kUsesBuckets);
  rows.add(of.answer * kPaces + of.pace, kAnswers * kPaces);
  rows.add((of.children * kUsesBuckets + of.uses) * 2 + branch, kChildrenBuckets * kUsesBuckets * 2);
  rows.add(of.answer * kAddedBuckets + of.added, kAnswers * kAddedBuckets);
  return rows;
}
static_assert(rows_of({}).feature == kFeatures && rows_of({}).count <= UINT16_MAX);

}  // namespace

std::uint8_t uses_bucket(std::uint32_t uses) { return bucket(uses, kUses); }
std::uint8_t gap_bucket(Nanos gap) {
  if (gap.value < 0) return 0;
  return static_cast<std::uint8_t>(bucket(gap.value / 1'000'000'000, kGapSeconds) + 1);
}
std::uint8_t children_bucket(std::uint32_t children) { return bucket(children, kChildren); }
std::uint8_t added_bucket(std::int64_t blocks) { return bucket(blocks, kAdded); }
std::uint8_t prompt_bucket(std::int64_t blocks) { return bucket(blocks, kPrompt); }
std::uint8_t answer_bucket(std::int64_t tokens) {
  return static_cast<std::uint8_t>(bucket(tokens, kAnswer) + 1);
}

Features features_of(const Traits& traits) { return rows_of(traits).out; }
std::uint32_t feature_rows() { return rows_of({}).count; }

}  // namespace trimtab::eviction
