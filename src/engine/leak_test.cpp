#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <map>

#include "base/prng.h"
#include "engine/local_model.h"
#include "engine/rank_harness.h"
#include "engine/tiny_gguf.h"

namespace trimtab::engine {
namespace {

using model::RequestId;

/// What a client's request may be doing when it vanishes.
struct Life {
  RankHarness::Ask ask;
  bool target = false, decoding = false, image = false;
};

/// Blocks on their way to the pool are given back a moment later.
void expect_all_free(RankHarness& harness) {
  for (const auto& place :
       {RankHarness::prefill(0), RankHarness::prefill(1), RankHarness::decode(0), RankHarness::decode(1)}) {
    std::uint32_t free = 0;
    for (int tries = 0; tries < 6'000 && free != harness.hello(place).blocks_total; ++tries) {
      usleep(10'000);
      harness.send(place, wire::Abort{RequestId{1'000'000}});
      auto released = harness.wait_for<wire::Released>(place, RequestId{1'000'000});
      ASSERT_TRUE(released);
      free = released->blocks_free;
    }
    EXPECT_EQ(free, harness.hello(place).blocks_total);
  }
}

/// Hundreds of requests that are dropped at every stage: queued, fetching, waiting for an image, computing,
/// waiting for a place, handing over, reserved, decoding. Nothing may stay behind.
TEST(Leak, NoBlockStaysWhereverAClientVanishes) {
  const std::string path = testing::TempDir() + "/leak-" + std::to_string(getpid()) + ".gguf";
  ASSERT_TRUE(TinyGguf().write(path));
  RankHarness::Setup setup;
  setup.model_path = path;
  setup.prefill_ranks = setup.decode_ranks = 2;
  setup.prefill_blocks = 9;  // about two requests at a time: others queue
  setup.decode_blocks = 16;
  setup.block_bytes = LocalModel::open(path, 8, 1).value()->shape().kv_block_bytes();
  setup.cost = {0, 1'000'000'000, 0};
  setup.step_budget_ms = 150;  // several steps a prompt
  RankHarness harness(setup);
  ASSERT_TRUE(harness.start());
  base::Prng prng(20'251);
  std::map<RequestId, Life> lives;
  std::uint64_t next = 1, aborted = 0, finished = 0;
  const auto abort = [&](RequestId id) {
    const Life life = lives.at(id);
    lives.erase(id);
    // The prefill side first: it may be writing into the decode side's blocks.
    harness.send(RankHarness::prefill(life.ask.prefill_rank), wire::Abort{id});
    ASSERT_TRUE(harness.wait_for<wire::Released>(RankHarness::prefill(life.ask.prefill_rank), id));
    harness.send(RankHarness::decode(life.ask.decode_rank), wire::Abort{id});
    ASSERT_TRUE(harness.wait_for<wire::Released>(RankHarness::decode(life.ask.decode_rank), id));
    ++aborted;
  };
  while (next <= 300 && !testing::Test::HasFailure()) {
    const RequestId id{next++};
    Life& life = lives[id];
    life.ask.tokens.resize(20 + prng.below(450));
    // Few distinct prefixes, so that the pool hits.
    base::Prng content(prng.below(4));
    for (auto& token : life.ask.tokens) token = static_cast<std::int32_t>(content.below(640));
    life.ask.hit_blocks = static_cast<std::uint32_t>(prng.below((life.ask.tokens.size() - 1) / 128 + 1));
    life.ask.output_limit = 300;
    life.ask.prefill_rank = static_cast<std::uint32_t>(prng.below(2));
    life.ask.decode_rank = static_cast<std::uint32_t>(prng.below(2));
    life.image = life.ask.hit_blocks == 0 && prng.below(5) == 0;
    if (life.image) life.ask.images.push_back({5, 10, 64, 64, 16, {next, 1}});  // its rows never come
    harness.start_prefill(id, life.ask);
    if (prng.below(3) != 0) life.target = harness.reserve(id, life.ask);
    if (life.target && !life.image && prng.below(2) == 0) {
      auto done = harness.wait_for<wire::PrefillDone>(RankHarness::prefill(life.ask.prefill_rank), id, 0.2);
      life.decoding = done.has_value();
      if (done) harness.start_decode(id, life.ask, done->first_token);
    }
    if (prng.below(4) == 0) usleep(static_cast<useconds_t>(prng.below(3'000)));
    while (lives.size() > prng.below(7)) {
      auto victim = lives.begin();
      std::advance(victim, static_cast<std::ptrdiff_t>(prng.below(lives.size())));
      finished += victim->second.decoding ? 1 : 0;
      abort(victim->first);
    }
  }
  while (!lives.empty()) abort(lives.begin()->first);
  EXPECT_GT(aborted, 290U);
  EXPECT_GT(finished, 20U) << "too few were decoding when they were dropped";
  expect_all_free(harness);
  for (const int code : harness.stop()) EXPECT_EQ(code, 0);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace trimtab::engine
