// Hits that come layer by layer in a model with sliding-window layers: the state they begin from, and when it
// is restored again.
#include <gmock/gmock.h>

#include <algorithm>

#include "engine/hit_swap_harness.h"
#include "kv_state/snapshot_server.h"
#include "kv_state/state_host.h"

namespace trimtab::engine {
namespace {

using kv_pool::FetchOutcome;
using testing::ElementsAre;
using testing::IsEmpty;

/// Every third layer sees all, so that the pool's blocks have as many layers as without a window. This
/// machine holds the state after each block of the prompt.
class WindowSwapTest : public HitSwapTest {
 protected:
  WindowSwapTest() {
    gguf_.layers = 3 * kLayers;
    gguf_.window = 128;
    gguf_.window_pattern = 3;
  }
  void SetUp() override {
    HitSwapTest::SetUp();
    ring_ = right_->shape().ring();
    kv_state::ServerOptions options;
    options.listen = {"127.0.0.1", 0};
    auto server = kv_state::SnapshotServer::start(store_, options);
    ASSERT_TRUE(server);
    server_ = std::move(*server);
    auto slots = StateArena::create(path_ + ".own", ring_, 4);
    ASSERT_TRUE(slots) << base::to_string(slots.error());
    StateMoverOptions mover;
    mover.ring = ring_;
    mover.keep_socket = path_ + ".nobody-keeps";
    state_ = std::make_unique<RankState>(std::move(*slots), ring_, std::move(mover),
                                         [this](StateDone done) { inbox_.post(std::move(done)); });
  }
  void TearDown() override {
    HitSwapTest::TearDown();
    server_.reset();
    ipc::Segment::remove(path_ + ".own");
  }
  void complete(wire::PrefillStart& start) override {
    if (start.hit_tokens == 0) return;
    start.window.kv_blocks = start.hit_tokens / 128;
    start.window.exact = 1;
    for (std::uint32_t blocks = 1; blocks <= start.window.kv_blocks; ++blocks) {
      const std::int64_t end = std::int64_t{blocks} * 128;
      ASSERT_TRUE(right_->run(std::span(start.tokens).first(static_cast<std::size_t>(end))));
      std::vector<std::byte> content(static_cast<std::size_t>(kv::snapshot_bytes(ring_, end).value));
      ASSERT_TRUE(kv::copy_window_out(ring_, right_->ring(), end, end, content));
      ASSERT_TRUE(store_.put(kv::snapshot_name(start.keys, blocks, state_->layout_key), content));
      start.window.offers.push_back({blocks, {{0, 5, 1, "127.0.0.1", server_->port()}}});
    }
  }
  /// The state that the answer began from, and no other, is told: the entrypoint counts it.
  static void expect_one_state(const wire::PrefillDone& done, std::uint32_t blocks) {
    ASSERT_EQ(done.states.size(), 1U);
    EXPECT_EQ(done.states[0].blocks, blocks);
    EXPECT_EQ(done.states[0].end, wire::FetchEnd::kWhole);
  }

