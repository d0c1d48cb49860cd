// Tokens per second of the reference engine on one thread, by phase. The model comes from TRIMTAB_MODEL.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <numeric>
#include <vector>

#include "engine/local_model.h"
#include "kv/block_table.h"

namespace {

using namespace trimtab;

engine::LocalModel* model() {
  static const std::unique_ptr<engine::LocalModel> instance = []() -> std::unique_ptr<engine::LocalModel> {
    const char* path = std::getenv("TRIMTAB_MODEL");
    if (path == nullptr) return nullptr;
    auto opened = engine::LocalModel::open(path, 8, 128);
    if (!opened) {
      std::fprintf(stderr, "%s\n", base::to_string(opened.error()).c_str());
      return nullptr;
    }
    return std::move(*opened);
  }();
  return instance.get();
}

std::vector<std::int32_t> some_tokens(std::size_t count) {
  std::vector<std::int32_t> tokens(count);
  for (std::size_t i = 0; i < count; ++i) tokens[i] = static_cast<std::int32_t>((i * 7919 + 13) % 40'000);
  return tokens;
}

void prefill(benchmark::State& state) {
  if (model() == nullptr) return state.SkipWithError("set TRIMTAB_MODEL to the GGUF file");
  const auto tokens = some_tokens(static_cast<std::size_t>(state.range(0)));
  for (auto _ : state) benchmark::DoNotOptimize(model()->run(tokens));
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

/// Every sequence has 256 tokens of context, from the first block range on.
void decode(benchmark::State& state) {
  if (model() == nullptr) return state.SkipWithError("set TRIMTAB_MODEL to the GGUF file");
  const auto sequences = static_cast<std::size_t>(state.range(0));
  const auto context = some_tokens(256);
  std::vector<std::vector<std::uint32_t>> tables(sequences);
  std::vector<engine::Segment> segments(sequences);
  std::uint32_t next = 0;
  for (std::size_t i = 0; i < sequences; ++i) {
    tables[i].resize(4);
    std::iota(tables[i].begin(), tables[i].end(), next);
    next += 4;
    segments[i] = {context, 0, tables[i], {}, true};
    if (!model()->step({&segments[i], 1})) return state.SkipWithError("prefill failed");
    segments[i].tokens = std::span(context).first(1);
  }
  std::int64_t position = 256;
  for (auto _ : state) {
    for (auto& segment : segments) segment.start = position;
    if (!model()->step(segments)) return state.SkipWithError("a step failed");
    position = position == 511 ? 256 : position + 1;
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

BENCHMARK(prefill)->Arg(128)->Arg(512)->Arg(4096)->Unit(benchmark::kMillisecond);
BENCHMARK(decode)->Arg(1)->Arg(8)->Arg(32)->Unit(benchmark::kMillisecond);

}  // namespace
