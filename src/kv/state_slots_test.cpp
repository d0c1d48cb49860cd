#include "kv/state_slots.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "base/prng.h"
#include "config/profile.h"

namespace trimtab::kv {
namespace {

/// The layout that `trimtab serve` would use for DeepSeek-V4.1-Flash.
const model::KvLayout& v41() {
  static const auto profile = config::load_profile("deepseek-v4.1-flash", "profiles");
  EXPECT_TRUE(profile) << base::to_string(profile.error());
  return profile->kv;
}

TEST(StateSlots, TheProfileHasTheSizesOfTheOpenEngine) {
  EXPECT_EQ(v41().state_bytes.value, 3'128'928);
  EXPECT_EQ(v41().block_bytes.value, 114'048);
  EXPECT_EQ(v41().ring_slots, 134);
}

TEST(StateSlots, OnePointTwoTimesTheSequencesAndOneMore) {
  EXPECT_EQ(StateSlots::count_for(256), 308U) << "0.96 GB of V4.1 slots";
  EXPECT_EQ(StateSlots::count_for(10), 13U);
  EXPECT_EQ(StateSlots::count_for(1), 2U);
}

TEST(StateSlots, TheRingKeepsTheWindowThroughARollback) {
  const auto& layout = v41();
  EXPECT_EQ(rollback_tokens_max(layout), 6);
  EXPECT_EQ(ring_row(133, layout.ring_slots), 133);
  EXPECT_EQ(ring_row(134, layout.ring_slots), 0);
  // After 6 tokens that are taken back, the 128 before them still have rows of their own.
  for (const std::int64_t end : {134L, 1'000L, 96'896L}) {
    std::vector<std::int64_t> holds(static_cast<std::size_t>(layout.ring_slots), -1);
    for (std::int64_t p = 0; p < end + 6; ++p) holds[static_cast<std::size_t>(ring_row(p, 134))] = p;
    for (std::int64_t p = end - 128; p < end; ++p)
      EXPECT_EQ(holds[static_cast<std::size_t>(ring_row(p, 134))], p);
    EXPECT_NE(holds[static_cast<std::size_t>(ring_row(end - 129, 134))], end - 129) << "not one row more";
  }
}

TEST(MemoryPlan, SlotsFirstThenBlocks) {
  // 8 GB of KV memory, 256 sequences: 308 slots of 3.1 MB, and the rest in blocks.
  const auto plan = plan_memory(base::Bytes{8'000'000'000}, 256, v41());
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->slots, 308U);
  EXPECT_EQ(plan->blocks, (8'000'000'000 - 308LL * 3'128'928) / 114'048);
  EXPECT_EQ(plan->unused_bytes.value,
            8'000'000'000 - 308LL * 3'128'928 - std::int64_t{plan->blocks} * 114'048);
  const auto small = plan_memory(base::Bytes{900'000'000}, 256, v41());
  ASSERT_FALSE(small);
  EXPECT_EQ(small.error().code, base::Code::kInvalidArgument);
  model::KvLayout plain;
  plain.block_bytes = base::Bytes{1'000};
  EXPECT_EQ(plan_memory(base::Bytes{10'500}, 256, plain)->slots, 0U);
  EXPECT_EQ(plan_memory(base::Bytes{10'500}, 256, plain)->blocks, 10U);
}

TEST(Admission, BothOrNone) {
  MemoryPlan plan;
  plan.slots = 2;
  plan.blocks = 10;
  Admission admission(plan);
  const auto first = admission.admit(RequestId{1}, 1'000);
  ASSERT_TRUE(first);
  EXPECT_EQ(*first, 0U);
  const auto no_blocks = admission.admit(RequestId{2}, 400);
  ASSERT_FALSE(no_blocks);
  EXPECT_EQ(no_blocks.error().message, "needs 4 KV blocks, 2 of 10 are free");
  EXPECT_EQ(admission.slots().free(), 1U) << "the slot went back";
  ASSERT_TRUE(admission.admit(RequestId{2}, 100));
  const auto no_slot = admission.admit(RequestId{3}, 100);
  ASSERT_FALSE(no_slot);
  EXPECT_EQ(no_slot.error().message, "all 2 state slots are taken");
  EXPECT_EQ(admission.tables().allocator().free(), 1U) << "no block was taken";
  admission.release(RequestId{1});
  EXPECT_EQ(*admission.admit(RequestId{3}, 100), 0U);
}

TEST(Admission, NeverLaterOrOk) {
  MemoryPlan plan;
  plan.slots = 2;
  plan.blocks = 10;
  Admission admission(plan);
  EXPECT_EQ(admission.verdict(10 * 128), Verdict::kOk);
  EXPECT_EQ(admission.verdict(10 * 128 + 1), Verdict::kNever) << "not even with the arena to itself";
  EXPECT_EQ(admission.verdict(11 * 128, 5), Verdict::kNever) << "shared blocks lie in the arena as well";
  const auto never = admission.admit(RequestId{1}, 10 * 128 + 1);
  ASSERT_FALSE(never);
  EXPECT_EQ(never.error().code, base::Code::kTooLarge);
  EXPECT_EQ(admission.slots().free(), 2U);

  ASSERT_TRUE(admission.admit(RequestId{1}, 6 * 128));
  EXPECT_EQ(admission.verdict(5 * 128), Verdict::kLater) << "blocks are short";
  EXPECT_EQ(admission.verdict(5 * 128, 1), Verdict::kOk) << "one of them is there already";
  ASSERT_TRUE(admission.admit(RequestId{2}, 128));
  EXPECT_EQ(admission.verdict(128), Verdict::kLater) << "slots are short";
  admission.release(RequestId{1});
  EXPECT_EQ(admission.verdict(9 * 128), Verdict::kOk);
}

TEST(Admission, AForkSharesBlocksAndCopiesTheSlot) {
  MemoryPlan plan;
  plan.slots = 2;
  plan.blocks = 4;
  Admission admission(plan);
  ASSERT_TRUE(admission.admit(RequestId{1}, 300));
  const auto fork = admission.fork(RequestId{1}, RequestId{2}, 200);
  ASSERT_TRUE(fork && fork->slot);
  EXPECT_EQ(fork->slot->from, *admission.slot_of(RequestId{1}));
  EXPECT_EQ(fork->slot->to, *admission.slot_of(RequestId{2}));
  EXPECT_NE(fork->slot->from, fork->slot->to) << "a ring is written in place: never shared";
  EXPECT_EQ(admission.tables().allocator().free(), 1U) << "sharing takes no block";
  EXPECT_EQ(admission.tables().blocks(RequestId{2}).size(), 2U);

  const auto refused = admission.fork(RequestId{1}, RequestId{3}, 200);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, base::Code::kResourceExhausted);
  EXPECT_FALSE(admission.tables().contains(RequestId{3})) << "both or none";
  admission.release(RequestId{1});
  admission.release(RequestId{2});
  EXPECT_EQ(admission.tables().allocator().free(), 4U);
  EXPECT_EQ(admission.slots().free(), 2U);
}

TEST(Admission, ModelsWithoutAWindowTakeNoSlot) {
  MemoryPlan plan;
  plan.blocks = 4;
  Admission admission(plan);
  const auto admitted = admission.admit(RequestId{1}, 512);
  ASSERT_TRUE(admitted);
  EXPECT_FALSE(*admitted);
  const auto fork = admission.fork(RequestId{1}, RequestId{2}, 512);
  ASSERT_TRUE(fork);
  EXPECT_FALSE(fork->slot);
  admission.release(RequestId{1});
  admission.release(RequestId{2});
  EXPECT_EQ(admission.tables().allocator().free(), 4U);
}

RC_GTEST_PROP(AdmissionProperty, WithTheSizesOfV41NothingLeaks, ()) {
  base::Prng prng(*rc::gen::arbitrary<std::uint64_t>());
  const auto sequences = static_cast<std::uint32_t>(1 + prng.below(16));
  const auto plan = plan_memory(base::Bytes{200'000'000}, sequences, v41());
  RC_ASSERT(plan.has_value());
  Admission admission(*plan);
  std::map<RequestId, std::pair<std::uint32_t, std::int64_t>> live;  // slot, tokens
  for (std::uint64_t i = 0; i < 300; ++i) {
    if (!live.empty() && prng.below(2) == 0) {
      auto it = live.begin();
      std::advance(it, static_cast<std::ptrdiff_t>(prng.below(live.size())));
      admission.release(it->first);
      live.erase(it);
    } else {
      const auto tokens = static_cast<std::int64_t>(1 + prng.below(prng.below(8) == 0 ? 400'000 : 60'000));
      const bool fits =
          admission.slots().free() > 0 && blocks_for(tokens) <= admission.tables().allocator().free();
      const bool never = blocks_for(tokens) > plan->blocks;
      RC_ASSERT((admission.verdict(tokens) == Verdict::kOk) == fits);
      RC_ASSERT((admission.verdict(tokens) == Verdict::kNever) == never);
      const auto admitted = admission.admit(RequestId{i}, tokens);
      RC_ASSERT(admitted.has_value() == fits);
      if (!admitted) continue;
      for (const auto& [other, held] : live) RC_ASSERT(held.first != **admitted);
      live[RequestId{i}] = {**admitted, tokens};
    }
    std::int64_t blocks = 0;
    for (const auto& [request, held] : live) blocks += blocks_for(held.second);
    RC_ASSERT(admission.slots().free() == plan->slots - live.size());
    RC_ASSERT(admission.tables().allocator().free() == plan->blocks - blocks);
  }
}

}  // namespace
}  // namespace trimtab::kv
