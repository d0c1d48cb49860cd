#include "kv/logits_drift.h"

#include <algorithm>
#include <cmath>

namespace trimtab::kv {

std::optional<LogitsDrift> logits_drift(std::span<const float> truth, std::span<const float> drifted) {
  if (truth.empty() || truth.size() != drifted.size()) return std::nullopt;
  const auto count = static_cast<double>(truth.size());
  double sum = 0;
  for (const float logit : truth) sum += static_cast<double>(logit);
  const double mean = sum / count;
  double spread = 0, error = 0, largest = 0;
  for (std::size_t i = 0; i < truth.size(); ++i) {
    const auto exact = static_cast<double>(truth[i]);
    const double difference = exact - static_cast<double>(drifted[i]);
    largest = std::max(largest, std::abs(difference));
    error += difference * difference;
    spread += (exact - mean) * (exact - mean);
  }
  const double deviation = std::sqrt(spread / count);
  if (!std::isfinite(error) || !std::isfinite(deviation) || deviation <= 0) return std::nullopt;
  LogitsDrift drift;
  drift.relative = std::sqrt(error / count) / deviation;
  drift.largest = largest / deviation;
  drift.same_token = std::max_element(truth.begin(), truth.end()) - truth.begin() ==
                     std::max_element(drifted.begin(), drifted.end()) - drifted.begin();
  return drift;
}

}  // namespace trimtab::kv
