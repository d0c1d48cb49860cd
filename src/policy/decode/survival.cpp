#include "policy/decode/survival.h"

#include <algorithm>
#include <bit>

namespace trimtab::policy {
namespace {

constexpr std::int64_t kAgeMax = std::int64_t{1} << 24;

}  // namespace

SurvivalTable::SurvivalTable(std::int64_t horizon_tokens, std::int64_t prior_mean_tokens)
    : horizon_(horizon_tokens), horizon_now_(horizon_tokens) {
  all_ = {std::max<std::int64_t>(1, prior_mean_tokens) * kPriorEnds, kPriorEnds};
  refresh();
  refreshed_ = false;
}

std::uint32_t SurvivalTable::span_of(std::int64_t age_tokens) {
  const auto age = static_cast<std::uint64_t>(std::clamp<std::int64_t>(age_tokens, 0, kAgeMax));
  if (age < 8) return static_cast<std::uint32_t>(age);
  const auto octave = static_cast<std::uint32_t>(std::bit_width(age)) - 4;  // 8 ... 15 is the first
  return 8 + octave * 4 + static_cast<std::uint32_t>((age >> (octave + 1)) & 3);
}

void SurvivalTable::streamed(std::int64_t age_tokens, std::int64_t n) {
  all_.exposure += n;
  // A burst longer than a span is rare; it is booked where it begins.
  spans_[span_of(age_tokens)].exposure += n;
}

void SurvivalTable::ended(std::int64_t age_tokens) {
  all_.ends += 1;
  spans_[span_of(age_tokens)].ends += 1;
  if (++since_fade_ == kHalfLifeEnds) {
    since_fade_ = 0;
    for (Span& span : spans_) span = {span.exposure / 2, span.ends / 2};
    all_ = {std::max<std::int64_t>(1, all_.exposure / 2), std::max<std::int64_t>(1, all_.ends / 2)};
  }
  if (++since_refresh_ == kRefreshEnds) {
    since_refresh_ = 0;
    refresh();
  }
}

std::int64_t SurvivalTable::mean_tokens() const {
  return std::max<std::int64_t>(1, all_.exposure / all_.ends);
}

void SurvivalTable::refresh() {
  const std::int64_t mean = mean_tokens();
  horizon_now_ = std::min(horizon_, std::max<std::int64_t>(1, mean / 64));
  const auto stays = [&](const Span& span) {  // one token more
    return kOne - std::min(kOne, (span.ends + kPriorEnds) * kOne / (span.exposure + kPriorEnds * mean));
  };
  std::array<std::int64_t, kSpans> one{};
  for (std::uint32_t i = 0; i < kSpans; ++i) one[i] = stays(spans_[i]);
  const std::int64_t one_any = stays({});
  survives_any_ = kOne;
  for (std::int64_t j = 0; j < horizon_now_; ++j) survives_any_ = survives_any_ * one_any / kOne;
  // From the first age of each span, through those that follow within the horizon.
  for (std::uint32_t i = 0; i < kSpans; ++i) {
    survives_[i] = kOne;
    for (std::int64_t j = 0; j < horizon_now_; ++j)
      survives_[i] = survives_[i] * one[span_of(first_age(i) + j)] / kOne;
  }
  refreshed_ = true;
}

std::int64_t SurvivalTable::first_age(std::uint32_t span) {
  if (span < 8) return span;
  const std::uint32_t octave = (span - 8) / 4;
  return static_cast<std::int64_t>(4 + (span - 8) % 4) << (octave + 1);
}

bool SurvivalTable::take_refreshed() {
  const bool was = refreshed_;
  refreshed_ = false;
  return was;
}

}  // namespace trimtab::policy
