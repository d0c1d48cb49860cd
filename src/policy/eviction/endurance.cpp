#include "policy/eviction/endurance.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

namespace trimtab::eviction {
namespace {

constexpr double kSecondsPerDay = 86'400, kDaysPerYear = 365.25;

base::Status at_least(double value, double least, bool may_equal, const std::string& option,
                      const std::string& what) {
  if (std::isfinite(value) && (may_equal ? value >= least : value > least)) return {};
  std::string shown = std::to_string(value);
  return base::fail(base::Code::kInvalidArgument,
                    what + " is " + shown + ": it must be " + (may_equal ? "at least " : "more than ") +
                        std::to_string(static_cast<int>(least)),
                    option);
}

}  // namespace

base::Result<EndurancePlan> plan_endurance(const Endurance& pool) {
  TRIMTAB_TRY(at_least(pool.device_bytes, 0, false, "--device-bytes", "a device's capacity in bytes"));
  TRIMTAB_TRY(at_least(pool.drive_writes_per_day, 0, false, "--dwpd", "drive writes per day"));
  TRIMTAB_TRY(at_least(pool.rated_years, 0, false, "--rated-years", "the rating's years"));
  TRIMTAB_TRY(at_least(pool.devices, 1, true, "--devices", "devices of a node"));
  TRIMTAB_TRY(at_least(pool.nodes, 1, true, "--nodes", "storage nodes"));
  TRIMTAB_TRY(at_least(pool.write_bytes_per_second, 0, true, "--write-bytes-per-second", "bytes per second"));
  TRIMTAB_TRY(at_least(pool.code_overhead, 1, true, "--code-overhead", "the code's overhead"));
  TRIMTAB_TRY(at_least(pool.write_amplification, 1, true, "--write-amplification", "write amplification"));
  const double all = static_cast<double>(pool.devices) * static_cast<double>(pool.nodes);
  const double factor = pool.code_overhead * pool.write_amplification;
  EndurancePlan plan;
  plan.budget_bytes_per_day = pool.drive_writes_per_day * pool.device_bytes;
  plan.written_bytes_per_day = pool.write_bytes_per_second * factor * kSecondsPerDay / all;
  plan.allowed_bytes_per_second = plan.budget_bytes_per_day * all / factor / kSecondsPerDay;
  const double rated = plan.budget_bytes_per_day * pool.rated_years * kDaysPerYear;
  plan.years = plan.written_bytes_per_day > 0 ? rated / plan.written_bytes_per_day / kDaysPerYear
                                              : std::numeric_limits<double>::infinity();
  if (pool.write_bytes_per_second > plan.allowed_bytes_per_second)
    plan.admitted_ratio = plan.allowed_bytes_per_second / pool.write_bytes_per_second;
  return plan;
}

}  // namespace trimtab::eviction
