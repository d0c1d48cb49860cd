// The pure state machines against random orders, losses, delays and damage.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <bit>
#include <deque>

#include "kv_store/repair_queue.h"
#include "kv_store/stripe_read.h"
#include "kv_store/stripe_write.h"
#include "kv_store/target_health.h"
#include "kv_store/testing/fleet.h"

namespace trimtab::kv_store {
namespace {

using kv_target::Outcome;
using testing::block_of;
using testing::key_of;
using testing::layout_of;

/// Twelve shards in memory, as a block's writing left them.
struct Stripe {
  Stripe(const kv_code::StripeLayout& layout, std::uint64_t version) {
    kv_code::Shards spans;
    for (std::uint32_t s = 0; s < kShards; ++s) {
      bytes[s].resize(layout.shard_bytes);
      spans[s] = bytes[s];
    }
    kv_code::write_shards(layout, key_of(1), block_of(1, layout.block_bytes, version), spans);
  }
  std::array<std::vector<std::byte>, kShards> bytes;
};

struct Pending {
  std::uint8_t shard = 0, piece = 0;
};

/// What an answer of that kind leaves in memory and says.
StripeRead::Event answer_of(int kind, const Pending& one, const Pieces& pieces, const Stripe& right,
                            const Stripe& other, std::vector<std::byte>& memory) {
  StripeRead::Event event;
  event.kind = StripeRead::Event::Kind::kAnswer;
  event.shard = one.shard;
  event.piece = one.piece;
  event.shard_bytes = memory;
  event.bytes = pieces.bytes(one.piece);
  const auto begin = static_cast<std::ptrdiff_t>(pieces.begin(one.piece));
  const auto& from = (kind == 9 ? other : right).bytes[one.shard];
  std::copy_n(from.begin() + begin, event.bytes, memory.begin() + begin);
  if (kind == 5) event.outcome = Outcome::kMissing;
  if (kind == 6) event.outcome = Outcome::kFailed;
  if (kind == 7) memory[pieces.begin(one.piece) + 33] ^= std::byte{1};
  if (kind == 8) --event.bytes;
  return event;
}

Pieces any_pieces(const kv_code::StripeLayout& layout) {
  return make_pieces(layout, *rc::gen::inRange(0U, 4U), *rc::gen::element(1U, 64U, 128U, 512U));
}

/// Drives one read to its end with answers in a random order; `kind_of[shard]` says how each shard answers:
/// 0 to 4 right, 5 missing, 6 failed, 7 corrupt, 8 short, 9 of another writing, 10 never.
RC_GTEST_PROP(StripeReadTest, EndsOnceWithTheRightBytesOrNone, ()) {
  const auto layout = layout_of({600, 300, 500});
  const Pieces pieces = any_pieces(layout);
  Stripe first(layout, 0), second(layout, 1);
  StripeRead::Plan plan;
  std::array<int, kShards> kind_of{};
  const int worst = *rc::gen::inRange(1, 12);
  for (std::uint8_t s = 0; s < kShards; ++s) {
    kind_of[s] = *rc::gen::inRange(0, worst);
    plan.order.push_back(s);
  }
  plan.order.resize(*rc::gen::inRange<std::size_t>(9, 13));
  plan.at_start = *rc::gen::inRange(10U, 13U);
  plan.hedge_after = base::Nanos{*rc::gen::inRange(1, 50)};
  plan.deadline = base::Nanos{200};
  plan.all = *rc::gen::inRange(0, 5) == 0;
  StripeRead read(layout, key_of(1), pieces, plan);
  std::vector<Pending> out;
  std::array<std::vector<std::byte>, kShards> memory;
  ShardSet asked = 0;
  std::uint32_t ends = 0;
  bool late = false;  // the time was told and ended it
  std::optional<StripeRead::End> how;
  base::Nanos time{0};
  const auto act = [&](const StripeRead::Actions& actions) {
    if (ends > 0) RC_ASSERT(actions.submit == 0 && !actions.ended);
    RC_ASSERT((asked & actions.submit) == 0);  // nothing is asked for twice
    asked |= actions.submit;
    for (std::uint8_t s = 0; s < kShards; ++s) {
      if (!kv_code::has(actions.submit, s)) continue;
      memory[s].resize(layout.shard_bytes);
      for (std::uint8_t p = 0; p < pieces.count(); ++p) out.push_back({s, p});
    }
    if (actions.ended) ++ends, how = actions.ended;
  };
  act(read.step({}, time));
  RC_ASSERT(std::popcount(asked) <= static_cast<int>(plan.all ? kShards : plan.at_start) || ends == 1);
  for (bool told_last = false; !told_last;) {
    time += base::Nanos{*rc::gen::inRange(0, 8) + (out.empty() ? 20 : 0)};
    StripeRead::Event event;
    std::erase_if(out, [&](const Pending& one) { return kind_of[one.shard] == 10; });
    told_last = time >= base::Nanos{400};
    if (told_last || out.empty() || *rc::gen::inRange(0, 4) == 0) {
      event.kind = StripeRead::Event::Kind::kTime;
      act(read.step(event, time));
      late = ends > 0 && *how == StripeRead::End::kLate;
      continue;
    }
    const std::size_t which = *rc::gen::inRange<std::size_t>(0, out.size());
    const Pending one = out[which];
    out.erase(out.begin() + static_cast<std::ptrdiff_t>(which));
    act(read.step(answer_of(kind_of[one.shard], one, pieces, first, second, memory[one.shard]), time));
    RC_ASSERT(ends == 0 || *how != StripeRead::End::kLate || late);  // an answer makes nothing late
  }
  RC_ASSERT(ends == 1U);
  const auto right = std::ranges::count_if(plan.order, [&](std::uint8_t s) { return kind_of[s] <= 4; });
  const auto silent = std::ranges::count_if(plan.order, [&](std::uint8_t s) { return kind_of[s] == 10; });
  const auto others = std::ranges::count_if(plan.order, [&](std::uint8_t s) { return kind_of[s] == 9; });
  if (*how == StripeRead::End::kDone) {
    RC_ASSERT(right >= 10 || others >= 10);
    std::vector<std::byte> block(layout.block_bytes);
    RC_ASSERT(read.reader().assemble_all(block, kv_code::coder()).has_value());
    RC_ASSERT(block == block_of(1, layout.block_bytes, others >= 10 ? 1 : 0));
  } else if (*how == StripeRead::End::kUnreadable) {
    RC_ASSERT(right < 10 && others < 10);
  } else {
    RC_ASSERT(*how == StripeRead::End::kLate);
  }
  if (silent == 0 && right >= 10) RC_ASSERT(*how == StripeRead::End::kDone || time > plan.deadline);
}

TEST(StripeReadTest, TheFirstPieceEndsWithAUnitUnlessThatWereAll) {
  const auto layout = layout_of({600, 300, 500});
  const std::size_t first = layout.layers[1].slice_offset;
  ASSERT_NE(first % 64, 0U);
  EXPECT_EQ(make_pieces(layout, 1).ends, (std::vector<std::size_t>{first, layout.shard_bytes}));
  const Pieces pieces = make_pieces(layout, 1, 64);
  EXPECT_EQ(pieces.ends, (std::vector<std::size_t>{(first + 63) / 64 * 64, layout.shard_bytes}));
  EXPECT_EQ(pieces.bytes(0) + pieces.bytes(1), layout.shard_bytes);
  EXPECT_EQ(make_pieces(layout, 1, 4'096).ends, make_pieces(layout, 1).ends);
  EXPECT_EQ(make_pieces(layout, 0, 64).count(), 1U);
}

TEST(StripeReadTest, TheHedgeComesOnceAndOnlyWhenItIsTime) {
  const auto layout = layout_of({600});
  const Pieces pieces = make_pieces(layout, 0);
  StripeRead::Plan plan;
  for (std::uint8_t s = 0; s < kShards; ++s) plan.order.push_back(s);
  plan.at_start = 10;
  plan.hedge_after = base::Nanos{100};
  StripeRead read(layout, key_of(1), pieces, plan);
  EXPECT_EQ(read.step({}, base::Nanos{5}).submit, 0x3ffU);
  StripeRead::Event time;
  time.kind = StripeRead::Event::Kind::kTime;
  EXPECT_EQ(read.step(time, base::Nanos{104}).submit, 0U);
  EXPECT_EQ(read.step(time, base::Nanos{105}).submit, 1U << 10);
  EXPECT_EQ(read.step(time, base::Nanos{300}).submit, 0U);
  EXPECT_TRUE(read.hedged());
  StripeRead::Event missing;
  missing.kind = StripeRead::Event::Kind::kAnswer;
  missing.shard = 4;
  missing.outcome = Outcome::kMissing;
  EXPECT_EQ(read.step(missing, base::Nanos{301}).submit, 1U << 11) << "what is missing is replaced at once";
}

RC_GTEST_PROP(StripeWriteTest, EndsOnceAndErasesWhatDoesNotCount, ()) {
  StripeWrite::Plan plan;
  plan.policy = *rc::gen::element(WritePolicy::kAll, WritePolicy::kTen);
  plan.deadline = base::Nanos{150};
  plan.places = static_cast<ShardSet>(kv_code::kAllShards & ~(1U << *rc::gen::inRange(0, 14)) &
                                      ~(1U << *rc::gen::inRange(0, 14)));
  StripeWrite write(plan);
  std::vector<std::uint8_t> out;
  ShardSet done = 0, maybe = 0, erased = 0, failed = 0;
  std::uint32_t ends = 0;
  std::optional<StripeWrite::End> how;
  const auto act = [&](const StripeWrite::Actions& actions) {
    for (std::uint8_t s = 0; s < kShards; ++s)
      if (kv_code::has(actions.submit, s)) out.push_back(s);
    maybe |= actions.submit;
    if (actions.ended) ++ends, how = actions.ended, erased = actions.erase;
  };
  base::Nanos time{0};
  act(write.step({}, time));
  const int worst = *rc::gen::inRange(1, 16);
  while (time < base::Nanos{300}) {
    time += base::Nanos{*rc::gen::inRange(1, 20)};
    const bool answers = time < base::Nanos{300};  // at last the time is told
    StripeWrite::Event event;
    event.kind = StripeWrite::Event::Kind::kTime;
    if (answers && !out.empty() && *rc::gen::inRange(0, 5) > 0) {
      event.kind = StripeWrite::Event::Kind::kAnswer;
      event.shard = out.back();
      out.pop_back();
      const int kind = *rc::gen::inRange(0, worst);
      event.outcome = kind < 12 ? Outcome::kDone : kind < 14 ? Outcome::kFailed : Outcome::kFull;
      const auto bit = static_cast<ShardSet>(1U << event.shard);
      if (ends == 0 && event.outcome == Outcome::kDone) done |= bit;
      if (ends == 0 && event.outcome == Outcome::kFull) maybe &= static_cast<ShardSet>(~(bit & ~failed));
      event.usable = *rc::gen::inRange(0, 2) == 0;
      if (event.outcome == Outcome::kFailed) failed |= bit;
    }
    const bool was_over = ends > 0;
    act(write.step(event, time));
    RC_ASSERT(was_over || ends == 0 || *how != StripeWrite::End::kLate ||
              event.kind == StripeWrite::Event::Kind::kTime);  // an answer makes nothing late
  }
  RC_ASSERT(ends == 1U);
  const int needed = plan.policy == WritePolicy::kAll ? 12 : 10;
  if (*how == StripeWrite::End::kDurable) {
    RC_ASSERT(std::popcount(write.written()) >= needed);
    RC_ASSERT(write.written() == done && erased == 0);
    RC_ASSERT(out.empty());  // nobody's answer is outstanding: what lacks has failed
  } else {
    RC_ASSERT(std::popcount(done) < needed || *how == StripeWrite::End::kLate);
    RC_ASSERT(erased == maybe);  // all that may be there, nothing that is not
  }
}

TEST(StripeWriteTest, AFailedShardIsTriedThreeTimesWhileItsTargetIsReliedOn) {
  StripeWrite::Plan plan;
  plan.deadline = base::Nanos{1'000};
  StripeWrite write(plan);
  ASSERT_EQ(write.step({}, base::Nanos{0}).submit, kv_code::kAllShards);
  StripeWrite::Event event;
  event.kind = StripeWrite::Event::Kind::kAnswer;
  for (event.shard = 0; event.shard < 11; ++event.shard)
    ASSERT_FALSE(write.step(event, base::Nanos{1}).ended);
  event.outcome = Outcome::kFailed;
  event.usable = true;
  for (int again = 0; again < 2; ++again) {
    const auto actions = write.step(event, base::Nanos{2});
    ASSERT_EQ(actions.submit, 1U << 11);
    ASSERT_FALSE(actions.ended) << "eleven are durable, and the twelfth may still become so";
  }
  const auto last = write.step(event, base::Nanos{3});
  EXPECT_EQ(last.submit, 0U);
  ASSERT_TRUE(last.ended);
  EXPECT_EQ(*last.ended, StripeWrite::End::kDurable);
  EXPECT_EQ(write.lacking(), 1U << 11);
}

TEST(StripeWriteTest, LatenessAloneNeverMakesTenShardsCount) {
  StripeWrite::Plan plan;
  plan.deadline = base::Nanos{1'000};
  StripeWrite write(plan);
  write.step({}, base::Nanos{0});
  StripeWrite::Event event;
  event.kind = StripeWrite::Event::Kind::kAnswer;
  for (event.shard = 0; event.shard < 10; ++event.shard) write.step(event, base::Nanos{1});
  event.kind = StripeWrite::Event::Kind::kTime;
  EXPECT_FALSE(write.step(event, base::Nanos{999}).ended);
  const auto late = write.step(event, base::Nanos{1'000});
  ASSERT_TRUE(late.ended);
  EXPECT_EQ(*late.ended, StripeWrite::End::kLate);
  EXPECT_EQ(late.erase, kv_code::kAllShards);
}

TEST(TargetHealthTest, DiesProbesAndRevives) {
  using State = TargetHealth::State;
  using Event = TargetHealth::Event;
  using Action = TargetHealth::Action;
  TargetHealth::Options options;
  options.backoff = base::Nanos{100};
  options.backoff_most = base::Nanos{350};
  options.probe_timeout = base::Nanos{50};
  TargetHealth health(options);
  EXPECT_EQ(health.step(Event::kFailure, base::Nanos{0}), Action::kNone);
  EXPECT_EQ(health.state(), State::kSuspect);
  EXPECT_EQ(health.step(Event::kAnswer, base::Nanos{1}), Action::kNone);
  EXPECT_EQ(health.state(), State::kAlive);
  health.step(Event::kFailure, base::Nanos{2});
  health.step(Event::kFailure, base::Nanos{2});
  EXPECT_EQ(health.step(Event::kFailure, base::Nanos{2}), Action::kDied);
  EXPECT_EQ(health.step(Event::kAnswer, base::Nanos{3}), Action::kNone) << "an answer from before it died";
  EXPECT_EQ(health.step(Event::kTime, base::Nanos{101}), Action::kNone);
  EXPECT_EQ(health.step(Event::kTime, base::Nanos{102}), Action::kProbe);
  EXPECT_EQ(health.step(Event::kTime, base::Nanos{152}), Action::kNone);
  EXPECT_EQ(health.state(), State::kDead) << "the probe was not answered in time";
  EXPECT_EQ(health.wake(), base::Nanos{352}) << "the backoff doubled";
  EXPECT_EQ(health.step(Event::kTime, base::Nanos{352}), Action::kProbe);
  EXPECT_EQ(health.step(Event::kFailure, base::Nanos{353}), Action::kNone);
  EXPECT_EQ(health.wake(), base::Nanos{703}) << "up to its bound";
  EXPECT_EQ(health.step(Event::kTime, base::Nanos{703}), Action::kProbe);
  EXPECT_EQ(health.step(Event::kAnswer, base::Nanos{704}), Action::kRevive);
  EXPECT_TRUE(health.usable());
}

TEST(RepairQueueTest, OldestFirstOnceEachBoundedAndNotBeforeItsTime) {
  RepairQueue queue(3);
  queue.push({key_of(1), RepairReason::kLacking, base::Nanos{50}});
  queue.push({key_of(2), RepairReason::kLacking, base::Nanos{0}});
  queue.push({key_of(3), RepairReason::kLacking, base::Nanos{0}});
  queue.push({key_of(2), RepairReason::kDamaged, base::Nanos{0}});
  queue.push({key_of(4), RepairReason::kLacking, base::Nanos{0}});
  EXPECT_EQ(queue.dropped(), 1U);
  const auto first = queue.pop(base::Nanos{1});
  ASSERT_TRUE(first);
  EXPECT_EQ(first->key, key_of(2));
  EXPECT_EQ(first->reason, RepairReason::kDamaged);
  EXPECT_EQ(queue.pop(base::Nanos{1})->key, key_of(3));
  EXPECT_FALSE(queue.pop(base::Nanos{49}));
  EXPECT_EQ(queue.quiet_until(), base::Nanos{50});
  EXPECT_EQ(queue.pop(base::Nanos{50})->key, key_of(1));
  EXPECT_TRUE(queue.empty());
}

TEST(ByteRateTest, GivesItsRateAndPaysItsDebts) {
  ByteRate rate(1'000'000);
  base::Nanos now{1'000'000'000};
  std::uint64_t bytes = 0;
  for (int i = 0; i < 10'000; ++i) {
    now += base::Nanos{1'000'000};
    if (!rate.ready(now)) continue;
    rate.spend(30'000);
    bytes += 30'000;
  }
  EXPECT_NEAR(static_cast<double>(bytes), 10e6 + 1e6, 0.05e6) << "ten seconds, and what was saved before";
  rate.spend(2'000'000);
  const base::Nanos at = rate.ready_at(now);
  EXPECT_FALSE(rate.ready(at - base::Nanos{10'000'000}));
  EXPECT_TRUE(rate.ready(at));
}

TEST(LatencyTest, QuantilesAreRightToABucketAndFollowChanges) {
  Latency latency;
  EXPECT_EQ(latency.quantile(950, base::Nanos{7}), base::Nanos{7});
  for (std::int64_t i = 1; i <= 1'000; ++i) latency.add(base::Nanos{i * 1'000});
  const auto p95 = static_cast<double>(latency.quantile(950, base::Nanos{0}).value);
  EXPECT_GE(p95, 950'000 * 0.99);
  EXPECT_LE(p95, 950'000 * 1.26);
  for (int i = 0; i < 6'000; ++i) latency.add(base::Nanos{5'000'000});
  EXPECT_GE(latency.quantile(500, base::Nanos{0}).value, 5'000'000);
}

}  // namespace
}  // namespace trimtab::kv_store
