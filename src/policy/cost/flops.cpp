#include "policy/cost/flops.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"

namespace trimtab::policy {

namespace {

using Wide = unsigned __int128;

constexpr std::int64_t kTokensMax = std::int64_t{1} << 31;
constexpr std::int64_t kNanosPerSecond = 1'000'000'000;

}  // namespace

CappedSum::CappedSum(std::int64_t ratio, std::int64_t cap, bool round_up)
    : ratio_(ratio), cap_(cap), round_up_(round_up) {
  TRIMTAB_CHECK(ratio >= 1 && cap >= 0 && ratio <= kTokensMax && cap <= kTokensMax);
  const auto bits = static_cast<std::uint64_t>(ratio);
  shift_ = std::has_single_bit(bits) ? std::countr_zero(bits) : -1;
  // Below t = ratio * cap (rounding up: up to t = ratio * (cap - 1)) the values 1 .. cap - 1 come `ratio`
  // times each.
  saturated_ = cap == 0 ? INT64_MAX : round_up ? ratio * (cap - 1) : ratio * cap - 1;
  ramp_sum_ = cap == 0 ? 0 : ratio * (cap * (cap - 1) / 2);
}

std::int64_t CappedSum::operator()(std::int64_t n) const {
  if (n <= 0) return 0;
  if (n > saturated_) return ramp_sum_ + cap_ * (n - saturated_);
  const std::int64_t m = divide(n);
  const std::int64_t rest = n - m * ratio_;
  // Values in full groups, then those of the group that n stands in.
  if (round_up_) return ratio_ * (m * (m + 1) / 2) + (m + 1) * rest;
  return ratio_ * (m * (m - 1) / 2) + m * (rest + 1);
}

FlopsForm::FlopsForm(const model::FlopsCost& cost) : cost_(cost), rate_(std::llround(cost.flops_per_second)) {
  TRIMTAB_CHECK(rate_ >= 1, "flops_per_second must be at least 1");
  for (const auto& term : cost.producer_terms) {
    producer_.push_back({CappedSum(term.ratio, term.cap, term.round_up), term.flops, false});
  }
  for (const auto& term : cost.consumer_terms) {
    consumer_.push_back({CappedSum(term.ratio, term.cap, term.round_up), term.flops, term.windowed});
  }
}

std::int64_t FlopsForm::consumer_begin(std::int64_t q, std::int64_t c, std::int64_t prompt) const {
  if (!cost_.compact) return c;
  return c + std::clamp<std::int64_t>(prompt - cost_.keep - c, 0, q - 1);
}

ChunkFlops FlopsForm::flops(std::int64_t q, std::int64_t c, std::int64_t prompt) const {
  TRIMTAB_CHECK(q >= 0 && c >= 0 && c + q <= kTokensMax, "q or c is no token count");
  if (q == 0) return {};
  const std::int64_t end = c + q;
  const std::int64_t first = consumer_begin(q, c, prompt);
  const std::int64_t consumer_rows = end - first;
  std::int64_t attention =
      cost_.compact ? cost_.attention_row_producer * q + cost_.attention_row_consumer * consumer_rows
                    : cost_.attention_row * q;
  for (const Term& term : producer_) attention += term.flops * (term.sum(end) - term.sum(c));
  // With rows dropped, a window of the consumer layers finds no keys before the kept rows. A lone row before
  // them (every chunk runs one) still sees itself.
  const std::int64_t window_begin =
      cost_.compact ? std::min(std::max<std::int64_t>(prompt - cost_.keep, 0), end - 1) : 0;
  for (const Term& term : consumer_) {
    const std::int64_t from = term.windowed ? window_begin : 0;
    attention += term.flops * (term.sum(end - from) - term.sum(first - from));
  }
  attention += cost_.key_projection_ratio1 * q +
               cost_.key_projection_ratio2 * std::max<std::int64_t>(end / 2 - c / 2, 1);
  const std::int64_t moved = cost_.compact ? cost_.other_moved : 0;
  const std::int64_t other = (cost_.other_row_producer + moved) * q +
                             (cost_.other_row_consumer - moved) * consumer_rows + cost_.logits_row;
  return {attention, attention + other};
}

std::int64_t FlopsForm::nanos(std::int64_t flops) const {
  const Wide scaled = static_cast<Wide>(flops) * kNanosPerSecond;
  const Wide ns = scaled / static_cast<Wide>(rate_);
  return ns > INT64_MAX ? INT64_MAX : static_cast<std::int64_t>(ns);
}

std::int64_t FlopsForm::value(bool attention_only, std::int64_t q, std::int64_t c,
                              std::int64_t prompt) const {
  const ChunkFlops chunk = flops(q, c, prompt);
  return attention_only ? chunk.attention : chunk.total;
}

std::int64_t FlopsForm::attention_ns(std::int64_t q, std::int64_t c, std::int64_t prompt) const {
  return nanos(value(true, q, c, prompt));
}

std::int64_t FlopsForm::whole_ns(std::int64_t q, std::int64_t c, std::int64_t prompt) const {
  return nanos(value(false, q, c, prompt));
}

std::int64_t FlopsForm::solve(bool attention_only, std::int64_t budget_ns, std::int64_t c,
                              std::int64_t prompt, std::int64_t q_max) const {
  if (budget_ns < 0 || q_max <= 0) return 0;
  // floor(f * 1e9 / rate) <= B is f <= ((B + 1) * rate - 1) / 1e9: the search compares FLOPs and divides no
  // more.
  const Wide wide = (static_cast<Wide>(budget_ns) + 1) * static_cast<Wide>(rate_) - 1;
  const std::int64_t limit = static_cast<std::int64_t>(std::min<Wide>(wide / kNanosPerSecond, INT64_MAX));
  // Invariant: value(low) <= limit < value(high). The cost rises with every token.
  std::int64_t low = 0, high = q_max;
  std::int64_t low_value = 0, high_value = value(attention_only, high, c, prompt);
  if (high_value <= limit) return q_max;
  for (bool halve = false; high - low > 1; halve = !halve) {
    // Interpolation lands within a few tokens, since the form is nearly linear; every other probe is placed a
    // little to the other side, or halves the bracket, so that a kink cannot make one end crawl.
    const double share = static_cast<double>(limit - low_value) / static_cast<double>(high_value - low_value);
    std::int64_t probe = low + static_cast<std::int64_t>(share * static_cast<double>(high - low));
    if (halve) probe = high - low > 64 ? low + (high - low) / 2 : probe + 1;
    probe = std::clamp(probe, low + 1, high - 1);
    const std::int64_t probe_value = value(attention_only, probe, c, prompt);
    if (probe_value <= limit) {
      low = probe;
      low_value = probe_value;
    } else {
      high = probe;
      high_value = probe_value;
    }
  }
  return low;
}

}  // namespace trimtab::policy
