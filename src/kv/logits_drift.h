#pragma once

#include <optional>
#include <span>

namespace trimtab::kv {

/// How far a row of logits lies from the true one: what an `approximate` hit costs (system facts, section
/// 10). Both figures are in units of the spread, the standard deviation of the true row, so that they mean
/// the same for every model.
struct LogitsDrift {
  double relative = 0;      // root of the mean square of the differences
  double largest = 0;       // the largest absolute difference
  bool same_token = false;  // the most likely token is the same (of equals, the first)
};

/// Nothing when the rows cannot be compared: of different lengths, empty, not finite, or the true one has no
/// spread. 2 passes over the rows.
std::optional<LogitsDrift> logits_drift(std::span<const float> truth, std::span<const float> drifted);

}  // namespace trimtab::kv
