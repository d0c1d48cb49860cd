#include "cluster/journey.h"

#include <gtest/gtest.h>

#include "base/prng.h"
#include "cluster/testing/virtual_world.h"
#include "queue/embedded_queue.h"

namespace trimtab::cluster {
namespace {

using testing::Ask;
using testing::World;

class JourneyTest : public ::testing::Test {
 protected:
  JourneyTest() {
    config_.prefill.step_budget_ms = 4;
    config_.prefill.tier_bounds_tokens = {512, 2'048, 4'096};
    config_.decode.kv_blocks = 100;
    profile_.cost = model::QuadraticCost{1'000'000, 1'000'000, 5'000};
    world_ =
        std::make_unique<World>(config_, profile_, queue::EmbeddedQueue::make(config_.prefill).value(), 1);
    world_->keep_records(true);
    world_->start();
  }
  Journey journey(RequestId id) const { return assemble(id, world_->records()); }

  model::ClusterConfig config_;
  model::Profile profile_;
  std::unique_ptr<World> world_;
};

TEST_F(JourneyTest, TellsEveryDecisionOfARequest) {
  Ask ask;
  ask.prompt = 3'000;
  ask.shared = 1'100;
  ask.output_limit = 12;
  ask.images.push_back({2'000, 100, 1'280, 800, 4'000, {}});
  ask.images.push_back({10, 100, 640, 480, 1'200, {}});  // inside the hit: not encoded again
  const RequestId id = world_->submit(ask);
  world_->run_out(Nanos{60'000'000'000});
  const Journey told = journey(id);
  ASSERT_EQ(told.passes.size(), 1U);
  const JourneyPass& pass = told.passes.front();
  EXPECT_EQ(told.submitted->patches, 5'200);
  EXPECT_TRUE(told.admission->admitted);
  EXPECT_EQ(pass.match.hit.value, 1'024);
  EXPECT_EQ(pass.match.images_to_encode, 1U);
  EXPECT_EQ(pass.queue->tier, model::TierId{2});
  ASSERT_TRUE(pass.lease);
  EXPECT_EQ(pass.lease->rank_left.size(), 2U);
  ASSERT_EQ(pass.images.size(), 1U);
  EXPECT_EQ(pass.images[0].choice.patches, 4'000);
  ASSERT_TRUE(pass.images[0].result);
  EXPECT_TRUE(pass.images[0].result->ok);
  // 1,976 tokens at 5 ns a pair are 20 ms of quota: several chunks under a budget of 4 ms, which cover the
  // rest.
  EXPECT_GE(pass.chunks.size(), 3U);
  TokenCount computed;
  Nanos predicted;
  for (const ChunkRecord& chunk : pass.chunks) {
    computed += chunk.tokens;
    predicted += chunk.predicted;
    EXPECT_LE(chunk.budget, chunk.vote);
  }
  EXPECT_EQ(computed.value, 1'976);
  EXPECT_NEAR(static_cast<double>(predicted.value), static_cast<double>(pass.match.quota.value), 10.0);
  ASSERT_FALSE(pass.choices.empty());
  EXPECT_TRUE(pass.choices.back().winner);
  EXPECT_TRUE(pass.choices.back().runner_up);
  ASSERT_TRUE(pass.prefill && pass.decode);
  EXPECT_TRUE(pass.prefill->handed);
  EXPECT_EQ(pass.decode->output_left.value, 11);
  EXPECT_GT(pass.prefill->quota_spent.value, 0);
  ASSERT_TRUE(told.finished);
  EXPECT_EQ(told.finished->output.value, 12);
  EXPECT_EQ(told.finished->computed.value, 1'976);
  EXPECT_GT(told.ended_at, *told.first_token_at);

  const std::string text = explain(told);
  for (const char* said :
       {"3000 prompt tokens", "1024 of 3000 tokens hit", "tier 2", "pulled by prefill engine",
        "image 0 of 4000 patches", "group MIN", "fewest expected to run soon", "runner-up", "prefilled by",
        "decoding on", "length: 3000 prompt tokens", "first token after"}) {
    EXPECT_NE(text.find(said), std::string::npos) << said << "\n" << text;
  }
}

TEST_F(JourneyTest, APreemptedRequestHasTwoPasses) {
  Ask ask;
  ask.prompt = 1'000;
  ask.output_limit = 400;
  const RequestId id = world_->submit(ask);
  world_->run_until(world_->loop().now() + Nanos{200'000'000});
  world_->decode(0).lose(0);
  world_->decode(1).lose(1);
  world_->run_out(Nanos{60'000'000'000});
  const Journey told = journey(id);
  ASSERT_EQ(told.passes.size(), 2U);
  EXPECT_TRUE(told.passes[0].requeue);
  EXPECT_GT(told.passes[1].match.tokens.value, 1'000);
  EXPECT_GE(told.passes[1].match.hit.value, 896) << "the first pass left its blocks in the pool";
  EXPECT_EQ(told.finished->output.value, 400);
  EXPECT_NE(explain(told).find("pass 2"), std::string::npos);
  EXPECT_NE(explain(told).find("was lost"), std::string::npos);
}

TEST_F(JourneyTest, ALogWithoutItsBeginningIsStillTold) {
  Ask ask;
  ask.prompt = 1'000;
  ask.output_limit = 3;
  const RequestId id = world_->submit(ask);
  world_->run_out(Nanos{60'000'000'000});
  const std::vector<Record>& all = world_->records();
  for (std::size_t skip = 0; skip < all.size(); ++skip) {
    const Journey told = assemble(id, {all.begin() + static_cast<std::ptrdiff_t>(skip), all.end()});
    EXPECT_FALSE(explain(told).empty());
  }
}

TEST_F(JourneyTest, EveryRecordSurvivesTheCodec) {
  base::Prng prng(3);
  for (int i = 0; i < 50; ++i) {
    Ask ask;
    ask.prompt = 1 + static_cast<std::int64_t>(prng.below(3'000));
    ask.output_limit = 1 + static_cast<std::int64_t>(prng.below(20));
    if (i % 3 == 0 && ask.prompt > 40) ask.images.push_back({1, 30, 64, 64, 16, {}});
    const RequestId id = world_->submit(ask);
    if (i % 5 == 0) world_->loop().after(Nanos{5'000'000}, [this, id] { world_->cancel(id); });
  }
  world_->decode(0).lose(0);
  world_->run_out(Nanos{60'000'000'000});
  std::vector<bool> kinds(std::variant_size_v<RecordBody>);
  for (const Record& record : world_->records()) {
    kinds[record.body.index()] = true;
    const auto bytes = base::encode(record);
    const auto back = base::decode<Record>(bytes);
    ASSERT_TRUE(back) << describe(record);
    EXPECT_EQ(kind(*back), kind(record));
    EXPECT_EQ(describe(*back), describe(record));
    EXPECT_EQ(base::encode(*back), bytes);
    // A torn or damaged record is an error, never a crash.
    for (std::size_t cut = 0; cut < bytes.size(); cut += 7) {
      EXPECT_FALSE(base::decode<Record>(std::span(bytes).first(cut)));
    }
  }
  EXPECT_GE(std::count(kinds.begin(), kinds.end(), true), 15);
  auto unknown = base::encode(world_->records().front());
  unknown[16] = std::byte{200};  // the kind, behind the request and the instant
  EXPECT_FALSE(base::decode<Record>(unknown));
}

}  // namespace
}  // namespace trimtab::cluster
