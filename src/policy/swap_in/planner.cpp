#include "policy/swap_in/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace trimtab::policy {
namespace {

struct TwoCosts {
  double first = 0, second = 0;
};

/// Least squares of y = a x1 + b x2, neither negative; false when x1 and x2 are in one proportion throughout.
struct Sums {
  double x11 = 0, x12 = 0, x22 = 0, x1y = 0, x2y = 0;

  void add(double x1, double x2, double y) {
    x11 += x1 * x1, x12 += x1 * x2, x22 += x2 * x2, x1y += x1 * y, x2y += x2 * y;
  }
  bool solve(TwoCosts& costs) const {
    const double determinant = x11 * x22 - x12 * x12;
    if (!(determinant > 1e-9 * x11 * x22)) return false;
    costs = {(x1y * x22 - x2y * x12) / determinant, (x2y * x11 - x1y * x12) / determinant};
    if (costs.first < 0) costs = {0, std::max(0.0, x2y / x22)};
    if (costs.second < 0) costs = {std::max(0.0, x1y / x11), 0};
    return true;
  }
};

base::Status check(const SwapBackendCost& cost) {
  const std::pair<const char*, double> parts[] = {{"call_ns", cost.call_ns},
                                                  {"submit_copy_ns", cost.submit_copy_ns},
                                                  {"device_copy_ns", cost.device_copy_ns},
                                                  {"compute_share", cost.compute_share}};
  for (const auto& [part, value] : parts)
    if (!std::isfinite(value) || value < 0)
      return base::fail(base::Code::kInvalidArgument,
                        fmt::format("swap-in backend '{}': {} is {}; it must be a number of at least 0",
                                    cost.name, part, value),
                        "policy/swap_in");
  if (!std::isfinite(cost.bytes_per_ns) || cost.bytes_per_ns <= 0 || cost.batch_max == 0)
    return base::fail(base::Code::kInvalidArgument,
                      fmt::format("swap-in backend '{}': bytes_per_ns {} and batch_max {} must be above 0",
                                  cost.name, cost.bytes_per_ns, cost.batch_max),
                      "policy/swap_in");
  return {};
}

}  // namespace

double SwapOutcome::overlap() const {
  if (alone_ns <= 0) return 1;
  return std::clamp(1 - (stalled_ns + slowed_ns) / alone_ns, 0.0, 1.0);
}

base::Result<SwapBackendCost> fit_swap_cost(std::string name, std::span<const SwapSample> samples,
                                            std::uint32_t batch_max, double compute_share) {
  Sums submit, device;
  bool in_thread = true;
  for (const SwapSample& sample : samples) in_thread = in_thread && sample.submit_ns >= .9 * sample.total_ns;
  for (const SwapSample& sample : samples) {
    const double calls = sample.calls, copies = calls * sample.copies;
    const double on_submitting = in_thread ? 0 : sample.submit_ns;
    submit.add(calls, copies, on_submitting);
    // The device starts when the first call is in, so only that call's submitting is not hidden.
    const double before = calls > 0 ? on_submitting / calls : 0;
    device.add(copies, copies * static_cast<double>(sample.bytes), std::max(0.0, sample.total_ns - before));
  }
  TwoCosts on_thread, on_device;
  if (samples.size() < 3 || !submit.solve(on_thread) || !device.solve(on_device) || on_device.second <= 0)
    return base::fail(
        base::Code::kInvalidArgument,
        fmt::format("swap-in backend '{}': {} samples do not tell calls, copies and bytes apart; "
                    "measure calls of few and of many copies, of small and of large blocks",
                    name, samples.size()),
        "policy/swap_in");
  SwapBackendCost cost;
  cost.name = std::move(name);
  cost.call_ns = on_thread.first, cost.submit_copy_ns = on_thread.second;
  cost.device_copy_ns = on_device.first, cost.bytes_per_ns = 1 / on_device.second;
  cost.batch_max = batch_max, cost.compute_share = compute_share;
  return cost;
}

