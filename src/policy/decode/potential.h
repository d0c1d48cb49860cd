#pragma once

#include <cstdint>

namespace trimtab::policy {

/// e^x for x from -700 to 12 out of multiplications and additions alone, so that every machine gets the same
/// bits (libm does not promise that). Relative error below 1e-14.
double exp_exact(double x);

/// phi(u) = exp(theta (u - 1)) / theta while theta (u - 1) <= 12, continued as a straight line beyond. The
/// line matters: a clipped exponential is flat there, so a far overloaded rank looks free and takes
/// everything (request study, 1.6: 63 instead of 88 points).
double phi(double u, double theta);

/// What a rank's load costs the step, in parts of an ideal step: attention weighs 0.4 and counts 0.2 (the
/// study's step), each steeply rising above the mean, which makes a sum over ranks behave like the maximum.
struct Potential {
  double kv_theta = 30, running_theta = 100;
  double kv_weight = 0.4, running_weight = 0.2;
  double mean_kv = 1, mean_running = 1;  // per unit of speed

  double of(double running, double kv, double speed) const {
    return kv_part(kv, speed) + running_part(running, speed);
  }
  double kv_part(double kv, double speed) const {
    return kv_weight * speed * phi(kv / (speed * mean_kv), kv_theta);
  }
  double running_part(double running, double speed) const {
    return running_weight * speed * phi(running / (speed * mean_running), running_theta);
  }
};

}  // namespace trimtab::policy
