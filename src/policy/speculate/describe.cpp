#include <fmt/format.h>

#include "policy/speculate/types.h"

namespace trimtab::policy {

std::string_view name(VerifyRule rule) {
  switch (rule) {
    case VerifyRule::kConfidence:
      return "best ratio";
    case VerifyRule::kGreedyStopped:
      return "stopped at the first row that did not pay";
    case VerifyRule::kFixed:
      return "fixed";
    case VerifyRule::kGroup:
      return "agreed by the group";
    case VerifyRule::kVerifyAll:
      return "all: too little to gain";
    case VerifyRule::kGapLimit:
      return "agreed by the group within the limit on the time between tokens";
    case VerifyRule::kExplore:
      return "beside the best size, to learn what rows cost";
    case VerifyRule::kNoGraph:
      return "no captured graph holds the batch";
  }
  return "unknown";
}

std::string describe(const VerifyPlan& plan) {
  const auto requests = static_cast<std::int64_t>(plan.query_tokens.size());
  return fmt::format(
      "verifies {} drafts of {} requests in graph {}: {:.1f} tokens in {:.2f} ms (all: {:.1f} in "
      "{:.2f} ms), {}",
      plan.total_tokens - requests, requests, plan.graph_tokens, plan.expected_tokens, plan.step_ns * 1e-6,
      plan.all_expected_tokens, plan.all_step_ns * 1e-6, name(plan.rule));
}

}  // namespace trimtab::policy
