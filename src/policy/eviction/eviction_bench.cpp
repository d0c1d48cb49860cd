#include <benchmark/benchmark.h>

#include <cstdlib>
#include <optional>
#include <string>

#include "base/check.h"
#include "base/prng.h"
#include "io/trace_reader.h"
#include "policy/eviction/policies.h"
#include "policy/eviction/replay.h"

namespace trimtab::eviction {
namespace {

/// 16 prompts of 32 blocks around a store of 100,000: half of them go on with what is there.
void operation(benchmark::State& state, const std::string& name) {
  constexpr std::int64_t kCapacity = 100'000;
  constexpr std::uint32_t kChain = 32;
  Settings settings;
  settings.capacity_blocks = kCapacity;
  const auto policy = make_policy(name, settings).value();
  base::Prng prng(3);
  std::vector<Slot> free, ends;
  for (Slot slot = kCapacity + kChain; slot-- > 0;) free.push_back(slot);
  std::vector<Slot> chain(kChain);
  std::vector<std::vector<Slot>> chains;
  std::vector<std::uint8_t> here(kCapacity + kChain);
  std::uint64_t key = 0;
  std::int64_t now = 0, done = 0;
  for (auto _ : state) {
    now += 10'000'000;
    const bool again = !chains.empty() && prng.below(2) == 0;
    const Access access{Nanos{now}, kChain, again ? kChain : 0};
    if (again) {
      for (const Slot slot :
           chains[chains.size() - 1 - prng.below(std::min<std::uint64_t>(chains.size(), 2'000))]) {
        if (here[slot] == 0) break;
        policy->used(slot, access);
        ++done;
      }
      continue;
    }
    Block block;
    for (std::uint32_t i = 0; i < kChain; ++i) {
      chain[i] = free.back();
      free.pop_back();
      block.key = ++key;
      block.position = i;
      policy->stored(chain[i], block, access);
      here[chain[i]] = 1;
      block.parent = chain[i];
      ++done;
    }
    chains.push_back(chain);
    const auto more = static_cast<std::int64_t>(policy->count()) - kCapacity;
    if (more <= 0) continue;
    for (const Slot gone : policy->victims(Bytes{more}, access.now)) {
      here[gone] = 0;
      free.push_back(gone);
      ++done;
    }
  }
  state.SetItemsProcessed(done);
  // Seconds for programs; the table prints them as "21.1ns".
  state.counters["per_operation"] = benchmark::Counter(
      static_cast<double>(done), benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

const Prompts* recorded(const std::string& name) {
  static std::optional<std::pair<std::string, Prompts>> kept;  // one at a time: the agentic one is large
  const char* data = std::getenv("TRIMTAB_DATA");
  if (data == nullptr) return nullptr;
  if (!kept || kept->first != name) {
    const auto trace = io::read_trace(std::string(data) + "/traces/" + name + ".jsonl", {});
    TRIMTAB_CHECK(trace.has_value(), trace.error().message);
    kept.emplace(name, Prompts(*trace, Nanos{8 * 3'600'000'000'000}));
  }
  return &kept->second;
}

/// Share of all blocks of a recorded trace that are hit, with room for so many per cent of the unique ones.
void hit_rate(benchmark::State& state, const std::string& name, const std::string& trace) {
  const Prompts* prompts = recorded(trace);
  if (prompts == nullptr) return state.SkipWithError("TRIMTAB_DATA names no folder of recorded traces");
  const auto capacity = static_cast<std::int64_t>(prompts->unique()) * state.range(0) / 100;
  Settings settings;
  settings.capacity_blocks = capacity;
  Replayed replayed;
  for (auto _ : state) {
    if (name == "clairvoyant") {
      replayed = replay_clairvoyant(*prompts, static_cast<std::uint64_t>(capacity));
    } else {
      const auto policy = make_policy(name, settings).value();
      replayed = replay(*prompts, *policy, static_cast<std::uint64_t>(capacity));
      state.counters["bytes_per_block"] =
          static_cast<double>(policy->memory_bytes()) / static_cast<double>(capacity);
    }
  }
  state.counters["hit_rate"] = replayed.ratio();
  state.counters["written_per_asked"] =
      static_cast<double>(replayed.written) / static_cast<double>(replayed.asked);
}

const bool registered = [] {
  for (const std::string_view name : policy_names())
    benchmark::RegisterBenchmark(("operation/" + std::string(name)).c_str(),
                                 [name](benchmark::State& state) { operation(state, std::string(name)); });
  for (const std::string trace : {"mooncake_conversation", "agentic"}) {
    for (const std::string name : {"lru", "s3_fifo", "hit_density", "clairvoyant"}) {
      auto* bench =
          benchmark::RegisterBenchmark(("hit_rate/" + trace + "/" + name + "/percent").c_str(),
                                       [=](benchmark::State& state) { hit_rate(state, name, trace); });
      bench->Arg(2)->Arg(5)->Arg(10)->Iterations(1)->Unit(benchmark::kMillisecond);
    }
  }
  return true;
}();

}  // namespace
}  // namespace trimtab::eviction
