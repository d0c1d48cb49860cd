#pragma once

#include <array>
#include <cstdint>

namespace trimtab::policy {

/// How likely a request that has generated `age` tokens still runs a few tokens later, learnt from the
/// streams themselves. For each span of ages it keeps the tokens streamed there (exposure) and the ends seen
/// there: ends over exposure is the hazard. Requests that still run count with every token that they have
/// streamed, which is what Kaplan and Meier do with censored lives (J. Am. Stat. Assoc. 53, 1958), here with
/// a constant hazard inside a span (a request is taken to be at the first age of its span). Counts fade by
/// half every kHalfLife ends, so the table follows the traffic. Where little was seen, a geometric length of
/// the overall mean is assumed (a prior worth one end).
///
/// "A few" is `horizon_tokens`, but at most a 64th of the mean length (and at least one): where answers have
/// dozens of tokens, four are too many (measured: 93.4 against 91.5 points on the Azure code trace).
///
/// Integers only: every machine learns the same table. Cost: O(1) per token; a refresh O(spans).
class SurvivalTable {
 public:
  static constexpr std::int64_t kOne = 1 << 20;  // probabilities are in parts of this

  explicit SurvivalTable(std::int64_t horizon_tokens, std::int64_t prior_mean_tokens = 300);

  /// Spans of ages: exact below 8, then four to the octave.
  static std::uint32_t span_of(std::int64_t age_tokens);
  static std::int64_t first_age(std::uint32_t span);

  /// `n` tokens came after the first `age`.
  void streamed(std::int64_t age_tokens, std::int64_t n);
  void ended(std::int64_t age_tokens);

  /// P(runs `horizon` tokens later | runs at this age).
  std::int64_t survives(std::int64_t age_tokens) const { return survives_[span_of(age_tokens)]; }
  /// The same for a request of unknown age: geometric with the overall mean.
  std::int64_t survives_any() const { return survives_any_; }
  std::int64_t mean_tokens() const;
  /// The horizon in force.
  std::int64_t horizon_tokens() const { return horizon_now_; }
  /// True once after enough was learnt that `survives` changed: what was computed from it is out of date.
  bool take_refreshed();

 private:
  static constexpr std::uint32_t kSpans = 96;
  static constexpr std::int64_t kRefreshEnds = 256, kHalfLifeEnds = 16'384, kPriorEnds = 1;
  struct Span {
    std::int64_t exposure = 0, ends = 0;
  };
  void refresh();

  std::int64_t horizon_, horizon_now_;
  std::array<Span, kSpans> spans_{};
  std::array<std::int64_t, kSpans> survives_{};
  std::int64_t survives_any_ = kOne;
  Span all_;
  std::int64_t since_refresh_ = 0, since_fade_ = 0;
  bool refreshed_ = false;
};

}  // namespace trimtab::policy
