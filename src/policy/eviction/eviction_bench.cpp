#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <utility>

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

/// What a policy is told, and what that is worth.
void told(benchmark::State& state, const std::string& name, const std::string& trace,
          const std::string& how) {
  const Prompts* prompts = recorded(trace);
  if (prompts == nullptr) return state.SkipWithError("TRIMTAB_DATA names no folder of recorded traces");
  const auto capacity = static_cast<std::int64_t>(prompts->unique()) * state.range(0) / 100;
  const auto room = static_cast<std::uint64_t>(capacity);
  Settings settings;
  settings.capacity_blocks = capacity;
  Replayed replayed;
  for (auto _ : state) {
    const auto policy = make_policy(name, settings).value();
    if (how == "at_once_no_answers") {
      replayed = replay(*prompts, *policy, room, false);
    } else {
      replayed = replay_served(*prompts, *policy, room, {how == "served", how != "served_blocks_only"});
    }
  }
  state.counters["hit_rate"] = replayed.ratio();
}

/// Whose a request is: in the agentic trace the space of its blocks tells. All prompts of the conversation
/// trace begin with the same block, and the one behind it is of one conversation.
std::uint64_t conversation_of(const model::Trace& trace, const model::TraceRequest& request) {
  std::uint32_t skip = trace.closed_loop ? 0 : 1;
  for (const model::BlockRun& run : trace.runs_of(request)) {
    if (skip < run.count) return trace.closed_loop ? run.first >> 32U : run.first + skip;
    skip -= run.count;
  }
  return 0;
}

/// Every second of a trace's conversations, from the first or from the second on. Only so many of the trace
/// (TRIMTAB_CONVERSATIONS; all without it), since a pass over all of the agentic one takes a minute.
const Prompts* half_of(const std::string& name, std::int64_t half) {
  static std::optional<std::pair<std::pair<std::string, std::int64_t>, Prompts>> kept;
  const char* data = std::getenv("TRIMTAB_DATA");
  if (data == nullptr) return nullptr;
  const std::pair<std::string, std::int64_t> wanted{name, half};
  if (kept && kept->first == wanted) return &kept->second;
  auto trace = io::read_trace(std::string(data) + "/traces/" + name + ".jsonl", {});
  TRIMTAB_CHECK(trace.has_value(), trace.error().message);
  const char* most = std::getenv("TRIMTAB_CONVERSATIONS");
  const std::size_t conversations = most == nullptr ? SIZE_MAX : std::strtoull(most, nullptr, 10);
  std::map<std::uint64_t, std::size_t> number_of;
  std::erase_if(trace->requests, [&](const model::TraceRequest& request) {
    const std::size_t number =
        number_of.emplace(conversation_of(*trace, request), number_of.size()).first->second;
    return number >= conversations || number % 2 != static_cast<std::size_t>(half);
  });
  kept.emplace(wanted, Prompts(*trace, Nanos{8 * 3'600'000'000'000}));
  return &kept->second;
}

/// What the leads of hit_density's own order over LRU give on either half, so that those that are best on one
/// can be judged on the other. Leads in thousandths: to take over, to stay; 0: it leads always.
void lead(benchmark::State& state, const std::string& trace) {
  const Prompts* prompts = half_of(trace, state.range(0));
  if (prompts == nullptr) return state.SkipWithError("TRIMTAB_DATA names no folder of recorded traces");
  const auto capacity = static_cast<std::int64_t>(prompts->unique()) * state.range(1) / 100;
  Settings settings;
  settings.capacity_blocks = capacity;
  settings.lead = static_cast<double>(state.range(2)) / 1'000;
  settings.lead_to_stay = static_cast<double>(state.range(3)) / 1'000;
  // A lead that nobody reaches is LRU's order; its shadows would cost as much as those of the others.
  const auto policy = make_policy(state.range(2) > 9'999 ? "lru" : "hit_density", settings).value();
  Replayed replayed;
  for (auto _ : state) replayed = replay(*prompts, *policy, static_cast<std::uint64_t>(capacity));
  state.counters["hit_rate"] = replayed.ratio();
}

const bool registered = [] {
  for (const std::string trace : {"mooncake_conversation", "agentic"}) {
    auto* leads = benchmark::RegisterBenchmark(("lead/" + trace).c_str(),
                                               [=](benchmark::State& state) { lead(state, trace); });
    leads->ArgNames({"half", "percent", "take", "stay"})->Iterations(1)->Unit(benchmark::kMillisecond);
    for (const std::int64_t half : {0, 1})
      for (const std::int64_t percent : {2, 5, 10})
        for (const auto& [take, stay] : std::initializer_list<std::pair<std::int64_t, std::int64_t>>{
                 {10'000, 10'000}, {0, 0}, {1'000, 1'000}, {1'004, 1'000}, {1'020, 1'005}, {1'050, 1'020}})
          leads->Args({half, percent, take, stay});
  }
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
  for (const std::string trace : {"mooncake_conversation", "agentic"}) {
    for (const auto& [name, how] :
         std::initializer_list<std::pair<std::string, std::string>>{{"hit_density", "at_once_no_answers"},
                                                                    {"lru", "served_blocks_only"},
                                                                    {"hit_density", "served_blocks_only"},
                                                                    {"lru", "served"},
                                                                    {"hit_density", "served_no_answers"},
                                                                    {"hit_density", "served"}}) {
      auto* bench =
          benchmark::RegisterBenchmark(("told/" + trace + "/" + how + "/" + name + "/percent").c_str(),
                                       [=](benchmark::State& state) { told(state, name, trace, how); });
      bench->Arg(2)->Arg(5)->Arg(10)->Iterations(1)->Unit(benchmark::kMillisecond);
    }
  }
  return true;
}();

}  // namespace
}  // namespace trimtab::eviction
