#include <benchmark/benchmark.h>

#include <array>
#include <cstdlib>
#include <tuple>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/prng.h"
#include "config/profile.h"
#include "io/trace_reader.h"
#include "policy/prefill/group_step.h"
#include "policy/prefill/queues.h"
#include "policy/prefill/rank_scheduler.h"
#include "policy/prefill/tiers.h"

namespace trimtab::policy {
namespace {

using base::Nanos;
using base::TokenCount;
using model::EngineId;
using model::RequestId;

constexpr std::uint32_t kRanks = 4;  // EP4DP4

/// Contexts and quotas of the requests: those of the recorded trace that TRIMTAB_TRACE names, costed for
/// V4.1, or else contexts of all four tiers and quotas of 10 to 310 ms.
class Load {
 public:
  explicit Load(std::uint64_t seed) : prng_(seed) {
    const char* path = std::getenv("TRIMTAB_TRACE");
    if (path == nullptr || *path == 0) return;
    const auto trace = io::read_trace(path, {});
    TRIMTAB_CHECK(trace.has_value(), to_string(trace.error()));
    const auto profile = config::load_profile("deepseek-v4.1-flash", "profiles");
    TRIMTAB_CHECK(profile.has_value(), "run the bench in the repository's root");
    const CostModel cost(*profile);
    for (const model::TraceRequest& request : trace->requests) {
      const TokenCount context{request.prompt_tokens};
      recorded_.emplace_back(context, cost.request(TokenCount{0}, context));
    }
  }
  QueueItem item(std::uint64_t id, Nanos now) {
    static constexpr std::int64_t kContexts[] = {4'000, 30'000, 100'000, 400'000};
    QueueItem item;
    item.id = RequestId{id};
    if (recorded_.empty()) {
      item.context = TokenCount{kContexts[prng_.below(4)]};
      item.quota = Nanos{static_cast<std::int64_t>(10'000'000 + prng_.below(300'000'000))};
    } else {
      std::tie(item.context, item.quota) = recorded_[prng_.below(recorded_.size())];
    }
    item.blocks = 1;
    item.arrival = now;
    return item;
  }
  base::Prng& prng() { return prng_; }

