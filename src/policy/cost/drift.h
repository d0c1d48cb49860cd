#pragma once

#include <cstdint>
#include <string>

#include "base/ring.h"
#include "base/units.h"

namespace trimtab::policy {

struct DriftConfig {
  std::int64_t window_steps = 100;
  double alarm_ratio = 0.10;  // mean relative error beyond which the cost model is called wrong
};

struct DriftVerdict {
  bool alarm = false;
  std::int64_t steps = 0;         // in the window
  double error_ratio_mean = 0.0;  // mean |predicted - actual| / actual
  double bias_ratio_mean = 0.0;   // mean (actual - predicted) / actual: positive when steps take longer
  std::string reason;
};

/// Watches predicted against actual step times. Balancing is only as good as the prediction (3 % error costs
/// 4 % of capacity, 10 % costs 12 %), so a model that drifted must be seen from the first day. The alarm
/// needs a full window, so that a few slow first steps raise none. O(1) a step; sums are integers (parts per
/// million), so they do not drift themselves.
class DriftMonitor {
 public:
  explicit DriftMonitor(const DriftConfig& config = {});
  /// Steps without work (predicted or actual 0) are not counted.
  void observe(base::Nanos predicted, base::Nanos actual);
  DriftVerdict verdict() const;

 private:
  struct Error {
    std::int64_t absolute_ppm = 0, signed_ppm = 0;
  };
  DriftConfig config_;
  base::Ring<Error> window_;
  Error sum_;
};

}  // namespace trimtab::policy