SwapOutcome play_swap(const SwapBackendCost& backend, std::uint32_t batch,
                      std::span<const SwapLayer> layers) {
  SwapOutcome outcome;
  double submitted = 0, landed = 0, computed = 0;
  double slowed = 0;  // what copying the next layers has cost the computing of this one
  for (const SwapLayer& layer : layers) {
    const double bytes_per_copy = layer.copies == 0 ? 0 : static_cast<double>(layer.bytes) / layer.copies;
    submitted = std::max(submitted, layer.ready_ns);
    for (std::uint32_t left = layer.copies; left > 0;) {
      const double copies = std::min(left, batch);
      const double submit = backend.call_ns + copies * backend.submit_copy_ns;
      const double device = copies * (backend.device_copy_ns + bytes_per_copy / backend.bytes_per_ns);
      submitted += submit, outcome.submit_ns += submit, outcome.alone_ns += device;
      const double start = std::max(landed, submitted);
      // What falls before the last layer's computing has ended is copied beside it.
      slowed += backend.compute_share * std::clamp(computed - start, 0.0, device);
      landed = start + device;
      left -= static_cast<std::uint32_t>(copies);
    }
    computed += slowed, outcome.slowed_ns += slowed, slowed = 0;
    const double here = layer.copies == 0 ? 0 : landed;
    outcome.stalled_ns += std::max(0.0, here - computed);
    computed = std::max(computed, here) + layer.compute_ns;
  }
  outcome.total_ns = computed;
  return outcome;
}

base::Result<SwapChoice> choose_swap(std::span<const SwapBackendCost> backends,
                                     std::span<const SwapLayer> layers) {
  if (backends.empty())
    return base::fail(base::Code::kInvalidArgument, "no swap-in backend to choose from", "policy/swap_in");
  SwapChoice best;
  const SwapBackendCost* runner_up = nullptr;
  SwapOutcome runner_up_outcome;
  for (std::size_t i = 0; i < backends.size(); ++i) {
    TRIMTAB_TRY(check(backends[i]));
    SwapChoice own;
    own.backend = i;
    for (std::uint32_t batch = 1;; batch = std::min(batch * 2, backends[i].batch_max)) {
      const SwapOutcome outcome = play_swap(backends[i], batch, layers);
      const auto better = [&](const SwapOutcome& a, const SwapOutcome& b) {
        return a.total_ns != b.total_ns ? a.total_ns < b.total_ns : a.submit_ns < b.submit_ns;
      };
      if (batch == 1 || better(outcome, own.outcome)) own.outcome = outcome, own.batch = batch;
      if (batch == backends[i].batch_max) break;
    }
    const bool wins =
        i == 0 || own.outcome.total_ns < best.outcome.total_ns ||
        (own.outcome.total_ns == best.outcome.total_ns && own.outcome.submit_ns < best.outcome.submit_ns);
    if (wins && i > 0) runner_up = &backends[best.backend], runner_up_outcome = best.outcome;
    if (!wins && (runner_up == nullptr || own.outcome.total_ns < runner_up_outcome.total_ns))
      runner_up = &backends[i], runner_up_outcome = own.outcome;
    if (wins) best = own;
  }
  const auto stalled = [](const SwapOutcome& outcome) {
    return outcome.total_ns <= 0 ? 0.0 : 100 * (outcome.stalled_ns + outcome.slowed_ns) / outcome.total_ns;
  };
  best.reason = fmt::format("{}, {} per call: {:.1f} % lost of {:.0f} us", backends[best.backend].name,
                            best.batch, stalled(best.outcome), best.outcome.total_ns / 1000);
  if (runner_up != nullptr)
    best.reason += fmt::format("; next best {}: {:.1f} % of {:.0f} us", runner_up->name,
                               stalled(runner_up_outcome), runner_up_outcome.total_ns / 1000);
  return best;
}

}  // namespace trimtab::policy
