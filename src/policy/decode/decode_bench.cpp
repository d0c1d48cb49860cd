#include <benchmark/benchmark.h>

#include <cmath>
#include <cstdlib>

#include "base/check.h"
#include "base/prng.h"
#include "io/trace_reader.h"
#include "policy/decode/policy.h"

namespace trimtab::policy {
namespace {

/// Prompt lengths of the recorded trace that TRIMTAB_TRACE names; empty without one.
const std::vector<std::int64_t>& recorded_tokens() {
  static const std::vector<std::int64_t> tokens = [] {
    std::vector<std::int64_t> lengths;
    const char* path = std::getenv("TRIMTAB_TRACE");
    if (path == nullptr || *path == 0) return lengths;
    const auto trace = io::read_trace(path, {});
    TRIMTAB_CHECK(trace.has_value(), to_string(trace.error()));
    for (const model::TraceRequest& request : trace->requests) lengths.push_back(request.prompt_tokens);
    return lengths;
  }();
  return tokens;
}

/// A recorded length, or else a lognormal one around 3,000.
std::int64_t draw_tokens(base::Prng& prng) {
  if (const auto& recorded = recorded_tokens(); !recorded.empty())
    return recorded[prng.below(recorded.size())];
  return 1 + static_cast<std::int64_t>(std::min(128'000.0, std::exp(std::log(3'000.0) + prng.normal())));
}

/// `ranks` in groups of 64 with about 32 running requests each, placed by the policy itself.
struct Fleet {
  Fleet(std::string_view policy, std::uint32_t ranks) : prng(1) {
    DecodeConfig config;
    config.policy = policy;
    placer = std::move(*make_decode_policy(config));
    for (std::uint32_t n = 0; n < ranks; ++n)
      placer->add_rank({model::EngineId{n / 64}, n % 64}, {TokenCount{1'000'000}, 64, 1000});
    for (; next <= std::uint64_t{ranks} * 32; ++next) {
      const TokenCount tokens{draw_tokens(prng)};
      placer->admitted(RequestId{next}, *decide(tokens).rank, tokens, Nanos{0});
    }
  }
  DecodeDecision decide(TokenCount tokens) {
    // It has waited long: nobody is held.
    return placer->decide({RequestId{next}, tokens, TokenCount{0}, Nanos{-60'000'000'000}}, Nanos{0});
  }
  base::Prng prng;
  std::unique_ptr<DecodePolicy> placer;
  std::uint64_t next = 1;
};

/// The choice alone, with lengths that vary, over a fleet in its usual state.
void decode_choice(benchmark::State& state, std::string_view policy, std::uint32_t ranks) {
  Fleet fleet(policy, ranks);
  std::vector<TokenCount> lengths;
  for (int i = 0; i < 1024; ++i) lengths.emplace_back(draw_tokens(fleet.prng));
  std::size_t i = 0;
  for (auto _ : state) benchmark::DoNotOptimize(fleet.decide(lengths[i++ % lengths.size()]));
}

/// A whole life: choice, reservation, admission, the end of the oldest request.
void decode_turnover(benchmark::State& state, std::string_view policy, std::uint32_t ranks) {
  Fleet fleet(policy, ranks);
  std::uint64_t oldest = 1;
  for (auto _ : state) {
    const TokenCount tokens{draw_tokens(fleet.prng)};
    const RankId rank = *fleet.decide(tokens).rank;
    fleet.placer->reserve(RequestId{fleet.next}, rank, tokens, Nanos{0});
    fleet.placer->admitted(RequestId{fleet.next++}, rank, tokens, Nanos{0});
    fleet.placer->ended(RequestId{oldest++}, Nanos{0});
  }
}

/// One streamed token accounted for, round robin over all running requests.
void decode_token(benchmark::State& state, std::string_view policy, std::uint32_t ranks) {
  Fleet fleet(policy, ranks);
  std::uint64_t id = 1;
  for (auto _ : state) {
    fleet.placer->grew(RequestId{id}, 1, Nanos{1});
    if (++id == fleet.next) id = 1;
  }
}

const bool kRegistered = [] {
  using Bench = void (*)(benchmark::State&, std::string_view, std::uint32_t);
  const auto add = [](std::string_view bench, Bench run, std::string_view policy, std::uint32_t ranks) {
    const std::string name =
        std::string(bench) + "/policy:" + std::string(policy) + "/ranks:" + std::to_string(ranks);
    benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) { run(state, policy, ranks); });
  };
  for (const std::string_view policy : decode_policy_names())
    for (const std::uint32_t ranks : {320u, 4096u}) add("decode_choice", decode_choice, policy, ranks);
  for (const std::uint32_t ranks : {320u, 4096u}) {
    for (const std::string_view policy : {"waterline", "waterline_hazard"}) {
      add("decode_turnover", decode_turnover, policy, ranks);
      add("decode_token", decode_token, policy, ranks);
    }
  }
  return true;
}();

}  // namespace
}  // namespace trimtab::policy
