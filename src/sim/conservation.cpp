// The checks without which no share is printed.
#include <fmt/format.h>

#include <cmath>

#include "sim/ideal.h"
#include "sim/share.h"

namespace trimtab::sim {
namespace {

tl::unexpected<base::Error> broken(std::string message) {
  return base::fail(base::Code::kInternal, "no share is printed: " + std::move(message), "conservation");
}

}  // namespace

base::Status check_conservation(const model::Scenario& scenario, const model::Trace& trace,
                                const Result& result) {
  if (result.finished != result.submitted || result.failed + result.unfinished > 0) {
    return broken(fmt::format("of {} requests {} finished, {} failed and {} never ended{}", result.submitted,
                              result.finished, result.failed, result.unfinished,
                              result.failures.empty() ? "" : "; the first failure: " + result.failures[0]));
  }
  if (result.requests.size() != result.finished)
    return broken(fmt::format("{} of {} requests were kept", result.requests.size(), result.finished));
  WorkSums sums;
  std::int64_t asked = 0;
  for (const RequestTimes& request : result.requests) {
    sums.add(work_of(scenario, request.prompt, request.hit, request.output), scenario.decode.tokens_per_step);
    asked += std::max<std::int64_t>(trace.requests[request.request].output_tokens, 1);
  }
  const bool cut = result.faults.outputs_cut > 0;  // answers end at the model's context
  if ((cut ? asked < result.output_tokens : asked != result.output_tokens) ||
      sums.output_tokens != result.output_tokens) {
    return broken(fmt::format("{} tokens were asked for, {} drawn and {} delivered", asked,
                              sums.output_tokens, result.output_tokens));
  }
  // What faults and preemptions make ranks compute again is work done twice, and counted.
  const bool redone = result.preemptions > 0 || result.prefill_tokens > result.computed_tokens;
  // With faults tokens are computed in several passes, while a request's times name the hit of one: seen
  // to differ by 0.02 % either way.
  const auto not_hit = static_cast<double>(sums.computed_tokens);
  const bool struck = result.faults.any();
  const bool less = static_cast<double>(result.prefill_tokens) < (struck ? 0.99 : 1.0) * not_hit;
  if (less || (!struck && !redone && result.prefill_tokens != sums.computed_tokens)) {
    return broken(fmt::format("{} prompt tokens were not hit, but {} were computed", sums.computed_tokens,
                              result.prefill_tokens));
  }
  if (redone || struck || scenario.prefill.cost_error > 0) return {};
  const double off = std::abs(result.prefill_work_ns - sums.work_ns());
  const bool chunked = std::holds_alternative<model::FlopsCost>(scenario.profile.cost);
  // Every chunk's attention and rest are whole nanoseconds.
  const double rounding = 4 * static_cast<double>(result.finished);
  if (off > std::max((chunked ? 0.01 : 1e-6) * sums.work_ns(), rounding)) {
    return broken(fmt::format("prefill ranks worked {:.6f} s for requests whose work is {:.6f} s",
                              result.prefill_work_ns * 1e-9, sums.work_ns() * 1e-9));
  }
  return {};
}

}  // namespace trimtab::sim