 private:
  base::Prng prng_;
  std::vector<std::pair<TokenCount, Nanos>> recorded_;
};

/// One request in, one pull, one request out (leased, then done), with the queue at its depth throughout.
void enqueue_pull(benchmark::State& state, const char* order) {
  const auto engines = static_cast<std::uint32_t>(state.range(0)) / kRanks;
  QueueConfig config;
  config.order = order;
  config.aging = Nanos{INT64_MAX / 2};
  auto queues = std::move(*PrefillQueues::make(config));
  std::vector<EngineId> ids;
  for (std::uint32_t id = 0; id < engines; ++id) ids.push_back(EngineId{id});
  TierAllocator allocator(4);
  queues.set_engines(allocator.decide(ids, std::vector<Nanos>(4, Nanos{1'000'000})).engines);
  Load load(1);
  base::Prng& prng = load.prng();
  std::uint64_t id = 0;
  Nanos now{0};
  for (; id < static_cast<std::uint64_t>(state.range(1)); ++id)
    queues.enqueue(load.item(id, now += Nanos{1000}));
  std::vector<RankOffer> ranks(kRanks);
  for (auto _ : state) {
    const auto queued = queues.enqueue(load.item(id++, now += Nanos{1000}));
    for (auto& rank : ranks) rank.quota_left = Nanos{-static_cast<std::int64_t>(prng.below(5'000'000))};
    ranks[prng.below(kRanks)].quota_left = Nanos{1'000'000};  // one rank has room for one request
    // A puller of the same tier, a quarter of the engines each, so that every queue keeps its depth.
    queues.pull(
        EngineId{queued.tier.value * (engines / 4) + static_cast<std::uint32_t>(prng.below(engines / 4))},
        ranks);
    const auto grant = queues.serve(now);
    TRIMTAB_CHECK(grant.has_value());
    queues.remove(grant->item.id);
  }
}

/// The other side: every engine waits with an open pull, and each arrival is paired with the best of them.
void enqueue_served_by_waiting(benchmark::State& state) {
  const auto engines = static_cast<std::uint32_t>(state.range(0)) / kRanks;
  auto queues = std::move(*PrefillQueues::make({}));
  std::vector<EngineId> ids;
  for (std::uint32_t id = 0; id < engines; ++id) ids.push_back(EngineId{id});
  TierAllocator allocator(4);
  queues.set_engines(allocator.decide(ids, std::vector<Nanos>(4, Nanos{1'000'000})).engines);
  Load load(2);
  base::Prng& prng = load.prng();
  std::vector<RankOffer> ranks(kRanks);
  const auto offer = [&](EngineId engine) {
    for (auto& rank : ranks) rank.quota_left = Nanos{static_cast<std::int64_t>(1 + prng.below(600'000'000))};
    queues.pull(engine, ranks);
  };
  for (const EngineId engine : ids) offer(engine);
  std::uint64_t id = 0;
  for (auto _ : state) {
    queues.enqueue(load.item(id++, Nanos{0}));
    const auto grant = queues.serve(Nanos{0});
    TRIMTAB_CHECK(grant.has_value());
    queues.remove(grant->item.id);
    offer(grant->engine);
  }
}

void allocate(benchmark::State& state) {
  std::vector<EngineId> ids;
  for (std::uint32_t id = 0; id < static_cast<std::uint32_t>(state.range(0)) / kRanks; ++id)
    ids.push_back(EngineId{id});
  TierAllocator allocator(4);
  base::Prng prng(3);
  for (auto _ : state) {
    std::array<Nanos, 4> demand;
    for (auto& each : demand) each = Nanos{static_cast<std::int64_t>(prng.below(1'000'000'000))};
    benchmark::DoNotOptimize(allocator.decide(ids, demand));
  }
}

void plan(benchmark::State& state) {
  const auto profile = config::load_profile("deepseek-v4.1-flash", "profiles");
  TRIMTAB_CHECK(profile.has_value(), "run the bench in the repository's root");
  RankScheduler rank({}, CostModel(*profile));
  for (std::uint64_t id = 0; id < 16; ++id) {
    RankRequest request;
    request.id = RequestId{id};
    request.prompt = TokenCount{100'000};
    request.computed = TokenCount{96'896};
    rank.add(request);
  }
  for (auto _ : state) benchmark::DoNotOptimize(rank.plan(rank.vote().vote));
}

/// A group of `ranks` with 16 requests each, of all lengths; every eighth may be helped with. The cost is the
/// v3-like profile's, where the two budgets matter.
void compose(benchmark::State& state) {
  const auto profile = config::load_profile("v3-like", "profiles");
  TRIMTAB_CHECK(profile.has_value(), "run the bench in the repository's root");
  std::vector<RankScheduler> ranks(static_cast<std::size_t>(state.range(0)),
                                   RankScheduler({}, CostModel(*profile)));
  base::Prng prng(5);
  std::uint64_t id = 0;
  for (RankScheduler& rank : ranks) {
    for (int i = 0; i < 16; ++i) {
      RankRequest request;
      request.id = RequestId{++id};
      request.computed = TokenCount{static_cast<std::int64_t>(prng.below(120'000))};
      request.prompt = request.computed + TokenCount{static_cast<std::int64_t>(1 + prng.below(8'000))};
      request.spreads = i % 8 == 0;
      rank.add(request);
    }
  }
  std::vector<const RankScheduler*> of;
  for (const RankScheduler& rank : ranks) of.push_back(&rank);
  GroupStepConfig config;
  config.help_percent = 50;
  config.communication = 0.1;
  for (auto _ : state) benchmark::DoNotOptimize(compose_step(of, config));
}

BENCHMARK_CAPTURE(enqueue_pull, fifo, "fifo")
    ->Name("prefill_enqueue_pull")
    ->ArgNames({"gpus", "queued"})
    ->Args({1152, 100'000})
    ->Args({64, 1000});
BENCHMARK_CAPTURE(enqueue_pull, edf, "edf")
    ->Name("prefill_enqueue_pull_edf")
    ->ArgNames({"gpus", "queued"})
    ->Args({1152, 100'000});
BENCHMARK(enqueue_served_by_waiting)->Name("prefill_enqueue_waiting")->ArgName("gpus")->Arg(1152);
BENCHMARK(allocate)->Name("prefill_allocate_tiers")->ArgName("gpus")->Arg(1152);
BENCHMARK(plan)->Name("prefill_rank_plan/requests:16");
BENCHMARK(compose)
    ->Name("prefill_compose_step")
    ->ArgName("ranks")
    ->Arg(8)
    ->Arg(32)
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace trimtab::policy
