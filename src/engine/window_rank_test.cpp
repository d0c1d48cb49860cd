#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "base/hash.h"
#include "engine/local_model.h"
#include "engine/rank_harness.h"
#include "engine/rank_state.h"
#include "engine/sampler.h"
#include "engine/tiny_gguf.h"
#include "kv_state/snapshot_server.h"
#include "kv_state/state_host.h"

namespace trimtab::engine {
namespace {

using model::RequestId;
using testing::Each;

/// Real rank processes of a model with window layers; snapshots of a machine that this test is.
class WindowRankTest : public testing::Test {
 protected:
  void SetUp() override {
    path_ = testing::TempDir() + "/window-ranks-" + std::to_string(getpid()) + ".gguf";
    TinyGguf tiny;
    tiny.layers = 5;
    tiny.window = 128;
    tiny.window_pattern = 3;  // four layers with a window: exact is 512 tokens
    ASSERT_TRUE(tiny.write(path_));
    auto opened = LocalModel::open(path_, 8, 16);
    ASSERT_TRUE(opened) << base::to_string(opened.error());
    model_ = std::move(*opened);
    setup_.model_path = path_;
    setup_.block_bytes = model_->shape().kv_block_bytes();
    ring_ = model_->shape().ring();
    setup_.window = window_layout(ring_);
    setup_.cost = {0, 1'000'000'000, 0};  // 1 ms a token and 200 ms a step: chunks of 200
    setup_.step_budget_ms = 200;
  }
  void TearDown() override { std::filesystem::remove(path_); }

  /// The same request in one process, whole.
  std::vector<std::uint64_t> reference(const RankHarness::Ask& ask) {
    std::vector<std::uint64_t> checksums;
    std::vector<std::int32_t> all = ask.tokens;
    while (checksums.size() < ask.output_limit) {
      auto row = model_->run(all, 10'000);
      if (!row) return checksums;
      checksums.push_back(base::checksum_of(std::span<const float>(*row)));
      all.push_back(sample(*row, ask.sampling, all.size()));
    }
    return checksums;
  }
  /// From now on this test is machine 0, in its life 5.
  void serve_states() {
    kv_state::ServerOptions options;
    options.listen = {"127.0.0.1", 0};
    auto server = kv_state::SnapshotServer::start(store_, options);
    ASSERT_TRUE(server);
    server_ = std::move(*server);
  }
  wire::StateHolder holder() const { return {0, 5, 1, "127.0.0.1", server_->port()}; }
  /// Puts the true state after `blocks` blocks of `prompt` into the store, under the name of `keys`.
  void put_state(const std::vector<std::int32_t>& prompt, std::uint32_t blocks,
                 const std::vector<model::BlockKey>& keys) {
    ASSERT_TRUE(model_->run(std::span(prompt).first(blocks * 128)));
    std::vector<std::byte> content(static_cast<std::size_t>(kv::snapshot_bytes(ring_, blocks * 128).value));
    ASSERT_TRUE(kv::copy_window_out(ring_, model_->ring(), blocks * 128, blocks * 128, content));
    ASSERT_TRUE(store_.put(
        kv::snapshot_name(keys, blocks, kv::layout_key(ring_, kv_state::kReferenceElement)), content));
  }

  std::string path_;
  std::unique_ptr<LocalModel> model_;
  kv::RingShape ring_;
  RankHarness::Setup setup_;
  kv_state::SnapshotStore store_{base::Bytes{64 << 20}, kv::HostId{0}, 5};
  std::unique_ptr<kv_state::SnapshotServer> server_;
};

TEST_F(WindowRankTest, TheRingGoesWithTheHandOver) {
  for (const std::uint32_t ranks : {1U, 2U}) {
    setup_.prefill_ranks = ranks;
    setup_.decode_ranks = 3 - ranks;
    RankHarness harness(setup_);
    ASSERT_TRUE(harness.start());
    // Two requests, so that slots differ; answers long enough that the ring turns over.
    std::vector<RankHarness::Ask> asks(2);
    for (std::uint32_t i = 0; i < 2; ++i) {
      asks[i].tokens = TinyGguf::tokens(300 + 90 * i, 7 + i);
      asks[i].output_limit = 12;
      harness.start_prefill(RequestId{i + 1}, asks[i]);
    }
    for (std::uint32_t i = 0; i < 2; ++i) ASSERT_TRUE(harness.reserve(RequestId{i + 1}, asks[i]));
    for (std::uint32_t i = 0; i < 2; ++i) {
      const auto done = harness.wait_for<wire::PrefillDone>(RankHarness::prefill(0), RequestId{i + 1});
      ASSERT_TRUE(done);
      harness.start_decode(RequestId{i + 1}, asks[i], done->first_token);
    }
    for (std::uint32_t i = 0; i < 2; ++i) {
      const auto answer = harness.follow(RequestId{i + 1}, asks[i]);
      EXPECT_EQ(answer.failure, "");
      auto expected = reference(asks[i]);
      expected.erase(expected.begin());
      EXPECT_EQ(answer.checksums, expected) << ranks << " ranks, request " << i;
    }
    EXPECT_THAT(harness.stop(), Each(0));
  }
}

TEST_F(WindowRankTest, AHitBeginsFromASnapshotAndFallsBackAsItsModeSays) {
  ASSERT_NO_FATAL_FAILURE(serve_states());
  RankHarness harness(setup_);
  ASSERT_TRUE(harness.start());
  RankHarness::Ask ask;
  ask.tokens = TinyGguf::tokens(1000, 3);  // seven whole blocks
  ask.output_limit = 3;
  const auto expected = reference(ask);
  EXPECT_EQ(harness.run(RequestId{1}, ask).checksums, expected);  // its blocks are in the pool from now on

  const auto keys = harness.keys(ask);
  put_state(ask.tokens, 7, keys);
  const auto hit = [&](std::uint64_t id, std::vector<wire::StateOffer> offers, bool exact) {
    ask.window = {7, static_cast<std::uint8_t>(exact ? 1 : 0), std::move(offers)};
    ask.hit_blocks = 7;
    return harness.run(RequestId{id}, ask);
  };
  const auto whole = hit(2, {{7, {holder()}}}, false);
  EXPECT_EQ(whole.failure, "");
  EXPECT_EQ(whole.checksums, expected);
  EXPECT_EQ(whole.prefill.hit_tokens, 896U);
  EXPECT_EQ(whole.prefill.fetched_blocks, 7U);
  ASSERT_EQ(whole.prefill.states.size(), 1U);
  EXPECT_EQ(whole.prefill.states[0].end, wire::FetchEnd::kWhole);

  // The next machine is asked when the first has none; one that was restarted has none.
  const auto second = hit(
      3, {{7, {{0, 4, 1, "127.0.0.1", server_->port()}, {1, 5, 1, "127.0.0.1", server_->port()}}}}, false);
  EXPECT_EQ(second.checksums, expected);
  EXPECT_EQ(second.prefill.hit_tokens, 896U);

  // Lost: `exact` computes window x layers tokens, for the same bits; `approximate` one block, and drifts.
  store_.erase(kv::snapshot_name(keys, 7, kv::layout_key(ring_, kv_state::kReferenceElement)));
  const auto exact = hit(4, {{7, {holder()}}}, true);
  EXPECT_EQ(exact.checksums, expected);
  EXPECT_EQ(exact.prefill.hit_tokens, 896U - 512U);
  ASSERT_EQ(exact.prefill.states.size(), 1U);
  EXPECT_EQ(exact.prefill.states[0].end, wire::FetchEnd::kGone);
  const auto drifted = hit(5, {{7, {holder()}}}, false);
  EXPECT_EQ(drifted.failure, "");
  EXPECT_EQ(drifted.prefill.hit_tokens, 896U - 128U);
  EXPECT_NE(drifted.checksums, expected);

  // An older snapshot costs less than `exact` and gives the same bits.
  put_state(ask.tokens, 5, keys);
  const auto older = hit(6, {{5, {holder()}}, {7, {holder()}}}, true);
  EXPECT_EQ(older.checksums, expected);
  EXPECT_EQ(older.prefill.hit_tokens, 640U);
  EXPECT_EQ(older.prefill.states.size(), 2U);
  EXPECT_THAT(harness.stop(), Each(0));
}

TEST_F(WindowRankTest, AStateUnderAnotherRequestsNameIsNotTaken) {
  ASSERT_NO_FATAL_FAILURE(serve_states());
  RankHarness harness(setup_);
  ASSERT_TRUE(harness.start());
  RankHarness::Ask ask, other;
  ask.tokens = TinyGguf::tokens(700, 3);
  other.tokens = TinyGguf::tokens(700, 4);
  ask.output_limit = other.output_limit = 2;
  const auto expected = reference(ask);
  EXPECT_EQ(harness.run(RequestId{1}, ask).checksums, expected);
  put_state(other.tokens, 5, harness.keys(other));
  ask.window = {5, 1, {{5, {holder()}}}};  // a directory that lies
  ask.hit_blocks = 5;
  const auto answer = harness.run(RequestId{2}, ask);
  EXPECT_EQ(answer.checksums, expected);
  EXPECT_EQ(answer.prefill.hit_tokens, 128U);
  EXPECT_THAT(harness.stop(), Each(0));
}

}  // namespace
}  // namespace trimtab::engine
