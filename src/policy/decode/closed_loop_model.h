#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/prng.h"
#include "policy/decode/policy.h"

/// For tests and benches: a decode group at full concurrency. Whenever a request ends, the next one is placed
/// by the policy, so a policy is judged by the steps that its choices lead to.
namespace trimtab::policy {

struct ClosedLoop {
  std::uint32_t ranks = 32;
  std::int64_t running_per_rank = 16;  // on average; a rank may run twice that
  std::int64_t steps = 4'000;
  std::uint64_t seed = 1;
  double prompt_median_tokens = 3'000, prompt_sigma = 1.0;  // lognormal, at most 128,000
  double output_mean_tokens = 300;                          // geometric
};

/// Ideal over actual step time. A step costs 20 % fixed, 40 % attention of the rank with the most KV, 20 %
/// dispatch of the rank with the most requests and 20 % MoE, shares of a step in which both are even (assumed
/// weights, the request study's). The first third of the steps is not counted: it still remembers the start.
inline double share_of_ideal(std::string_view policy, const ClosedLoop& loop) {
  DecodeConfig config;
  config.policy = policy;
  const auto placer = std::move(*make_decode_policy(config));
  for (std::uint32_t n = 0; n < loop.ranks; ++n)
    placer->add_rank({model::EngineId{0}, n}, {TokenCount{1 << 29}, 2 * loop.running_per_rank, 1000});
  base::Prng prng(loop.seed);
  struct Live {
    RequestId id;
    std::int64_t left = 0;
  };
  std::vector<Live> live(loop.ranks * static_cast<std::size_t>(loop.running_per_rank));
  std::uint64_t next = 1;
  const auto place = [&](Live& slot) {
    const double drawn = loop.prompt_median_tokens * std::exp(loop.prompt_sigma * prng.normal());
    const TokenCount tokens{1 + static_cast<std::int64_t>(std::min(drawn, 128'000.0))};
    slot = {RequestId{next++}, 1 + static_cast<std::int64_t>(prng.exponential(loop.output_mean_tokens))};
    const DecodeDecision decision = placer->decide({slot.id, tokens, TokenCount{0}, Nanos{-60'000'000'000}},
                                                   Nanos{0});  // waited long: not held
    placer->admitted(slot.id, *decision.rank, tokens, Nanos{0});
  };
  for (Live& slot : live) place(slot);
  double ideal = 0, actual = 0;
  for (std::int64_t step = 0; step < loop.steps; ++step) {
    std::int64_t kv_max = 0, running_max = 0;
    for (const RankId rank : placer->ledger().open_ranks()) {
      const DecodeLoad load = placer->ledger().load(rank);
      kv_max = std::max(kv_max, load.kv.value);
      running_max = std::max(running_max, load.running);
    }
    const DecodeLedger::Totals& totals = placer->ledger().totals();
    const double kv_peak = static_cast<double>(kv_max * totals.ranks) / static_cast<double>(totals.kv);
    const double running_peak =
        static_cast<double>(running_max * totals.ranks) / static_cast<double>(totals.running);
    if (step >= loop.steps / 3) {
      ideal += 1;
      actual += 0.4 + 0.4 * kv_peak + 0.2 * running_peak;
    }
    for (Live& slot : live) {
      placer->grew(slot.id, 1, Nanos{step});
      if (--slot.left > 0) continue;
      placer->ended(slot.id, Nanos{step});
      place(slot);
    }
  }
  return ideal / actual;
}

}  // namespace trimtab::policy
