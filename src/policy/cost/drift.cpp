#include "policy/cost/drift.h"

#include <algorithm>
#include <cstdio>

namespace trimtab::policy {

namespace {

constexpr std::int64_t kMillion = 1'000'000;
/// One absurd step (a suspended machine) counts as 1,000 x off, no more: it must not hide the next hundred.
constexpr std::int64_t kErrorMaxPpm = 1000 * kMillion;

}  // namespace

DriftMonitor::DriftMonitor(const DriftConfig& config)
    : config_(config), window_(static_cast<std::size_t>(std::max<std::int64_t>(config.window_steps, 1))) {}

void DriftMonitor::observe(base::Nanos predicted, base::Nanos actual) {
  if (predicted.value <= 0 || actual.value <= 0) return;
  const double ratio = (static_cast<double>(actual.value) - static_cast<double>(predicted.value)) /
                       static_cast<double>(actual.value);
  const auto ppm = static_cast<std::int64_t>(
      std::clamp(ratio * kMillion, static_cast<double>(-kErrorMaxPpm), static_cast<double>(kErrorMaxPpm)));
  if (window_.full()) {
    const Error oldest = window_.pop();
    sum_.absolute_ppm -= oldest.absolute_ppm;
    sum_.signed_ppm -= oldest.signed_ppm;
  }
  const Error error{ppm < 0 ? -ppm : ppm, ppm};
  window_.push(error);
  sum_.absolute_ppm += error.absolute_ppm;
  sum_.signed_ppm += error.signed_ppm;
}

DriftVerdict DriftMonitor::verdict() const {
  DriftVerdict verdict;
  verdict.steps = static_cast<std::int64_t>(window_.size());
  if (verdict.steps > 0) {
    const double count = static_cast<double>(verdict.steps) * kMillion;
    verdict.error_ratio_mean = static_cast<double>(sum_.absolute_ppm) / count;
    verdict.bias_ratio_mean = static_cast<double>(sum_.signed_ppm) / count;
  }
  verdict.alarm = window_.full() && verdict.error_ratio_mean > config_.alarm_ratio;
  char text[200];
  std::snprintf(text, sizeof text,
                "mean error %.1f %% (steps take %.1f %% %s than predicted) over %lld of %lld steps; alarm "
                "beyond %.1f %%",
                100 * verdict.error_ratio_mean, 100 * std::abs(verdict.bias_ratio_mean),
                verdict.bias_ratio_mean < 0 ? "less" : "more", static_cast<long long>(verdict.steps),
                static_cast<long long>(window_.capacity()), 100 * config_.alarm_ratio);
  verdict.reason = text;
  return verdict;
}

}  // namespace trimtab::policy
