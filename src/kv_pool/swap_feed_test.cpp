// A hit from the store to the engine's memory: a fetch plan feeds the thread that swaps layers in.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <utility>

#include "kv_code/coder.h"
#include "kv_pool/loader_process.h"
#include "kv_pool/pool_client.h"
#include "kv_pool/test_support.h"
#include "swap_in/layer_swapper.h"
#include "swap_in/memcpy_backend.h"

namespace trimtab::kv_pool {
namespace {

using test::block_of;
using test::key;

constexpr std::uint64_t kBytes = 16'384;
constexpr std::uint32_t kLayers = 4, kBlocks = 40;
constexpr base::Nanos kPatience{20'000'000'000};

/// The whole adapter: what a ticket says is what a feed is asked for.
class TicketFeed final : public swap_in::LayerFeed {
 public:
  explicit TicketFeed(FetchTicket ticket) : ticket_(std::move(ticket)) {}
  base::Status take(std::uint32_t layer, std::vector<Arrival>& arrivals, base::Nanos wait) override {
    came_.clear();
    TRIMTAB_TRY(ticket_.take(layer, came_, wait));
    for (const FetchTicket::Arrival& one : came_) arrivals.push_back({one.block, one.bytes});
    return {};
  }

 private:
  FetchTicket ticket_;
  std::vector<FetchTicket::Arrival> came_;
};

class SwapFeed : public testing::Test {
 protected:
  SwapFeed() {
    LoaderOptions options;
    options.socket_path = directory_.path("kv.sock");
    options.targets = {directory_.path("pool")};
    options.memory_bytes = 3 * kBlocks * kBytes;
    options.file_bytes = 200 * kv_code::kShards * 4'096;
    options.kv.block_bytes = base::Bytes{kBytes};
    options.kv.layer_bytes.assign(kLayers, base::Bytes{kBytes / kLayers});
    loader_ = std::make_unique<test::LoaderProcess>(options);
    auto pool = client();
    for (std::uint64_t n = 0; n < kBlocks; ++n) EXPECT_TRUE(pool.put(key(n), block_of(key(n), kBytes)));
    EXPECT_TRUE(pool.flush());
    loader_->end(SIGTERM);
    loader_->start();
  }
  PoolClient client() { return *PoolClient::connect(directory_.path("kv.sock"), kPatience); }
  swap_in::SwapRequest request(PoolClient& pool, std::uint64_t blocks) {
    swap_in::SwapRequest request;
    std::vector<BlockKey> keys;
    device_.resize(blocks * kBytes);
    for (std::uint64_t n = 0; n < blocks; ++n) {
      keys.push_back(key(n));
      request.destinations.push_back(device_.data() + n * kBytes);
    }
    for (std::size_t layer = 0; layer < kLayers; ++layer)
      request.layers.push_back({layer * kBytes / kLayers, kBytes / kLayers});
    auto ticket = pool.fetch(keys);
    EXPECT_TRUE(ticket);
    request.feed = std::make_shared<TicketFeed>(std::move(*ticket));
    return request;
  }

  test::TempDirectory directory_;
  std::unique_ptr<test::LoaderProcess> loader_;
  std::vector<std::byte> device_;
};

TEST_F(SwapFeed, AHitLandsLayerByLayer) {
  auto pool = client();
  swap_in::LayerSwapper swapper(std::make_unique<swap_in::MemcpyBackend>());
  const auto gate = swapper.swap(request(pool, kBlocks));
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
    const auto open = gate->wait(layer, kPatience);
    ASSERT_TRUE(open.has_value()) << base::to_string(open.error());
    for (std::uint64_t n = 0; n < kBlocks; ++n) {
      const std::size_t offset = layer * kBytes / kLayers;
      const auto right = block_of(key(n), kBytes);
      ASSERT_EQ(std::memcmp(device_.data() + n * kBytes + offset, right.data() + offset, kBytes / kLayers), 0)
          << "layer " << layer << " of block " << n;
    }
  }
  auto stats = pool.stats();
  for (int i = 0; i < 2'000 && stats->plans_open > 0; ++i) {
    usleep(5'000);
    stats = pool.stats();
  }
  EXPECT_EQ(stats->plans_open + stats->pins, 0U) << "the swap's end gives the arena's slots back";
}

TEST_F(SwapFeed, AMissingBlockFailsTheSwap) {
  auto pool = client();
  swap_in::LayerSwapper swapper(std::make_unique<swap_in::MemcpyBackend>());
  const auto gate = swapper.swap(request(pool, kBlocks + 1));
  EXPECT_EQ(gate->wait(kLayers - 1, kPatience).error().code, base::Code::kNotFound);
}

TEST_F(SwapFeed, ALoaderThatDiesFailsTheSwap) {
  auto pool = client();
  kill(loader_->pid(), SIGSTOP);
  swap_in::LayerSwapper swapper(std::make_unique<swap_in::MemcpyBackend>());
  const auto gate = swapper.swap(request(pool, kBlocks));
  loader_->end(SIGKILL);
  EXPECT_EQ(gate->wait(0, kPatience).error().code, base::Code::kUnavailable);
}

}  // namespace
}  // namespace trimtab::kv_pool
