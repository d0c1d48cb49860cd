#include <algorithm>
#include <string>

#include "base/nearest.h"
#include "policy/decode/policies.h"

namespace trimtab::policy {
namespace {

using Maker = std::unique_ptr<DecodePolicy> (*)(const DecodeConfig&);

#define TRIMTAB_NAME(name) #name,
constexpr std::string_view kNames[] = {TRIMTAB_DECODE_POLICIES(TRIMTAB_NAME)};
#undef TRIMTAB_NAME
#define TRIMTAB_MAKER(name) make_##name,
constexpr Maker kMakers[] = {TRIMTAB_DECODE_POLICIES(TRIMTAB_MAKER)};
#undef TRIMTAB_MAKER

/// Other engines' names of the same rules.
constexpr DecodePolicyAlias kAliases[] = {
    {"shortest_queue", "total_requests"},  // SGLang's --load-balance-method, its earlier name
    {"minimum_tokens", "total_tokens"},    // likewise
    {"least_request", "total_requests"},   // Envoy; vLLM's data-parallel balancer does the same unnamed
    {"roundrobin", "round_robin"},         // vLLM production stack
};

base::Status in_range(std::string_view field, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value >= low && value <= high) return {};
  return base::fail(base::Code::kInvalidArgument,
                    std::string(field) + " is " + std::to_string(value) + "; it must be from " +
                        std::to_string(low) + " to " + std::to_string(high),
                    "policy/decode");
}

}  // namespace

std::span<const std::string_view> decode_policy_names() { return kNames; }
std::span<const DecodePolicyAlias> decode_policy_aliases() { return kAliases; }

base::Result<std::unique_ptr<DecodePolicy>> make_decode_policy(const DecodeConfig& config) {
  TRIMTAB_TRY(in_range("slack_permille", config.slack_permille, 0, 1'000'000));
  TRIMTAB_TRY(in_range("relax_percent", config.relax_percent, 100, 10'000));
  TRIMTAB_TRY(in_range("headroom_tokens", config.headroom_tokens, model::kBlockTokens - 1, 1 << 24));
  TRIMTAB_TRY(in_range("ceiling_permille", config.ceiling_permille, 0, 1'000'000));
  TRIMTAB_TRY(in_range("hold_max (ns)", config.hold_max.value, 0, INT64_MAX));
  TRIMTAB_TRY(in_range("report_lifetime (ns)", config.report_lifetime.value, 1, std::int64_t{1} << 62));
  TRIMTAB_TRY(in_range("hold_from_running", config.hold_from_running, 0, 65'535));
  TRIMTAB_TRY(in_range("horizon_tokens", config.horizon_tokens, 0, 64));
  TRIMTAB_TRY(in_range("window", config.window, 1, 4'096));
  TRIMTAB_TRY(in_range("graph_step", config.graph_step, 1, 65'535));
  TRIMTAB_TRY(in_range("moves_permille", config.moves_permille, 0, 10'000));
  TRIMTAB_TRY(in_range("move_interval (ns)", config.move_interval.value, 0, std::int64_t{1} << 62));
  TRIMTAB_TRY(in_range("move_rest (ns)", config.move_rest.value, 0, std::int64_t{1} << 62));
  TRIMTAB_TRY(in_range("move_tokens_per_s", config.move_tokens_per_s, 0, std::int64_t{1} << 40));
  TRIMTAB_TRY(in_range("placers", config.placers, 1, 1'024));
  TRIMTAB_TRY(in_range("placer", config.placer, 0, config.placers - 1));
  TRIMTAB_TRY(in_range("lease_period (ns)", config.lease_period.value, 1, std::int64_t{1} << 62));
  const auto alias =
      std::find_if(std::begin(kAliases), std::end(kAliases),
                   [&](const DecodePolicyAlias& known) { return known.alias == config.policy; });
  const std::string_view wanted = alias == std::end(kAliases) ? std::string_view(config.policy) : alias->name;
  const auto found = std::find(std::begin(kNames), std::end(kNames), wanted);
  if (found == std::end(kNames)) {
    const std::string nearest = base::nearest(config.policy, kNames);
    std::string known;
    for (const std::string_view name : kNames) known += (known.empty() ? "" : ", ") + std::string(name);
    return base::fail(base::Code::kInvalidArgument,
                      "there is no decode policy \"" + config.policy + "\"" +
                          (nearest.empty() ? "" : "; did you mean \"" + nearest + "\"?") + " Known: " + known,
                      "policy/decode");
  }
  return kMakers[found - std::begin(kNames)](config);
}

DecodeConfig decode_config(const model::DecodeConfig& config) {
  DecodeConfig placement;
  placement.policy = config.policy;
  placement.headroom_tokens = config.headroom_tokens;
  placement.window = config.window;
  placement.hold_max = Nanos{config.hold_max_ms * 1'000'000};
  placement.graph_step = config.graph_step;
  placement.moves_permille = config.moves_per_1000;
  placement.move_interval = Nanos{config.move_interval_ms * 1'000'000};
  placement.move_rest = Nanos{config.move_rest_ms * 1'000'000};
  placement.move_tokens_per_s = config.move_tokens_per_s;
  return placement;
}

}  // namespace trimtab::policy
