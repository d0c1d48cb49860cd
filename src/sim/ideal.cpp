#include "sim/ideal.h"

#include <algorithm>
#include <unordered_set>

#include "kv/hit_rule.h"
#include "policy/cost/cost_model.h"

namespace trimtab::sim {
namespace {

using base::TokenCount;

/// Leading blocks that somebody before had; then they are had by all after.
std::int64_t match(std::span<const model::BlockRun> runs, std::unordered_set<std::uint64_t>& known) {
  std::int64_t blocks = 0;
  bool all = true;
  for (const model::BlockRun& run : runs) {
    for (std::uint32_t i = 0; i < run.count; ++i) {
      const bool fresh = known.insert(run.first + i).second;
      all = all && !fresh;
      blocks += all ? 1 : 0;
    }
  }
  return blocks;
}

RequestWork cost(const policy::CostModel& model, const model::Scenario& scenario, std::int64_t prompt,
                 std::int64_t hit, std::int64_t output) {
  RequestWork work;
  work.prompt = prompt;
  work.hit = hit;
  work.output = std::max<std::int64_t>(output, 1);
  const TokenCount left{prompt - hit}, before{hit}, whole{prompt};
  work.attention = model.attention(left, before, whole);
  work.rest = model.whole(left, before, whole) - work.attention;
  const std::vector<std::int64_t>& bounds = scenario.report_bounds_tokens;
  work.tier = static_cast<std::uint32_t>(std::ranges::upper_bound(bounds, prompt) - bounds.begin());
  return work;
}

}  // namespace

void WorkSums::add(const RequestWork& request, double tokens_per_step) {
  ++requests;
  computed_tokens += request.prompt - request.hit;
  hit_tokens += request.hit;
  output_tokens += request.output;
  attention_ns += static_cast<double>(request.attention.value);
  rest_ns += static_cast<double>(request.rest.value);
  // The first token comes from prefill; then the KV grows from the prompt and that token on.
  const double steps = static_cast<double>(request.output - 1) / tokens_per_step;
  request_steps += steps;
  kv_token_steps += steps * static_cast<double>(request.prompt + 1) +
                    tokens_per_step * steps * std::max(steps - 1, 0.0) / 2;
}

RequestWork work_of(const model::Scenario& scenario, std::int64_t prompt, std::int64_t hit,
                    std::int64_t output) {
  const policy::CostModel model(scenario.profile.cost, scenario.cluster.prefill.quota_scope);
  return cost(model, scenario, prompt, hit, output);
}

std::vector<RequestWork> trace_work(const model::Trace& trace, const model::Scenario& scenario) {
  const policy::CostModel model(scenario.profile.cost, scenario.cluster.prefill.quota_scope);
  std::unordered_set<std::uint64_t> known;  // asked, never iterated
  std::vector<RequestWork> all;
  all.reserve(trace.requests.size());
  for (const model::TraceRequest& request : trace.requests) {
    std::int64_t hit = 0;
    if (scenario.pool.enabled && trace.block_tokens > 0) {
      const std::int64_t blocks = match(trace.runs_of(request), known);
      kv::HitQuery query;
      query.prompt_tokens = request.prompt_tokens;
      query.matched_blocks =
          std::min(blocks * trace.block_tokens, request.prompt_tokens) / model::kBlockTokens;
      hit = kv::decide_hit(query, scenario.profile.kv).tokens.value;
    }
    all.push_back(cost(model, scenario, request.prompt_tokens, hit, request.output_tokens));
  }
  return all;
}

double decode_step_ns(const model::DecodeStepCost& cost, double requests, double kv_tokens) {
  return cost.attention_ns_per_kv_token * kv_tokens +
         (cost.dispatch_ns_per_request + cost.moe_ns_per_request) * requests;
}

Offline offline(const WorkSums& sums, const model::Scenario& scenario) {
  const model::ClusterConfig& cluster = scenario.cluster;
  const policy::CostModel model(scenario.profile.cost, cluster.prefill.quota_scope);
  Offline out;
  // Full steps: as much work as the budget or the limit on tokens lets a rank take at once.
  const double ranks = static_cast<double>(cluster.prefill.engines) * cluster.prefill.ranks;
  const bool whole_step = cluster.prefill.quota_scope == model::QuotaScope::kWholeStep;
  const double bounded = whole_step ? sums.work_ns() : sums.attention_ns;
  const auto budget = static_cast<double>(cluster.prefill.step_budget_ms * 1'000'000 - model.fixed().value);
  const double rank_steps =
      std::max(bounded / std::max(budget, 1.0), static_cast<double>(sums.computed_tokens) /
                                                    static_cast<double>(cluster.prefill.chunk_tokens_max));
  const double fixed_ns = rank_steps * static_cast<double>(model.step_fixed().value);
  out.prefill_speed = sums.work_ns() > 0 ? sums.work_ns() / (sums.work_ns() + fixed_ns) : 1.0;
  out.prefill = Nanos{static_cast<std::int64_t>((sums.work_ns() + fixed_ns) / ranks)};

  const double kv_mean = sums.request_steps > 0 ? sums.kv_token_steps / sums.request_steps : 0;
  const auto room = static_cast<double>(cluster.decode.kv_blocks * model::kBlockTokens);
  out.decode_batch = static_cast<double>(cluster.decode.max_running);
  if (kv_mean > 0) out.decode_batch = std::max(1.0, std::min(out.decode_batch, room / kv_mean));
  const model::DecodeStepCost& step = scenario.profile.decode_step;
  const double step_ns = static_cast<double>(step.fixed.value) +
                         decode_step_ns(step, out.decode_batch, out.decode_batch * kv_mean);
  out.decode_step = Nanos{static_cast<std::int64_t>(step_ns)};
  const double seats = static_cast<double>(cluster.decode.groups) * cluster.decode.ranks * out.decode_batch;
  out.decode = Nanos{static_cast<std::int64_t>(sums.request_steps / seats * step_ns)};
  return out;
}

}  // namespace trimtab::sim