  kv::RingShape ring_;
  kv_state::SnapshotStore store_{base::Bytes{64 << 20}, kv::HostId{0}, 5};
  std::unique_ptr<kv_state::SnapshotServer> server_;
};

TEST_F(WindowSwapTest, AStepBeginsWithTheFirstLayerAndItsSnapshot) {
  const auto plan = begin_hit(kDear);
  EXPECT_THAT(layers_of_step(plan), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7)) << "of the layers that see all";
  const auto got = done(1);
  expect_right(got, hit_);
  EXPECT_EQ(got->hit_tokens, 256U);
  EXPECT_EQ(got->thrown_tokens, 0U);
  expect_one_state(*got, 2);
}

TEST_F(WindowSwapTest, AThrownChunkHasMovedTheRingOnAndTheNextBeginsFromTheSnapshotAgain) {
  // Every layer with a window has written its ring when the last one is missed.
  const auto plan = begin_hit(base::Nanos{5'000'000}, kLayers - 1);
  ASSERT_TRUE(step_soon());
  EXPECT_EQ(waited_, 1U);
  EXPECT_FALSE(step()) << "it waits for the end of its hit now";
  give(plan, hit_, kLayers);
  const auto got = done(1);
  expect_right(got, hit_);
  EXPECT_EQ(got->hit_tokens, 256U);
  EXPECT_EQ(got->thrown_tokens, 44U);
  expect_one_state(*got, 2);
}

TEST_F(WindowSwapTest, AHitThatTurnsOutShorterBeginsFromTheSnapshotAtItsEnd) {
  const auto plan = begin_hit(kDear);
  ASSERT_TRUE(step_that_loses_a_block(plan));
  const auto got = done(1);
  expect_right(got, hit_);
  EXPECT_EQ(got->hit_tokens, 128U);
  EXPECT_EQ(got->fetched_blocks, 1U);
  EXPECT_EQ(got->fetch, wire::FetchEnd::kGone);
  EXPECT_EQ(got->thrown_tokens, 44U);
  expect_one_state(*got, 1);
}

TEST_F(WindowSwapTest, AHitThatEndsWhileItsStateComesTakesTheOtherStateNext) {
  const auto plan = begin_hit(kDear);
  hold_states_ = true;
  for (int i = 0; i < 20'000 && held_.empty(); ++i) {
    ASSERT_FALSE(step()) << "the state is not there";
    usleep(1'000);
  }
  ASSERT_EQ(held_.size(), 1U);
  loader_->whole(plan, 0, 0, hit_.blocks[0]);
  loader_->over(plan, 1, FetchOutcome::kMissing);
  ASSERT_TRUE(loader_->ended(plan));
  EXPECT_FALSE(step()) << "the slot is not written twice at once";
  hold_states_ = false;
  role_->on_state(std::move(held_[0]));
  const auto got = done(1);
  expect_right(got, hit_);
  EXPECT_EQ(got->hit_tokens, 128U);
  EXPECT_EQ(got->thrown_tokens, 0U);
  expect_one_state(*got, 1);
}

TEST_F(WindowSwapTest, AHandOverIsToldOnceTheStateIsThereToo) {
  begin(kDear);
  const std::string segment = path_ + ".decode", beside = StateArena::path_beside(segment);
  auto target = StateArena::create(beside, ring_, 2);
  ASSERT_TRUE(target) << base::to_string(target.error());
  const Ask plain = ask(200, 0, 2);
  start(1, plain, true);
  ASSERT_TRUE(step());
  const auto own = state_->arena.slot(0);
  const std::vector<std::byte> state(own.begin(), own.end());
  EXPECT_TRUE(std::any_of(state.begin(), state.end(), [](std::byte one) { return one != std::byte{0}; }));
  ASSERT_TRUE(role_->on_frame(
      wire::to_frame(wire::DecodeTarget{RequestId{1}, {model::EngineId{0}, 0}, segment, {0, 1}, 1})));
  usleep(50'000);  // blocks that went beside the state would be there by now, and told
  EXPECT_THAT(outbox_.all<wire::PrefillDone>(), IsEmpty()) << "blocks go when the state has gone";
  take_events();
  for (int i = 0; i < 20'000 && outbox_.all<wire::PrefillDone>().empty(); ++i) {
    take_events();
    usleep(1'000);
  }
  ASSERT_EQ(outbox_.all<wire::PrefillDone>().size(), 1U);
  EXPECT_EQ(outbox_.all<wire::PrefillDone>()[0].handed_blocks, 2U);
  const auto there = target->slot(1);
  EXPECT_TRUE(std::equal(state.begin(), state.end(), there.begin(), there.end()));
  for (int i = 0; i < 20'000 && !role_->idle(); ++i) {
    take_events();
    usleep(1'000);
  }
  EXPECT_TRUE(role_->idle());
  ipc::Segment::remove(beside);
}

}  // namespace
}  // namespace trimtab::engine
