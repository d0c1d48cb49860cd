// Blocks that are on their way somewhere when their request ends: nobody else gets them before they have
// arrived.
#include <gmock/gmock.h>

#include <utility>

#include "engine/hit_swap_harness.h"
#include "kv_pool/content_checksum.h"

namespace trimtab::engine {
namespace {

using testing::IsEmpty;

// vllm#46951: blocks of a request that ended were given to another while they were being stored, and the
// other's KV was found under their keys.
TEST_F(HitSwapTest, ABlockOnItsWayToThePoolIsGivenToNobodyElse) {
  begin(kDear);
  loader_->hold_puts();
  Ask first = ask(300, 2, 11);
  const auto right = std::exchange(first.blocks, {});
  const Ask second = ask(290, 0, 12);
  start(1, first);
  ASSERT_TRUE(step_soon());
  const auto put = loader_->next_put();
  ASSERT_TRUE(put);
  abort(1);
  start(2, second);
  ASSERT_TRUE(step_soon()) << "the other is computed meanwhile";
  EXPECT_THAT(outbox_.all<wire::Released>(), IsEmpty()) << "its blocks are still read";
  loader_->refuse_puts();  // all but the one that waits
  loader_->grant(*put, 5);
  const auto stored = loader_->next_stored();
  ASSERT_TRUE(stored);
  EXPECT_EQ(stored->content, right[0]);
  EXPECT_EQ(stored->checksum, kv_pool::content_checksum(put->key, right[0]));
  EXPECT_TRUE(released(1));
  expect_right(done(2), second);
}

// Whoever reserved places on a decode rank may free them once the prefill rank has said Released: it must not
// be copying any more.
TEST_F(HitSwapTest, AnAbortIsAnsweredWhenTheHandOverHasStopped) {
  begin(kDear);
  const Ask plain = ask(150, 0, 2);
  start(1, plain, true);
  ASSERT_TRUE(role_->on_frame(wire::to_frame(elsewhere(1))));
  transport_.hold(true);
  ASSERT_TRUE(step());
  ASSERT_TRUE(transport_.begun(1));
  abort(1);
  EXPECT_THAT(outbox_.all<wire::Released>(), IsEmpty()) << "a block is being copied";
  EXPECT_LT(role_->blocks_free(), own_->arena().blocks());
  transport_.hold(false);
  const auto left = released(1);
  ASSERT_TRUE(left);
  EXPECT_EQ(left->blocks_free, own_->arena().blocks());
  EXPECT_EQ(transport_.copies(), 1) << "the second block was not begun any more";
  EXPECT_THAT(outbox_.all<wire::PrefillDone>(), IsEmpty());
}

}  // namespace
}  // namespace trimtab::engine
