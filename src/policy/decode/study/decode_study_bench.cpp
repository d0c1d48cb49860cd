// The study's table as benchmarks: percent of the ideal step per policy, condition and shape, with the figure
// it is held against. `--benchmark_filter=decode_study --benchmark_format=json` prints it for machines.
#include <benchmark/benchmark.h>

#include <cstdlib>

#include "base/check.h"
#include "io/trace_reader.h"
#include "policy/decode/study/study_cases.h"

namespace trimtab::policy {
namespace {

/// The recorded conversation of the folder that TRIMTAB_DATA names, or lengths like it.
const std::vector<StudyRequest>& conversation() {
  static const std::vector<StudyRequest> requests = [] {
    const char* data = std::getenv("TRIMTAB_DATA");
    if (data == nullptr || *data == 0) return synthetic_conversation(12'000, 7);
    const auto trace = io::read_trace(std::string(data) + "/traces/mooncake_conversation.jsonl", {});
    TRIMTAB_CHECK(trace.has_value(), to_string(trace.error()));
    std::vector<StudyRequest> made;
    for (const model::TraceRequest& request : trace->requests)
      made.push_back({request.prompt_tokens, request.output_tokens});
    return made;
  }();
  return requests;
}

/// Means over TRIMTAB_STUDY_SEEDS seeds (1).
std::int64_t seeds() {
  const char* wanted = std::getenv("TRIMTAB_STUDY_SEEDS");
  return wanted == nullptr ? 1 : std::max(1, std::atoi(wanted));
}

void decode_study(benchmark::State& state, const StudyRow& row, const StudyRow::Shape& shape) {
  StudyCase study = row.base;
  study.ranks = shape.ranks;
  study.batch = shape.batch;
  double share = 0, moves = 0, live = 0, hold = 0, overtaken = 0;
  const std::int64_t runs = seeds();
  for (auto _ : state) {
    for (study.seed = 1; study.seed <= static_cast<std::uint64_t>(runs); ++study.seed) {
      const StudyResult result = run_study(study, conversation());
      share += 100 * result.share / static_cast<double>(runs);
      moves += result.moves_per_request / static_cast<double>(runs);
      live += 100 * result.live / static_cast<double>(runs);
      hold = std::max(hold, static_cast<double>(result.hold_steps_max));
      overtaken = std::max(overtaken, static_cast<double>(result.overtaken_max));
    }
  }
  state.counters["percent_of_ideal"] = share;
  state.counters[row.must_match ? "published" : "goal"] = shape.reference;
  state.counters["live_percent"] = live;
  state.counters["moves_per_request"] = moves;
  state.counters["hold_steps_max"] = hold;
  state.counters["overtaken_max"] = overtaken;
}

const bool kRegistered = [] {
  for (const StudyRow& row : study_rows())
    for (const StudyRow::Shape& shape : row.shapes) {
      const std::string name = "decode_study/" + row.condition + "/policy:" + row.policy +
                               "/ranks:" + std::to_string(shape.ranks) +
                               "/running:" + std::to_string(shape.batch);
      benchmark::RegisterBenchmark(name.c_str(),
                                   [=](benchmark::State& state) { decode_study(state, row, shape); })
          ->Iterations(1)
          ->Unit(benchmark::kMillisecond);
    }
  return true;
}();

}  // namespace
}  // namespace trimtab::policy
