// A hit that is computed from while it comes, against a loader that the test drives by hand.
#include <gmock/gmock.h>

#include "engine/hit_swap_harness.h"

namespace trimtab::engine {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST_F(HitSwapTest, AStepBeginsWithTheFirstLayerAndMeetsTheOthersOnItsWay) {
  const auto plan = begin_hit(kDear);
  EXPECT_THAT(layers_of_step(plan), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  const auto got = done(1);
  expect_right(got, hit_);
  EXPECT_EQ(got->hit_tokens, 256U);
  EXPECT_EQ(got->thrown_tokens, 0U);
  EXPECT_GT(got->swap_step_ns, 0);
  EXPECT_GE(got->swap_step_ns, got->swap_stalled_ns);
  EXPECT_TRUE(loader_->ended(plan)) << "its slots are given back";
}

TEST_F(HitSwapTest, AStepThatWouldWaitDoesNotBegin) {
  const auto plan = begin_hit(base::Nanos{1});  // nothing to hide a copy behind
  for (int i = 0; i < 50; ++i) {
    EXPECT_FALSE(step());
    usleep(1'000);
  }
  give(plan, hit_, kLayers);
  const auto got = done(1);
  expect_right(got, hit_);
  EXPECT_EQ(got->hit_tokens, 256U);
  EXPECT_EQ(got->swap_stalled_ns, 0);
}

TEST_F(HitSwapTest, ABlockThatIsGoneMidwayEndsTheHitBeforeItAndNothingElse) {
  begin(kDear);
  const Ask plain = ask(90, 0, 2);
  start(1, hit_);
  start(2, plain);
  const auto plan = plan_of(hit_);
  give(plan, hit_, 1);
  usleep(50'000);  // so that both may be in one step; either way it must come out right
  ASSERT_TRUE(step_that_loses_a_block(plan));
  EXPECT_TRUE(waited_ == 1 || step_soon());
  const auto got = done(1);
  expect_right(got, hit_);
  EXPECT_EQ(got->hit_tokens, 128U) << "the block before it was whole";
  EXPECT_EQ(got->thrown_tokens, 44U);
  EXPECT_EQ(got->fetch, wire::FetchEnd::kGone);
  expect_right(done(2), plain);
}

TEST_F(HitSwapTest, AWrongByteNeverLeavesTheStep) {
  for (std::uint32_t wrong_layer : {0U, 3U, kLayers - 1}) {
    begin(kDear);
    start(1 + wrong_layer, hit_);
    const auto plan = plan_of(hit_);
    const std::size_t layer_bytes = hit_.blocks[1].size() / kLayers;
    loader_->slot(1)[wrong_layer * layer_bytes + 17] ^= std::byte{64};
    give(plan, hit_, 1);
    ASSERT_TRUE(
        step_soon([&](std::size_t layer) { give(plan, hit_, static_cast<std::uint32_t>(layer) + 1); }));
    EXPECT_THAT(outbox_.all<wire::PrefillStep>(), IsEmpty()) << "nothing of that step is told";
    const auto got = done(1 + wrong_layer);
    expect_right(got, hit_);
    EXPECT_EQ(got->hit_tokens, 128U);
    EXPECT_EQ(got->thrown_tokens, 44U);
    EXPECT_EQ(got->fetch, wire::FetchEnd::kFailed);
    EXPECT_TRUE(loader_->ended(plan));
    EXPECT_THAT(loader_->corrupt(), ElementsAre(plan.fetch.keys[1])) << "the loader withdraws it";
    TearDown();
    outbox_.~KeptOutbox();
    new (&outbox_) KeptOutbox;
    SetUp();
  }
}

TEST_F(HitSwapTest, ALayerThatDoesNotComeHoldsTheStepForItsOwnLengthAtMost) {
  const auto plan =
      begin_hit(base::Nanos{5'000'000}, kLayers - 1);  // and the last never, while the step waits
  ASSERT_TRUE(step_soon());
  EXPECT_EQ(waited_, 1U);
  EXPECT_THAT(outbox_.all<wire::PrefillDone>(), IsEmpty());
  EXPECT_FALSE(step()) << "it waits for the end of its hit now";
  give(plan, hit_, kLayers);
  const auto got = done(1);
  expect_right(got, hit_);
  EXPECT_EQ(got->hit_tokens, 256U);
  EXPECT_EQ(got->thrown_tokens, 44U);
  EXPECT_GT(got->swap_stalled_ns, 0);
}

TEST_F(HitSwapTest, ALoaderThatDiesMidwayCostsItsHit) {
  const auto plan = begin_hit(kDear);
  ASSERT_TRUE(step_soon([&](std::size_t layer) {
    if (layer < 4) give(plan, hit_, static_cast<std::uint32_t>(layer) + 1);
    if (layer == 4) loader_.reset();
  }));
  const auto got = done(1);
  expect_right(got, hit_);
  EXPECT_EQ(got->hit_tokens, 0U);
  EXPECT_EQ(got->thrown_tokens, 44U);
  EXPECT_EQ(got->fetch, wire::FetchEnd::kFailed);
}

TEST_F(HitSwapTest, ALoaderThatComesBackGivesTheHitAllTheSame) {
  const auto plan = begin_hit(kDear);
  ASSERT_TRUE(step_soon([&](std::size_t layer) {
    if (layer < 4) give(plan, hit_, static_cast<std::uint32_t>(layer) + 1);
    if (layer == 4) serve();  // another, at the same place, with nothing of the first one's
  }));
  give(plan_of(hit_), hit_, kLayers);
  const auto got = done(1);
  expect_right(got, hit_);
  EXPECT_EQ(got->hit_tokens, 256U);
  EXPECT_EQ(got->thrown_tokens, 44U);
  // One that was restarted while nobody asked anything: the first fetch finds it.
  serve();
  start(2, hit_);
  give(plan_of(hit_), hit_, kLayers);
  const auto next = done(2);
  expect_right(next, hit_);
  EXPECT_EQ(next->hit_tokens, 256U);
}

TEST_F(HitSwapTest, AnAbortMidwayEndsTheFetchAndHoldsNothing) {
  const auto plan = begin_hit(kDear, 3);
  abort(1);
  EXPECT_FALSE(role_->propose().has_work);
  const auto left = released(1);
  ASSERT_TRUE(left);
  EXPECT_EQ(left->blocks_free, own_->arena().blocks());
  EXPECT_TRUE(loader_->ended(plan));
  // The blocks are others' from now on: what still comes of the hit must not land in them.
  for (std::uint32_t i = 0; i < 2; ++i) std::ranges::fill(own_->arena().block(i), std::byte{0x5a});
  give(plan, hit_, kLayers);
  usleep(50'000);
  for (std::uint32_t i = 0; i < 2; ++i)
    EXPECT_TRUE(
        std::ranges::all_of(own_->arena().block(i), [](std::byte b) { return b == std::byte{0x5a}; }));
}

// LMCache PR#5047: a loader that lives, answers questions and has lost the plan.
TEST_F(HitSwapTest, AFetchOfWhichNothingMoreIsHeardIsComputed) {
  fetch_patience_ = base::Nanos{300'000'000};
  const Ask plain = ask(150, 0, 3);
  begin_hit(kDear, 3);
  const auto got = done(1);
  expect_right(got, hit_);
  EXPECT_EQ(got->hit_tokens, 0U);
  EXPECT_EQ(got->fetch, wire::FetchEnd::kFailed);
  start(2, plain, true);
  ASSERT_TRUE(role_->on_frame(wire::to_frame(elsewhere(2))));
  expect_right(done(2), plain);
}

TEST_F(HitSwapTest, AHandOverIsToldWhenItIsDoneAndNotAfterTheNextStep) {
  begin(kDear);
  const Ask plain = ask(90, 0, 2);
  start(1, plain, true);
  ASSERT_TRUE(role_->on_frame(wire::to_frame(elsewhere(1))));
  ASSERT_TRUE(step());
  // The rank's own thread is in its next step, say: nothing is taken from the inbox.
  for (int i = 0; i < 20'000 && outbox_.all<wire::PrefillDone>().empty(); ++i) usleep(1'000);
  ASSERT_EQ(outbox_.all<wire::PrefillDone>().size(), 1U);
  EXPECT_EQ(outbox_.all<wire::PrefillDone>()[0].first_token, plain.first_token);
  EXPECT_EQ(outbox_.all<wire::PrefillDone>()[0].handed_blocks, 1U);
  // Who comes back before the rank has seen the end of his first stay is not taken for a double.
  start(1, plain, true);
  ASSERT_TRUE(role_->on_frame(wire::to_frame(elsewhere(1))));
  ASSERT_TRUE(step());
  for (int i = 0; i < 20'000 && outbox_.all<wire::PrefillDone>().size() < 2; ++i) usleep(1'000);
  take_events();
  EXPECT_EQ(outbox_.all<wire::PrefillDone>().size(), 2U) << "each stay is told once";
  EXPECT_TRUE(role_->idle());
}

}  // namespace
}  // namespace trimtab::engine
