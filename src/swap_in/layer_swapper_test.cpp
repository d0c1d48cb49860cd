#include "swap_in/layer_swapper.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "base/prng.h"
#include "swap_in/measure.h"
#include "swap_in/memcpy_backend.h"

namespace trimtab::swap_in {
namespace {

using ::testing::HasSubstr;
constexpr base::Nanos kLong{20'000'000'000};

/// Blocks of three layers, scattered in a source and a destination arena.
struct Arena {
  explicit Arena(std::uint32_t blocks)
      : count(blocks), source(blocks * kBlock), destination(blocks * kBlock) {
    base::Prng prng(3, 4);
    for (std::byte& byte : source) byte = static_cast<std::byte>(prng.next());
    for (std::uint32_t i = 0; i < blocks; ++i) {
      request.sources.push_back(source.data() + ((i * 7) % blocks) * kBlock);
      request.destinations.push_back(destination.data() + ((i * 11 + 3) % blocks) * kBlock);
    }
    request.layers = {{0, 512}, {512, 1'024}, {1'536, 448}};
  }
  bool layer_is_there(std::uint32_t layer) const {
    const LayerSpan span = request.layers[layer];
    for (std::uint32_t i = 0; i < count; ++i)
      if (std::memcmp(request.sources[i] + span.offset, request.destinations[i] + span.offset, span.bytes) !=
          0)
        return false;
    return true;
  }
  static constexpr std::size_t kBlock = 2'048;
  std::uint32_t count;
  std::vector<std::byte> source, destination;
  SwapRequest request;
};

/// A device whose copies land late and in its own time: at `land` of what was started so far.
class LateBackend final : public Backend {
 public:
  std::string_view name() const override { return "late"; }
  std::uint32_t batch_max() const override { return 8; }
  base::Status start(std::span<const Copy> copies) override {
    EXPECT_LE(copies.size(), batch_max());
    EXPECT_NE(std::this_thread::get_id(), asker) << "it has a step to make";
    if (calls++ == refuse_call) return base::fail(base::Code::kIo, "the device fell off the bus", "test");
    started.insert(started.end(), copies.begin(), copies.end());
    return {};
  }
  base::Result<Marker> mark() override {
    most_ahead = std::max(most_ahead.load(), started.size() - landed);
    return started.size();
  }
  base::Result<bool> reached(Marker marker) override { return landed >= marker; }
  base::Status wait(Marker marker) override {
    for (; landed < marker; ++landed)
      std::memcpy(started[landed].destination, started[landed].source, started[landed].bytes);
    return {};
  }
  std::vector<Copy> started;
  std::size_t landed = 0;
  std::atomic<std::size_t> most_ahead{0};
  int calls = 0, refuse_call = -1;
  std::thread::id asker;  // of the swap: no copy may be started there
};

/// Gives blocks layer by layer when the test says so.
class HandFeed final : public LayerFeed {
 public:
  explicit HandFeed(const Arena& arena) : sources(arena.request.sources) {}
  base::Status take(std::uint32_t layer, std::vector<Arrival>& arrivals, base::Nanos wait) override {
    std::unique_lock lock(mutex);
    changed.wait_for(lock, std::chrono::nanoseconds{wait.value},
                     [&] { return broken || !given[layer].empty(); });
    if (broken) return base::fail(base::Code::kUnavailable, "the loader is gone", "test");
    for (const std::uint32_t block : given[layer]) arrivals.push_back({block, sources[block]});
    given[layer].clear();
    return {};
  }
  void give(std::uint32_t layer, std::vector<std::uint32_t> blocks) {
    const std::lock_guard lock(mutex);
    given[layer] = std::move(blocks);
    changed.notify_all();
  }
  void break_down() {
    const std::lock_guard lock(mutex);
    broken = true;
    changed.notify_all();
  }
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<const std::byte*> sources;
  std::vector<std::uint32_t> given[3];
  bool broken = false;
};

TEST(LayerSwapper, EveryLayerIsThereWhenItsGateOpens) {
  Arena arena(100);
  LayerSwapper swapper(std::make_unique<MemcpyBackend>());
  const auto gate = swapper.swap(arena.request);
  for (std::uint32_t layer = 0; layer < 3; ++layer) {
    ASSERT_TRUE(gate->wait(layer, kLong).has_value());
    EXPECT_TRUE(arena.layer_is_there(layer)) << layer;
  }
  EXPECT_EQ(swapper.stats().copies, 300U);
  EXPECT_EQ(swapper.stats().bytes, 100U * (512 + 1'024 + 448));
}

// A pipeline stage has some of the layers, and counts them from zero: its copies go where its spans say, its
// gate opens for its own numbers, and what belongs to other stages is not touched.
TEST(LayerSwapper, AStageMovesItsOwnLayersAndNoOthers) {
  Arena arena(20);
  arena.request.layers = {{1'536, 448}, {512, 1'024}};
  LayerSwapper swapper(std::make_unique<MemcpyBackend>());
  const auto gate = swapper.swap(arena.request);
  for (std::uint32_t layer = 0; layer < 2; ++layer) {
    ASSERT_TRUE(gate->wait(layer, kLong).has_value());
    EXPECT_TRUE(arena.layer_is_there(layer)) << layer;
  }
  EXPECT_EQ(swapper.stats().copies, 40U);
  for (const std::byte* block : arena.request.destinations) {
    EXPECT_TRUE(std::all_of(block, block + 512, [](std::byte each) { return each == std::byte{0}; }));
    EXPECT_TRUE(
        std::all_of(block + 1'984, block + 2'048, [](std::byte each) { return each == std::byte{0}; }));
  }
}

TEST(LayerSwapper, StartsTheNextLayerBeforeTheLastHasLanded) {
  Arena arena(20);
  auto backend = std::make_unique<LateBackend>();
  LateBackend& late = *backend;
  LayerSwapper swapper(std::move(backend));
  const auto gate = swapper.swap(arena.request);
  ASSERT_TRUE(gate->wait(2, kLong).has_value());
  EXPECT_EQ(late.most_ahead, 60U) << "all three layers were on their way before the first was waited for";
  EXPECT_TRUE(arena.layer_is_there(0) && arena.layer_is_there(1) && arena.layer_is_there(2));
}

// sglang#38448: all layers' copies were submitted by the scheduler's thread, which had a step to make.
TEST(LayerSwapper, WhoAsksStartsNoCopy) {
  Arena arena(20);
  auto backend = std::make_unique<LateBackend>();
  backend->asker = std::this_thread::get_id();
  LateBackend& late = *backend;
  LayerSwapper swapper(std::move(backend));
  ASSERT_TRUE(swapper.swap(arena.request)->wait(2, kLong).has_value());
  EXPECT_EQ(late.started.size(), 60U);
}

TEST(LayerSwapper, ALayerOpensOnlyWhenTheLastOfItsBlocksCame) {
  Arena arena(4);
  const auto feed = std::make_shared<HandFeed>(arena);
  arena.request.feed = feed;
  LayerSwapper swapper(std::make_unique<MemcpyBackend>());
  const auto gate = swapper.swap(arena.request);
  feed->give(0, {2, 0, 3});
  EXPECT_EQ(gate->wait(0, base::Nanos{30'000'000}).error().code, base::Code::kDeadlineExceeded);
  feed->give(0, {1});
  ASSERT_TRUE(gate->wait(0, kLong).has_value());
  EXPECT_TRUE(arena.layer_is_there(0));
  EXPECT_EQ(gate->open_layers(), 1U);
  feed->give(1, {0, 1, 2, 3});
  feed->give(2, {3, 2, 1, 0});
  ASSERT_TRUE(gate->wait(2, kLong).has_value());
  EXPECT_TRUE(arena.layer_is_there(1) && arena.layer_is_there(2));
  EXPECT_GT(gate->stalled().value, 0);
}

TEST(LayerSwapper, ALoaderThatDiesFailsWhatIsNotThereAndNothingElse) {
  Arena arena(4), next(4);
  const auto feed = std::make_shared<HandFeed>(arena);
  arena.request.feed = feed;
  LayerSwapper swapper(std::make_unique<MemcpyBackend>());
  const auto gate = swapper.swap(arena.request);
  feed->give(0, {0, 1, 2, 3});
  ASSERT_TRUE(gate->wait(0, kLong).has_value());
  feed->break_down();
  const auto second = gate->wait(1, kLong);
  ASSERT_FALSE(second.has_value());
  EXPECT_THAT(second.error().message, HasSubstr("the loader is gone"));
  EXPECT_TRUE(gate->wait(0, kLong).has_value()) << "what was there still is";
  EXPECT_TRUE(swapper.swap(next.request)->wait(2, kLong).has_value()) << "the thread goes on";
  EXPECT_EQ(swapper.stats().failed, 1U);
}

TEST(LayerSwapper, PatienceEnds) {
  Arena arena(4);
  const auto feed = std::make_shared<HandFeed>(arena);
  arena.request.feed = feed;
  arena.request.patience = base::Nanos{1};
  LayerSwapper swapper(std::make_unique<MemcpyBackend>());
  const auto first = swapper.swap(arena.request)->wait(0, kLong);
  ASSERT_FALSE(first.has_value());
  EXPECT_THAT(first.error().message, HasSubstr("0 of 4 blocks came"));
}

TEST(LayerSwapper, AFailureIsToldOnlyAfterStartedCopiesLanded) {
  Arena arena(20);
  auto backend = std::make_unique<LateBackend>();
  backend->refuse_call = 4;
  LateBackend& late = *backend;
  LayerSwapper swapper(std::move(backend));
  const auto gate = swapper.swap(arena.request);
  const auto last = gate->wait(2, kLong);
  ASSERT_FALSE(last.has_value());
  EXPECT_THAT(last.error().message, HasSubstr("fell off the bus"));
  EXPECT_EQ(late.landed, late.started.size()) << "no copy may land in places that are given to others";
}

TEST(LayerSwapper, StoppingFailsWhatWaits) {
  Arena arena(4);
  const auto feed = std::make_shared<HandFeed>(arena);
  arena.request.feed = feed;
  auto swapper = std::make_unique<LayerSwapper>(std::make_unique<MemcpyBackend>());
  const auto running = swapper->swap(arena.request);
  const auto queued = swapper->swap(arena.request);
  swapper.reset();
  EXPECT_EQ(running->wait(0, kLong).error().code, base::Code::kCancelled);
  EXPECT_EQ(queued->wait(0, kLong).error().code, base::Code::kCancelled);
}

TEST(Measure, TellsWhatCopiesCost) {
  MemcpyBackend backend;
  const std::vector<std::byte> source(8U << 20, std::byte{1});
  std::vector<std::byte> destination(8U << 20);
  const auto cost = measure(backend, source, destination);
  ASSERT_TRUE(cost.has_value()) << base::to_string(cost.error());
  EXPECT_EQ(cost->name, "memcpy");
  EXPECT_GT(cost->bytes_per_ns, .05);
  EXPECT_LT(cost->bytes_per_ns, 1'000);
}

}  // namespace
}  // namespace trimtab::swap_in
