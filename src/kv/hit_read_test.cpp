#include "kv/hit_read.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>
#include <set>
#include <vector>

#include "base/prng.h"
#include "config/profile.h"
#include "kv/hit_counters.h"

namespace trimtab::kv {
namespace {

using Outcome = HitRead::Outcome;

const model::KvLayout& windowed() {
  static const auto profile = config::load_profile("deepseek-v4.1-flash", "profiles");
  EXPECT_TRUE(profile) << base::to_string(profile.error());
  return profile->kv;
}

BlockKey key(std::uint64_t n) { return {n * 0x9e3779b97f4a7c15ULL, n}; }

std::vector<BlockKey> chain(std::uint64_t first, std::size_t blocks) {
  std::vector<BlockKey> keys;
  for (std::size_t i = 0; i < blocks; ++i) keys.push_back(key(first + i));
  return keys;
}

/// A prompt of ten blocks and ten tokens, of which `matched` blocks are said to be present.
HitRead ten_blocks(std::uint32_t matched, std::vector<std::uint32_t> snapshots = {},
                   const model::KvLayout& layout = {}, WindowMode mode = WindowMode::kApproximate) {
  return {{1'290, matched, snapshots, mode}, chain(1, 10), 77, layout};
}

void read_blocks(HitRead& read, std::uint32_t from, std::uint32_t to) {
  for (std::uint32_t i = from; i < to; ++i) read.on_block(i, ReadResult::kRead);
}

TEST(HitRead, AllThatWasPromisedWasRead) {
  HitRead read = ten_blocks(6);
  read_blocks(read, 0, 5);
  EXPECT_FALSE(read.ready());
  read_blocks(read, 5, 6);
  EXPECT_TRUE(read.ready());
  EXPECT_EQ(read.outcome(), Outcome::kHit);
  EXPECT_EQ(read.hit().tokens.value, 768);
  EXPECT_TRUE(read.take_withdrawals().empty());
}

// The index answered, then the block was withdrawn: the rest is computed and the index is told.
TEST(HitRead, ABlockThatIsGoneEndsTheHitThereAndCorrectsTheIndex) {
  PrefixIndex index(16, 100);
  const auto keys = chain(1, 10);
  for (std::uint32_t i = 0; i < 6; ++i) index.insert(keys[i], i);
  HitRead read({1'290, index.longest_prefix(keys)}, keys, index.epoch(), {});
  read_blocks(read, 3, 6);
  read.on_block(2, ReadResult::kGone);
  EXPECT_FALSE(read.ready()) << "blocks 0 and 1 are still read";
  read_blocks(read, 0, 2);
  EXPECT_TRUE(read.ready());
  EXPECT_EQ(read.hit().tokens.value, 256) << "what lies behind the gap is of no use";
  EXPECT_EQ(read.outcome(), Outcome::kStale);
  for (const auto& gone : read.take_withdrawals()) EXPECT_TRUE(index.withdraw(gone.key, gone.seen_epoch));
  EXPECT_EQ(index.longest_prefix(keys), 2U);
  EXPECT_EQ(index.size(), 5U) << "only the block that is gone";
}

// dynamo#15079: a load that failed counted as loaded, and another request's KV was read. LMCache PR#5047: a
// retrieve that never ends must not park the request.
TEST(HitRead, AFailedOrUnendingReadFallsBackToComputing) {
  HitRead failed = ten_blocks(6);
  read_blocks(failed, 0, 4);
  failed.on_block(4, ReadResult::kFailed);
  EXPECT_TRUE(failed.ready());
  EXPECT_EQ(failed.hit().tokens.value, 512);
  EXPECT_EQ(failed.outcome(), Outcome::kFallback);
  EXPECT_EQ(failed.take_withdrawals().front().key, key(5));

  HitRead unending = ten_blocks(6);
  read_blocks(unending, 0, 2);
  read_blocks(unending, 3, 6);
  unending.give_up();
  EXPECT_TRUE(unending.ready());
  EXPECT_EQ(unending.hit().tokens.value, 256);
  EXPECT_EQ(unending.outcome(), Outcome::kFallback);
  unending.on_block(2, ReadResult::kRead);
  EXPECT_EQ(unending.hit().tokens.value, 256) << "too late";
}

// sglang PR#31108: a block of which one part (the indexer's) was evicted between exists and get is gone.
TEST(HitRead, APartLostBetweenAnswerAndReadClampsThePrefix) {
  for (const bool gone_first : {true, false}) {
    HitRead read = ten_blocks(3);
    read_blocks(read, 0, 2);
    if (gone_first) read.on_block(2, ReadResult::kGone);
    read.on_block(2, ReadResult::kRead);
    read.on_block(2, ReadResult::kGone);
    EXPECT_TRUE(read.ready());
    EXPECT_EQ(read.hit().tokens.value, 256) << "the other part's success does not make it whole";
    EXPECT_EQ(read.take_withdrawals().size(), 1U);
  }
}

TEST(HitRead, ASnapshotLostCostsOneBlockInApproximate) {
  HitRead read = ten_blocks(6, {3, 6}, windowed());
  read_blocks(read, 0, 6);
  EXPECT_FALSE(read.ready());
  EXPECT_EQ(read.hit().snapshot_blocks, 6);
  read.on_snapshot(6, ReadResult::kGone);
  EXPECT_TRUE(read.ready());
  EXPECT_EQ(read.hit().tokens.value, 5 * 128) << "one block again";
  EXPECT_EQ(read.hit().block_kv_blocks, 6) << "whose block KV is here";
  EXPECT_FALSE(read.hit().exact);
  EXPECT_EQ(read.outcome(), Outcome::kStale);
  HitCounters counters;
  HitAccount account;
  EXPECT_TRUE(counters.settle(account, read));
  EXPECT_EQ(counters.totals().approximate, 1U);
  EXPECT_EQ(counters.totals().snapshots_used, 0U);
  EXPECT_EQ(counters.totals().window_tokens_recomputed, 128);
  EXPECT_EQ(counters.totals().promised_tokens, 6 * 128);
  EXPECT_EQ(counters.totals().hit_tokens, 5 * 128);
}

TEST(HitRead, ASnapshotLostInExactGoesToTheNextOlderOne) {
  HitRead read = ten_blocks(6, {3, 6}, windowed(), WindowMode::kExact);
  read_blocks(read, 0, 6);
  read.on_snapshot(6, ReadResult::kFailed);
  EXPECT_FALSE(read.ready());
  EXPECT_EQ(read.hit().snapshot_blocks, 3);
  read.on_snapshot(3, ReadResult::kRead);
  EXPECT_TRUE(read.ready());
  EXPECT_TRUE(read.hit().exact);
  EXPECT_EQ(read.hit().tokens.value, 3 * 128);
  // And with none at all, from the start of this short prompt.
  HitRead none = ten_blocks(6, {3, 6}, windowed(), WindowMode::kExact);
  read_blocks(none, 0, 6);
  none.give_up();
  EXPECT_EQ(none.hit().tokens.value, 0);
  EXPECT_TRUE(none.hit().exact);
}

TEST(HitRead, ALossShrinksTheHitToWhereAllPoolsCanResume) {
  const std::vector<std::uint32_t> threes = {3, 6, 9};
  const std::vector<std::span<const std::uint32_t>> pools = {threes};
  HitQuery query;
  query.prompt_tokens = 1'290;
  query.matched_blocks = 8;
  query.pools = pools;
  HitRead read(query, chain(1, 10), 77, {});
  EXPECT_EQ(read.promised().block_kv_blocks, 6);
  HitRead moved = std::move(read);
  read_blocks(moved, 0, 5);
  moved.on_block(5, ReadResult::kGone);
  EXPECT_TRUE(moved.ready());
  EXPECT_EQ(moved.hit().tokens.value, 3 * 128);
}

// A state that was loaded belongs to the end that it was loaded for.
TEST(HitRead, AStateAtTheOldEndIsNotUsedAtTheNewOne) {
  HitRead read = ten_blocks(6, {6}, windowed());
  read.on_snapshot(6, ReadResult::kRead);
  read_blocks(read, 0, 4);
  read.on_block(4, ReadResult::kGone);
  EXPECT_TRUE(read.ready());
  EXPECT_EQ(read.hit().snapshot_blocks, 0);
  EXPECT_EQ(read.hit().tokens.value, 3 * 128);
  EXPECT_FALSE(read.hit().exact);
}

// vllm PR#28585, PR#57596: queries counted twice, skipped requests counted as misses.
TEST(HitCounters, EveryRequestOnce) {
  HitCounters counters;
  HitAccount hit, skipped, missed, gone;
  HitRead whole = ten_blocks(2);
  read_blocks(whole, 0, 2);
  EXPECT_TRUE(counters.settle(hit, whole));
  EXPECT_FALSE(counters.settle(hit, whole)) << "asked again: the same request";
  EXPECT_FALSE(counters.abandon(hit));
  EXPECT_TRUE(counters.settle(skipped, HitRead({128, 0}, chain(1, 1), 1, {})));
  EXPECT_TRUE(counters.settle(missed, ten_blocks(0)));
  EXPECT_TRUE(counters.abandon(gone));
  EXPECT_FALSE(counters.settle(gone, ten_blocks(0)));
  const HitTotals& totals = counters.totals();
  EXPECT_EQ(totals.hits, 1U);
  EXPECT_EQ(totals.skipped, 1U);
  EXPECT_EQ(totals.misses, 1U);
  EXPECT_EQ(totals.abandoned, 1U);
  EXPECT_EQ(totals.requests(), 4U);
  EXPECT_EQ(totals.prompt_tokens, 1'290 + 128 + 1'290);
  EXPECT_EQ(totals.hit_tokens, 256);
}

/// An index over a store that loses blocks, with or without the index being told, while requests are under
/// way and their complaints arrive late.
class World {
 public:
  explicit World(std::uint64_t seed) : prng_(seed) {}

  void step() {
    switch (prng_.below(8)) {
      case 0:
      case 1:
        put();
        break;
      case 2:
        evict(prng_.below(2) == 0);
        break;
      case 3:
        ask();
        break;
      case 4:
        deliver_a_withdrawal();
        break;
      default:
        read_something();
    }
  }

  /// Without changes of the store, one request corrects all that the next one could stumble over.
  void prove_that_the_index_was_corrected() {
    while (!open_.empty()) read_something();
    while (!late_.empty()) deliver_a_withdrawal();
    for (std::uint64_t c = 0; c < kChains; ++c) {
      for (const bool corrected : {false, true}) {
        HitRead read = start(c);
        for (std::uint32_t i = 0; i < read.promised().block_kv_blocks; ++i)
          read.on_block(i, store_.contains(chains_[c][i]) ? ReadResult::kRead : ReadResult::kGone);
        for (const auto& gone : read.take_withdrawals()) index_.withdraw(gone.key, gone.seen_epoch);
        if (corrected) RC_ASSERT(read.outcome() == Outcome::kHit || read.outcome() == Outcome::kMiss);
      }
    }
    const HitTotals& totals = counters_.totals();
    RC_ASSERT(totals.requests() == asked_);
    RC_ASSERT(totals.hit_tokens <= totals.promised_tokens);
    RC_ASSERT(totals.stale + totals.fallbacks > 0 || totals.hit_tokens == totals.promised_tokens);
  }

 private:
  static constexpr std::uint64_t kChains = 3;
  struct Open {
    HitRead read;
    HitAccount account;
    std::uint64_t chain = 0;
    std::uint64_t epoch = 0;
    std::set<std::uint32_t> here, lost;
  };

  HitRead start(std::uint64_t c) {
    const auto& keys = chains_[c];
    const auto tokens = static_cast<std::int64_t>(keys.size()) * 128 + 5;
    return {{tokens, index_.longest_prefix(keys)}, keys, index_.epoch(), {}};
  }
  void ask() {
    const std::uint64_t c = prng_.below(kChains);
    open_.push_back({start(c), {}, c, index_.epoch(), {}, {}});
    ++asked_;
    settle_if_ready(open_.size() - 1);
  }
  void put() {
    const auto& keys = chains_[prng_.below(kChains)];
    const std::size_t i = prng_.below(keys.size());
    store_.insert(keys[i]);
    std::optional<BlockKey> parent;
    if (i > 0) parent = keys[i - 1];
    index_.insert(keys[i], 0, parent);
  }
  void evict(bool told) {
    if (store_.empty()) return;
    auto at = store_.begin();
    std::advance(at, static_cast<std::ptrdiff_t>(prng_.below(store_.size())));
    if (told) index_.erase(*at);
    store_.erase(at);
  }
  void read_something() {
    if (open_.empty()) return;
    const std::size_t which = prng_.below(open_.size());
    Open& open = open_[which];
    if (prng_.below(20) == 0) {
      open.read.give_up();
    } else {
      const auto promised = static_cast<std::uint64_t>(open.read.promised().block_kv_blocks);
      const auto i = static_cast<std::uint32_t>(prng_.below(promised));
      ReadResult result = store_.contains(chains_[open.chain][i]) ? ReadResult::kRead : ReadResult::kGone;
      if (prng_.below(30) == 0) result = ReadResult::kFailed;
      if (result != ReadResult::kRead) {
        open.lost.insert(i);
        open.here.erase(i);
      } else if (!open.lost.contains(i)) {
        open.here.insert(i);
      }
      open.read.on_block(i, result);
    }
    for (const auto& gone : open.read.take_withdrawals()) {
      RC_ASSERT(gone.seen_epoch == open.epoch);
      late_.push_back(gone);
    }
    settle_if_ready(which);
  }
  void settle_if_ready(std::size_t which) {
    Open& open = open_[which];
    if (!open.read.ready()) return;
    for (std::uint32_t i = 0; i < open.read.hit().block_kv_blocks; ++i) RC_ASSERT(open.here.contains(i));
    RC_ASSERT(open.read.hit().tokens <= open.read.promised().tokens);
    RC_ASSERT(counters_.settle(open.account, open.read));
    RC_ASSERT(!counters_.settle(open.account, open.read));
    open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(which));
  }
  void deliver_a_withdrawal() {
    if (late_.empty()) return;
    const std::size_t which = prng_.below(late_.size());
    const auto gone = late_[which];
    late_.erase(late_.begin() + static_cast<std::ptrdiff_t>(which));
    const auto before = index_.find(gone.key);
    index_.withdraw(gone.key, gone.seen_epoch);
    // Gone if it is the entry that was seen, untouched if it was stored anew meanwhile.
    RC_ASSERT(index_.find(gone.key).has_value() == (before && before->epoch > gone.seen_epoch));
  }

  base::Prng prng_;
  PrefixIndex index_{64};
  std::set<BlockKey> store_;
  std::vector<std::vector<BlockKey>> chains_ = branching_chains();
  std::vector<Open> open_;
  std::vector<HitRead::Withdrawal> late_;
  HitCounters counters_;
  std::uint64_t asked_ = 0;

  static std::vector<std::vector<BlockKey>> branching_chains() {
    std::vector<std::vector<BlockKey>> chains(kChains, chain(1, 4));  // four blocks in common, then their own
    for (std::uint64_t c = 0; c < kChains; ++c)
      for (const BlockKey own : chain(100 * (c + 1), 5)) chains[c].push_back(own);
    return chains;
  }
};

RC_GTEST_PROP(HitReadProperty, WithdrawalsAtReadTimeCorrectTheIndexAndLoseNothing, ()) {
  World world(*rc::gen::arbitrary<std::uint64_t>());
  for (int i = 0; i < 400; ++i) world.step();
  world.prove_that_the_index_was_corrected();
}

}  // namespace
}  // namespace trimtab::kv
