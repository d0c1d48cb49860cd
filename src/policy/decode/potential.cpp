#include "policy/decode/potential.h"

#include <algorithm>
#include <bit>

namespace trimtab::policy {

double exp_exact(double x) {
  constexpr double kLog2E = 1.4426950408889634;
  constexpr double kLn2High = 6.93147180369123816490e-01, kLn2Low = 1.90821492927058770002e-10;
  x = std::clamp(x, -700.0, 700.0);
  const double shifted = x * kLog2E;
  const auto k = static_cast<std::int64_t>(shifted < 0 ? shifted - 0.5 : shifted + 0.5);
  const double whole = static_cast<double>(k);
  const double r = (x - whole * kLn2High) - whole * kLn2Low;  // |r| <= 0.35
  double sum = 1;
  for (int n = 13; n > 0; --n) sum = 1 + sum * r / n;
  return sum * std::bit_cast<double>(static_cast<std::uint64_t>(k + 1023) << 52);
}

double phi(double u, double theta) {
  constexpr double kKnee = 12;
  constexpr double kAtKnee = 162754.79141900392;  // e^12
  const double z = theta * (u - 1);
  if (z <= kKnee) return exp_exact(z) / theta;
  return kAtKnee * (1 + (z - kKnee)) / theta;
}

}  // namespace trimtab::policy
