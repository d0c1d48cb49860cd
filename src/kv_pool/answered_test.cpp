// What a served pool tells its eviction policy of requests and of their answers.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "kv_pool/content_checksum.h"
#include "kv_pool/pool_store.h"
#include "kv_pool/test_support.h"
#include "kv_target/memory_target.h"
#include "policy/eviction/replay.h"

namespace trimtab::kv_pool {
namespace {

using base::Nanos;
using test::key;

constexpr std::uint64_t kBytes = 4'096;

Nanos seconds(std::int64_t n) { return Nanos{n * 1'000'000'000}; }

/// Writes down what it is told, keys by the numbers of the test.
class Recorder final : public eviction::Policy {
 public:
  explicit Recorder(std::map<std::uint64_t, std::uint64_t> names = {}) : names_(std::move(names)) {}
  std::vector<std::string> told;
  std::set<std::uint64_t> remembered;
  bool remembers(std::uint64_t of) const override { return remembered.contains(name(of)); }

 private:
  std::uint64_t name(std::uint64_t of) const {
    const auto found = names_.find(of);
    return found == names_.end() ? of : found->second;
  }
  std::string text(const eviction::Access& access) const {
    return fmt::format("by {} of {} known {}", access.now.value, access.prompt_blocks, access.known_blocks);
  }
  void on_stored(eviction::Slot slot, const eviction::Block& block, const eviction::Access& access) override {
    key_of_[slot] = name(block.key);
    const std::string behind =
        block.parent == eviction::kNoSlot ? "nothing" : std::to_string(key_of_.at(block.parent));
    told.push_back(
        fmt::format("stored {} at {} behind {} {}", name(block.key), block.position, behind, text(access)));
  }
  void on_used(eviction::Slot slot, const eviction::Access& access) override {
    told.push_back(fmt::format("used {} {}", key_of_.at(slot), text(access)));
  }
  void on_answered(eviction::Slot slot, Nanos asked, std::uint32_t tokens, Nanos now) override {
    told.push_back(
        fmt::format("answered {} by {} tokens {} now {}", key_of_.at(slot), asked.value, tokens, now.value));
  }
  void on_gone(eviction::Slot slot, bool) override { key_of_.erase(slot); }
  eviction::Slot candidate(Nanos) override {
    return key_of_.empty() ? eviction::kNoSlot : key_of_.begin()->first;
  }
  void postpone(eviction::Slot) override {}
  std::size_t order_bytes() const override { return 0; }

  std::map<std::uint64_t, std::uint64_t> names_;
  std::map<eviction::Slot, std::uint64_t> key_of_;
};

/// A pool over twelve targets in memory, in the test's own time.
struct TimedPool {
  /// In memory only, of so many slots.
  TimedPool(std::uint64_t slots, std::unique_ptr<eviction::Policy> order) : memory(slots * kBytes) {
    store = std::make_unique<PoolStore>(memory, kBytes, kBytes, 100, nullptr, 0, std::move(order));
  }
  TimedPool(std::uint64_t blocks, std::string name, std::unique_ptr<eviction::Policy> order = nullptr)
      : memory(16 * kBytes) {
    model::KvLayout kv;
    kv.block_bytes = base::Bytes{kBytes};
    kv.layer_bytes = {base::Bytes{kBytes}};
    StoreTier::Options options;
    options.store.layout = *kv_code::StripeLayout::make(kv);
    options.eviction = std::move(name);
    options.order = std::move(order);
    options.capacity_blocks = blocks;
    std::vector<std::unique_ptr<kv_target::Target>> targets;
    for (std::uint64_t i = 0; i < kv_code::kShards; ++i)
      targets.push_back(std::make_unique<kv_target::MemoryTarget>(kv_target::MemoryTarget::Options{
          blocks * options.store.layout.shard_bytes, options.store.layout.shard_bytes, i + 1}));
    tier = *StoreTier::open(std::move(targets), std::move(options), now);
    store = std::make_unique<PoolStore>(memory, kBytes, kBytes, 100, tier.get(), blocks);
  }

  protocol::Matched match(const std::vector<std::uint64_t>& chain, Nanos at, std::uint32_t blocks = 0) {
    std::vector<BlockKey> keys;
    for (const std::uint64_t n : chain) keys.push_back(key(n));
    store->at(now = std::max(now, at));
    return store->match(keys, true, blocks);
  }
  void put(std::uint64_t n, std::optional<std::uint64_t> parent) {
    store->at(now);
    std::optional<BlockKey> before;
    if (parent) before = key(*parent);
    const auto granted = store->put(1, key(n), before);
    if (granted.outcome == protocol::PutOutcome::kPresent) return;
    ASSERT_EQ(granted.outcome, protocol::PutOutcome::kGranted);
    const auto slot = std::span{memory}.subspan(granted.slot * kBytes, kBytes);
    std::ranges::fill(slot, static_cast<std::byte>(n));
    ASSERT_TRUE(store->commit(1, granted.slot, content_checksum(key(n), slot)));
    for (int tries = 0; !store->idle(); ++tries) {
      ASSERT_LT(tries, 10'000) << "the block is never saved";
      store->advance();
      if (!store->idle()) store->at(now += Nanos{1'000'000});
    }
  }
  /// The prompt is asked for and stored: its number and how much of it was there.
  protocol::Matched request(const std::vector<std::uint64_t>& chain, Nanos at) {
    const auto matched = match(chain, at);
    for (std::size_t i = matched.blocks; i < chain.size(); ++i)
      put(chain[i], i == 0 ? std::nullopt : std::optional(chain[i - 1]));
    return matched;
  }
  void answered(std::uint64_t request, std::uint32_t tokens, Nanos at) {
    store->at(now = std::max(now, at));
    store->answered(request, tokens);
  }

  Nanos now = seconds(1);
  std::vector<std::byte> memory;
  std::unique_ptr<StoreTier> tier;  // none: memory only
  std::unique_ptr<PoolStore> store;
};

std::map<std::uint64_t, std::uint64_t> names_of(std::uint64_t blocks) {
  std::map<std::uint64_t, std::uint64_t> names;
  for (std::uint64_t n = 0; n < blocks; ++n) names[key(n).low] = n;
  return names;
}

/// The same prompts replayed and served one after another: word for word the same is told of uses, stores and
/// answers, with the request's time, length and what was known of it.
TEST(Answered, APoolTellsItsPolicyWhatTheReplayTells) {
  model::Trace trace;
  const auto add = [&](std::int64_t at, std::uint64_t first, std::uint32_t count, std::int64_t answer) {
    model::TraceRequest request;
    request.arrival = seconds(at);
    request.output_tokens = answer;
    request.runs_begin = static_cast<std::uint32_t>(trace.runs.size());
    request.runs_count = 1;
    trace.runs.push_back({first, count});
    trace.requests.push_back(request);
  };
  add(10, 0, 3, 20);
  add(40, 0, 5, 700);
  add(90, 0, 8, 40);   // 5 and 6 are remembered
  add(200, 8, 2, 90);  // another one
  add(300, 0, 8, 1);
  const eviction::Prompts prompts(trace, Nanos{0});
  Recorder replayed;
  replayed.remembered = {5, 6};
  eviction::replay(prompts, replayed, 1'000);

  for (const bool memory_only : {false, true}) {
    auto owned = std::make_unique<Recorder>(names_of(20));
    Recorder& served = *owned;
    served.remembered = {5, 6};
    const auto pool = memory_only ? std::make_unique<TimedPool>(30, std::move(owned))
                                  : std::make_unique<TimedPool>(1'000, "lru", std::move(owned));
    for (const eviction::Prompts::Prompt& prompt : prompts.prompts()) {
      const auto matched =
          pool->request({prompts.blocks().begin() + static_cast<std::ptrdiff_t>(prompt.begin),
                         prompts.blocks().begin() + static_cast<std::ptrdiff_t>(prompt.end)},
                        prompt.at);
      pool->answered(matched.request, prompt.answer_tokens, prompt.answered);
    }
    // The replay ends with its last prompt, before the answer to that.
    ASSERT_FALSE(served.told.empty());
    EXPECT_THAT(served.told.back(), testing::HasSubstr("answered 7 by 300000000000 tokens 1 "));
    served.told.pop_back();
    EXPECT_EQ(served.told, replayed.told);
  }
}

TEST(Answered, BlocksThatComeLateAndThoseOfTheAnswerAreTheRequestsOwn) {
  auto owned = std::make_unique<Recorder>(names_of(20));
  Recorder& recorder = *owned;
  TimedPool pool(1'000, "lru", std::move(owned));
  const auto first = pool.match({0, 1}, seconds(10), 3);
  const auto second = pool.match({10}, seconds(10));  // within one turn of the loader
  EXPECT_NE(first.request, second.request);
  pool.now = seconds(12);
  pool.put(10, std::nullopt);
  pool.put(0, std::nullopt);
  pool.put(1, 0);
  pool.put(2, 1);  // its last prompt block is full now, and is stored by the decode rank
  pool.put(3, 2);
  pool.put(17, 16);  // of a request that nobody announced
  const std::string early = "by 10000000000 of 3 known 0";
  EXPECT_THAT(recorder.told,
              testing::ElementsAre("stored 10 at 0 behind nothing by 10000000001 of 1 known 0",
                                   "stored 0 at 0 behind nothing " + early, "stored 1 at 1 behind 0 " + early,
                                   "stored 2 at 2 behind 1 " + early, "stored 3 at 3 behind 2 " + early,
                                   testing::StartsWith("stored 17 at 0 behind nothing by 12")));
  pool.answered(first.request, 300, seconds(20));
  EXPECT_EQ(recorder.told.back(), "answered 3 by 10000000000 tokens 300 now 20000000000");
}

TEST(Answered, OldUnknownAndRepeatedNumbersHarmNothing) {
  auto owned = std::make_unique<Recorder>(names_of(20));
  Recorder& recorder = *owned;
  TimedPool pool(1'000, "lru", std::move(owned));
  const auto nothing_stored = pool.match({5, 6}, seconds(2));
  const auto known = pool.request({0, 1}, seconds(10));
  const std::size_t told = recorder.told.size();
  for (const std::uint64_t number : {std::uint64_t{0}, std::uint64_t{1}, known.request + 1, UINT64_MAX})
    pool.answered(number, 50, seconds(11));
  pool.answered(nothing_stored.request, 50, seconds(11));
  EXPECT_EQ(recorder.told.size(), told);
  pool.answered(known.request, 50, seconds(12));
  pool.answered(known.request, 900, seconds(13));
  EXPECT_EQ(recorder.told.size(), told + 1) << "an answer ends once";
  const PoolStats stats = pool.store->stats();
  EXPECT_EQ(stats.answers_told, 2U);
  EXPECT_EQ(stats.answers_unknown, 5U);
  EXPECT_EQ(pool.match({0, 1}, seconds(14)).blocks, 2U);
}

/// Chats of three blocks; those with brief answers go on after 60 s, those with long ones never.
double share_hit_by_answers(TimedPool pool, bool told) {
  std::uint64_t hits = 0, asked = 0;
  struct Answer {
    std::uint64_t request;
    std::uint32_t tokens;
  };
  const auto chain = [](std::uint64_t chat) { return std::vector{3 * chat, 3 * chat + 1, 3 * chat + 2}; };
  const auto brief = [](std::uint64_t chat) { return base::mix(5, chat) % 3 == 0; };
  for (std::uint64_t step = 0; step < 900; ++step) {
    const auto now = static_cast<std::int64_t>(step) * 4 + 10;
    const auto matched = pool.request(chain(step), seconds(now));
    if (told) pool.answered(matched.request, brief(step) ? 20 : 600, seconds(now + 2));
    if (step < 15 || !brief(step - 15)) continue;
    const auto again = pool.request(chain(step - 15), seconds(now + 3));
    if (step < 450) continue;
    hits += again.blocks;
    asked += 3;
  }
  return static_cast<double>(hits) / static_cast<double>(asked);
}

TEST(Answered, TheLengthOfAnAnswerChangesWhoLeavesThePool) {
  eviction::Settings settings;
  settings.capacity_blocks = 30;
  const auto in_memory = [&](bool told) {
    return share_hit_by_answers({30, eviction::make_hit_density(settings)}, told);
  };
  const auto stored = [&](bool told) { return share_hit_by_answers({30, "hit_density"}, told); };
  EXPECT_LT(stored(false), 0.7);
  EXPECT_GT(stored(true), stored(false) + 0.08);
  EXPECT_LT(in_memory(false), 0.7);
  EXPECT_GT(in_memory(true), in_memory(false) + 0.08);
}

TEST(AskedPrompts, TheOldestAreForgottenAndTheLatestHasTheBlock) {
  AskedPrompts asked(70, 5);
  const auto prompt = [&](std::vector<std::uint64_t> chain) {
    AskedPrompts::Prompt one;
    one.at = asked.time(seconds(1));
    for (const std::uint64_t n : chain) one.keys.push_back(key(n));
    return one;
  };
  const std::uint64_t first = asked.open(prompt({0, 1}), 0), second = asked.open(prompt({0, 2}), 0);
  EXPECT_EQ(first, 71U);
  EXPECT_LT(asked.find(first)->at, asked.find(second)->at);
  EXPECT_EQ(asked.place(key(0), {})->prompt, second);
  EXPECT_EQ(asked.place(key(1), key(0))->prompt, first);
  EXPECT_FALSE(asked.place(key(3), key(0))) << "behind the first block comes what the prompt has there";
  EXPECT_EQ(asked.place(key(3), key(2))->position, 2U);
  const std::uint64_t third = asked.open(prompt({4}), 0);  // six keys are too many
  EXPECT_EQ(asked.find(first), nullptr);
  EXPECT_FALSE(asked.place(key(1), key(0)));
  EXPECT_EQ(asked.place(key(0), {})->prompt, second);
  EXPECT_NE(asked.find(third), nullptr);
  EXPECT_EQ(asked.find(third + 1), nullptr);
}

}  // namespace
}  // namespace trimtab::kv_pool
