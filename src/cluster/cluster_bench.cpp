// What one step of the machine costs, with a large cluster and a long queue.
#include <benchmark/benchmark.h>

#include "cluster/cluster.h"
#include "cluster/pull_agents.h"
#include "queue/embedded_queue.h"

namespace trimtab::cluster {
namespace {

using model::Role;

/// 1,152 prefill GPUs in 288 engines of four, 320 decode ranks, and the host's part reduced to its answers.
class Bench {
 public:
  Bench() : agents_(config(), profile()) {
    cluster_ =
        Cluster::make(config(), profile(), queue::EmbeddedQueue::make(config().prefill).value()).value();
    for (std::uint32_t e = 0; e < 288; ++e) {
      for (std::uint32_t r = 0; r < 4; ++r) step(Joined{{Role::kPrefill, EngineId{e}, r}, 4'096});
    }
    for (std::uint32_t r = 0; r < 320; ++r) step(Joined{{Role::kDecode, EngineId{0}, r}, 4'096});
  }
  static model::ClusterConfig config() {
    model::ClusterConfig config;
    config.prefill.engines = 288;
    config.prefill.ranks = 4;
    config.prefill.kv_blocks = 4'096;
    config.decode.groups = 1;
    config.decode.ranks = 320;
    config.decode.kv_blocks = 4'096;
    config.decode.max_running = 64;
    config.vision.machines = 0;
    config.gateway.requests_in_flight_max = 1'000'000;
    return config;
  }
  static model::Profile profile() {
    model::Profile profile;
    profile.cost = model::QuadraticCost{5'000'000, 10'000'000, 500};
    return profile;
  }
  void step(const Event& event) {
    now_ += Nanos{100};
    actions_.clear();
    cluster_->step(event, now_, actions_);
    ++steps_;
    agents_.observe(event);
    for (const Action& action : actions_) agents_.observe(action);
    pulls_.clear();
    agents_.take_pulls(pulls_);
    const std::vector<Action> done = actions_;
    for (const Event& pull : std::vector<Event>(pulls_)) step(pull);
    for (const Action& action : done) answer(action);
  }
  /// The whole life of a request with `tokens` tokens of output.
  void life(std::int64_t prompt, std::int64_t tokens) {
    tokens_ = tokens;
    prompt_ = prompt;
    step(Submitted{RequestId{++id_}, TokenCount{prompt}, TokenCount{tokens}, {}, base::kForever});
  }
  std::uint64_t steps() const { return steps_; }
  Census census() const { return cluster_->census(); }

 private:
  void answer(const Action& action) {
    if (const auto* match = std::get_if<Match>(&action)) {
      step(Matched{match->id, TokenCount{prompt_}, TokenCount{0}});
    } else if (const auto* reserve = std::get_if<Reserve>(&action)) {
      step(Reserved{reserve->rank, reserve->id, true, 100});
    } else if (const auto* target = std::get_if<SendTarget>(&action)) {
      step(PrefillDone{
          target->prefill, target->id, true, {}, TokenCount{prompt_}, model::FinishReason::kNone});
    } else if (const auto* decode = std::get_if<StartDecode>(&action)) {
      for (std::int64_t t = 1; t < tokens_; ++t) {
        DecodeStepped stepped;
        stepped.from = decode->rank;
        const bool last = t + 1 == tokens_;
        stepped.tokens.push_back(
            {decode->id, last ? model::FinishReason::kLength : model::FinishReason::kNone});
        stepped.running = last ? 0 : 1;
        stepped.kv = TokenCount{last ? 0 : prompt_ + 1 + t};
        step(stepped);
      }
    }
  }
  PullAgents agents_;
  std::unique_ptr<Cluster> cluster_;
  std::vector<Action> actions_;
  std::vector<Event> pulls_;
  Nanos now_;
  std::uint64_t id_ = 0, steps_ = 0;
  std::int64_t tokens_ = 0, prompt_ = 0;
};

void BM_RequestLife(benchmark::State& state) {
  Bench bench;
  const std::uint64_t before = bench.steps();
  for (auto _ : state) bench.life(4'000, 16);
  state.counters["steps"] =
      static_cast<double>(bench.steps() - before) / static_cast<double>(state.iterations());
  if (bench.census().total() != 0) state.SkipWithError("something was left behind");
}
BENCHMARK(BM_RequestLife);

void BM_DecodeStepOf64(benchmark::State& state) {
  Bench bench;
  DecodeStepped stepped;
  stepped.from = {EngineId{0}, 7};
  for (std::uint64_t i = 1; i <= 64; ++i)
    stepped.tokens.push_back({RequestId{i}, model::FinishReason::kNone});
  for (auto _ : state) bench.step(stepped);
}
BENCHMARK(BM_DecodeStepOf64);

}  // namespace
}  // namespace trimtab::cluster
