// A recorded hour of real conversations, cut to its first minutes, through the whole cluster machine in
// virtual time: real lengths, real arrivals, real reuse of prefixes.
#include <gtest/gtest.h>

#include <cstdlib>
#include <unordered_set>
#include <vector>

#include "cluster/testing/virtual_world.h"
#include "config/profile.h"
#include "io/trace_reader.h"
#include "queue/embedded_queue.h"

namespace trimtab::cluster {
namespace {

using testing::Ask;
using testing::World;

constexpr std::size_t kRequests = 600;

model::ClusterConfig config_for_conversations() {
  model::ClusterConfig config;  // its tiers and its budget are those of production
  config.prefill.engines = 8;
  config.prefill.ranks = 4;
  config.prefill.kv_blocks = 2'048;
  config.decode.groups = 2;
  config.decode.ranks = 4;
  config.decode.max_running = 64;
  config.decode.kv_blocks = 8'192;
  config.gateway.requests_in_flight_max = 10'000;
  return config;
}

struct Replay {
  std::uint64_t hash = 0;
  std::int64_t tokens = 0, prompt = 0, hit = 0;
};

Replay replay(const model::Trace& trace) {
  const auto config = config_for_conversations();
  const auto profile = config::load_profile("deepseek-v4.1-flash", "profiles").value();
  World world(config, profile, queue::EmbeddedQueue::make(config.prefill).value(), 17);
  world.keep_records(true);
  world.start();
  const Nanos start = world.loop().now();
  std::unordered_set<std::uint64_t> seen;
  Replay result;
  std::int64_t wanted = 0;
  for (std::size_t i = 0; i < std::min(kRequests, trace.requests.size()); ++i) {
    const model::TraceRequest& request = trace.requests[i];
    std::vector<std::uint64_t> blocks;
    for (const model::BlockRun& run : trace.runs_of(request)) {
      for (std::uint32_t b = 0; b < run.count; ++b) blocks.push_back(run.first + b);
    }
    Ask ask;
    ask.prompt = request.prompt_tokens;
    ask.output_limit = std::max<std::int64_t>(request.output_tokens, 1);
    for (std::size_t b = 0; b < blocks.size() && seen.contains(blocks[b]); ++b)
      ask.shared += trace.block_tokens;
    ask.shared = std::min(ask.shared, ask.prompt);
    seen.insert(blocks.begin(), blocks.end());
    wanted += ask.output_limit;
    result.prompt += ask.prompt;
    world.loop().at(start + request.arrival, [&world, ask] { world.submit(ask); });
  }
  EXPECT_TRUE(world.run_out(Nanos{3'600'000'000'000})) << "it does not come to an end";
  for (const std::string& what : world.violations()) ADD_FAILURE() << what;
  EXPECT_EQ(world.cluster().census().total(), 0U);
  EXPECT_EQ(world.agents().accounts() + world.held(), 0U);
  for (const auto& [id, outcome] : world.outcomes()) {
    EXPECT_TRUE(outcome.finished) << "request " << id.value << ": " << outcome.message;
    result.tokens += outcome.tokens;
  }
  EXPECT_EQ(result.tokens, wanted) << "each token once";
  for (const Record& record : world.records()) {
    if (const auto* done = std::get_if<FinishedRecord>(&record.body)) result.hit += done->hit.value;
  }
  result.hash = world.hash();
  return result;
}

TEST(RecordedLoad, ConversationsAreServedWholeAndTwiceTheSame) {
  const char* data = std::getenv("TRIMTAB_DATA");
  if (data == nullptr) GTEST_SKIP() << "TRIMTAB_DATA names no folder of recorded traces";
  const auto trace = io::read_trace(std::string(data) + "/traces/mooncake_conversation.jsonl", {});
  ASSERT_TRUE(trace) << to_string(trace.error());
  const Replay first = replay(*trace);
  EXPECT_EQ(first.hash, replay(*trace).hash);
  EXPECT_GT(first.hit, first.prompt / 10) << "turns share their history, and the pool has it";
  std::printf("%lld prompt tokens, %lld hit, %lld generated, hash %016llx\n",
              static_cast<long long>(first.prompt), static_cast<long long>(first.hit),
              static_cast<long long>(first.tokens), static_cast<unsigned long long>(first.hash));
}

}  // namespace
}  // namespace trimtab::cluster
