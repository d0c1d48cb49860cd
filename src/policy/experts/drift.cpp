#include "policy/experts/drift.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/check.h"

namespace trimtab::experts {
namespace {

tl::unexpected<base::Error> bad(std::string message) {
  return base::fail(base::Code::kInvalidArgument, std::move(message), "policy/experts/drift");
}

struct NormalMax {
  std::int32_t count;
  double expected;
};
// E[max of n standard normals], by numerical integration; straight lines between are within 0.02.
constexpr std::array<NormalMax, 22> kNormalMax{
    {{1, 0.0},      {2, 0.5642},    {3, 0.8463},    {4, 1.0294},   {6, 1.2672},   {8, 1.4236},
     {12, 1.6292},  {16, 1.7660},   {24, 1.9477},   {32, 2.0697},  {48, 2.2331},  {64, 2.3437},
     {96, 2.4930},  {128, 2.5946},  {192, 2.7325},  {256, 2.8269}, {384, 2.9555}, {512, 3.0439},
     {768, 3.1648}, {1024, 3.2482}, {2048, 3.4418}, {4096, 3.6261}}};

double normal_max(std::int32_t count) {
  const auto above =
      std::ranges::find_if(kNormalMax, [&](const NormalMax& row) { return row.count >= count; });
  if (above == kNormalMax.end()) return kNormalMax.back().expected;
  if (above->count == count || above == kNormalMax.begin()) return above->expected;
  const NormalMax& low = *(above - 1);
  const double part = static_cast<double>(count - low.count) / (above->count - low.count);
  return low.expected + part * (above->expected - low.expected);
}

base::Status finite_and_not_negative(const char* what, double value) {
  if (std::isfinite(value) && value >= 0) return {};
  return bad(fmt::format("{} is {}: it must be a finite number from 0 up", what, value));
}

}  // namespace

base::Status check(const DriftConfig& config) {
  if (config.steps_min < 2)
    return bad(fmt::format("steps_min {}: two steps are the least that show their spread", config.steps_min));
  if (config.steps_max < config.steps_min || config.steps_max > 1 << 20) {
    return bad(fmt::format("steps_max {} is not from steps_min {} to {}", config.steps_max, config.steps_min,
                           1 << 20));
  }
  if (config.confirm_steps < 1)
    return bad(fmt::format("confirm_steps {}: use 1 to alarm at once", config.confirm_steps));
  if (config.quiet_steps < 0) return bad(fmt::format("quiet_steps {}: use 0 for none", config.quiet_steps));
  TRIMTAB_TRY(finite_and_not_negative("tolerance", config.tolerance));
  return finite_and_not_negative("sigmas", config.sigmas);
}

double noise_floor(std::int32_t ranks, double mean_tokens) {
  if (!(mean_tokens > 0) || ranks < 2) return 1;
  const double floor = 1 + normal_max(ranks) / std::sqrt(mean_tokens);
  // With less than a token a rank, the busiest can at most hold all of them.
  return std::min(floor, static_cast<double>(ranks));
}

base::Result<DriftDetector> DriftDetector::make(const DriftConfig& config, std::int32_t ranks,
                                                std::int32_t layers) {
  TRIMTAB_TRY(check(config));
  if (ranks < 1) return bad(fmt::format("{} ranks: there is at least one", ranks));
  if (layers < 1) return bad(fmt::format("{} layers: there is at least one", layers));
  DriftDetector out;
  out.config_ = config;
  out.ranks_ = ranks;
  out.layers_ = layers;
  out.ring_.reserve(static_cast<std::size_t>(config.steps_max));
  return out;
}

base::Status DriftDetector::promise(double balance) {
  if (!std::isfinite(balance) || balance < 1 - 1e-6)
    return bad(
        fmt::format("a plan cannot promise a balance of {}: busiest over mean is at least 1", balance));
  verdict_ = {};
  verdict_.promised = std::max(1.0, balance);
  promised_ = true;
  ring_.clear();
  next_ = 0;
  return {};
}

void DriftDetector::dismiss() {
  verdict_.alarm = false;
  verdict_.over = 0;
  verdict_.quiet = config_.quiet_steps;
}

base::Result<DriftVerdict> DriftDetector::observe(double busiest_tokens, double mean_tokens) {
  TRIMTAB_TRY(finite_and_not_negative("the busiest rank's load", busiest_tokens));
  TRIMTAB_TRY(finite_and_not_negative("the mean rank's load", mean_tokens));
  if (busiest_tokens < mean_tokens * (1 - 1e-9)) {
    return bad(fmt::format("the busiest rank has {} tokens, fewer than the mean of {}: arguments swapped?",
                           busiest_tokens, mean_tokens));
  }
  if (!promised_ || mean_tokens == 0) return verdict_;
  if (ring_.size() < static_cast<std::size_t>(config_.steps_max))
    ring_.push_back({busiest_tokens, mean_tokens});
  else
    ring_[next_] = {busiest_tokens, mean_tokens};
  next_ = (next_ + 1) % static_cast<std::size_t>(config_.steps_max);
  judge();
  return verdict_;
}

void DriftDetector::judge() {
  double busiest = 0, mean = 0;
  for (const Step& step : ring_) {
    busiest += step.busiest;
    mean += step.mean;
  }
  const auto steps = static_cast<double>(ring_.size());
  verdict_.steps = static_cast<std::int32_t>(ring_.size());
  verdict_.held_out = busiest / mean;
  verdict_.noise_floor = noise_floor(ranks_, mean / steps / layers_);
  double squares = 0;
  for (const Step& step : ring_) {
    const double residual = step.busiest - verdict_.held_out * step.mean;
    squares += residual * residual;
  }
  verdict_.standard_error = ring_.size() < 2 ? 0 : std::sqrt(squares * steps / (steps - 1)) / mean;
  verdict_.threshold = std::max(verdict_.promised, verdict_.noise_floor) + config_.tolerance +
                       config_.sigmas * verdict_.standard_error;
  if (verdict_.quiet > 0) --verdict_.quiet;
  if (verdict_.steps < config_.steps_min || verdict_.quiet > 0) {
    verdict_.over = 0;
  } else if (verdict_.held_out > verdict_.threshold) {
    verdict_.over = std::min(verdict_.over + 1, config_.confirm_steps);
  } else if (verdict_.held_out < verdict_.threshold - config_.tolerance / 2) {
    verdict_.over = 0;
  }
  verdict_.alarm = verdict_.over >= config_.confirm_steps;
}

std::string describe(const DriftVerdict& verdict) {
  return fmt::format(
      "held-out {:.4f} over {} steps {} {:.4f} (promised {:.4f}, counting noise {:.4f}, standard error "
      "{:.4f})",
      verdict.held_out, verdict.steps, verdict.held_out > verdict.threshold ? ">" : "<=", verdict.threshold,
      verdict.promised, verdict.noise_floor, verdict.standard_error);
}

base::Result<Worth> worth(const WorthInput& input) {
  TRIMTAB_TRY(finite_and_not_negative("balance_now", input.balance_now));
  TRIMTAB_TRY(finite_and_not_negative("balance_planned", input.balance_planned));
  TRIMTAB_TRY(finite_and_not_negative("gain_kept_ratio", input.gain_kept_ratio));
  TRIMTAB_TRY(finite_and_not_negative("noise_floor", input.noise_floor));
  TRIMTAB_TRY(finite_and_not_negative("step_ns", input.step_ns));
  TRIMTAB_TRY(finite_and_not_negative("steps_until_next", input.steps_until_next));
  TRIMTAB_TRY(finite_and_not_negative("bytes_busiest_rank", input.bytes_busiest_rank));
  TRIMTAB_TRY(finite_and_not_negative("bandwidth_bytes_per_s", input.bandwidth_bytes_per_s));
  TRIMTAB_TRY(finite_and_not_negative("stall_ratio", input.stall_ratio));
  TRIMTAB_TRY(finite_and_not_negative("payback_ratio", input.payback_ratio));
  if (input.balance_now == 0) return bad("balance_now is 0: busiest over mean is at least 1");
  if (input.bytes_busiest_rank > 0 && input.bandwidth_bytes_per_s == 0) {
    return bad(fmt::format("{} bytes to move, but no bandwidth: give bandwidth_bytes_per_s",
                           input.bytes_busiest_rank));
  }
  Worth out;
  const double now = std::max(input.balance_now, input.noise_floor);
  const double planned = std::max(input.balance_planned, input.noise_floor);
  const double step_ns_at_one = input.step_ns / input.balance_now;
  out.gain_ns_per_step = step_ns_at_one * (now - planned) * input.gain_kept_ratio;
  out.gain_ns = out.gain_ns_per_step * input.steps_until_next;
  if (input.bytes_busiest_rank > 0)
    out.cost_ns = input.bytes_busiest_rank / input.bandwidth_bytes_per_s * 1e9 * input.stall_ratio;
  out.break_even_steps = out.cost_ns == 0           ? 0
                         : out.gain_ns_per_step > 0 ? out.cost_ns / out.gain_ns_per_step
                                                    : -1;
  out.pays = out.gain_ns > 0 && out.gain_ns >= input.payback_ratio * out.cost_ns;
  return out;
}

std::string describe(const Worth& worth, double steps_until_next) {
  const std::string gain = fmt::format(
      "saves {:.1f} us a step, moves cost {:.3f} ms: ", worth.gain_ns_per_step / 1e3, worth.cost_ns / 1e6);
  if (worth.break_even_steps < 0) return gain + "never pays";
  return gain + fmt::format("{} after {:.0f} of {:.0f} steps", worth.pays ? "pays" : "would pay only",
                            worth.break_even_steps, steps_until_next);
}

Replacement decide_replacement(bool due, const DriftVerdict& drift, const Worth& worth) {
  if (!due && !drift.alarm) return Replacement::kKeep;
  if (!worth.pays) return Replacement::kSkip;
  return due ? Replacement::kScheduled : Replacement::kEarly;
}

}  // namespace trimtab::experts
