#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <numeric>
#include <thread>

#include "base/hash.h"
#include "engine/local_model.h"
#include "engine/rank_harness.h"
#include "engine/rank_state.h"
#include "engine/sampler.h"
#include "engine/tiny_gguf.h"
#include "kv/logits_drift.h"
#include "kv_pool/pool_client.h"
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

  /// The prompt's last logits in one process, when `blocks` of it hit and the computation begins one block
  /// before their end without a window state.
  std::vector<float> approximate_row(const std::vector<std::int32_t>& prompt, std::int64_t blocks) {
    EXPECT_TRUE(model_->run(prompt));  // the blocks' KV
    std::vector<std::uint32_t> table(model_->arena().blocks());
    std::iota(table.begin(), table.end(), 0U);
    Segment segment;
    segment.start = (blocks - 1) * 128;
    segment.tokens = std::span(prompt).subspan(static_cast<std::size_t>(segment.start));
    segment.blocks = table;
    segment.window.ring = model_->ring();
    segment.window.from = segment.start;
    segment.kv_present = blocks * 128;
    segment.wants_logits = true;
    EXPECT_TRUE(model_->step({&segment, 1}));
    const auto row = model_->forward().logits(0);
    return {row.begin(), row.end()};
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

// Snapshots go to a process that may be stopped or swapped out; hand-overs go through the same thread.
TEST_F(WindowRankTest, AStoreThatDoesNotReadHoldsNobodyUp) {
  RankHarness harness(setup_);
  ASSERT_TRUE(harness.start());
  const std::string runtime = std::filesystem::path(harness.kv_socket()).parent_path().string();
  auto listener = ipc::Listener::bind(kv_state::keep_socket_path(runtime, 0));
  ASSERT_TRUE(listener);
  RankHarness::Ask ask;
  ask.tokens = TinyGguf::tokens(1000, 3);  // its seven snapshots are more than a socket takes in
  ask.output_limit = 3;
  for (std::uint64_t id = 1; id <= 3; ++id)
    EXPECT_EQ(harness.run(RequestId{id}, ask).checksums, reference(ask));
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

/// `blocks` of the prompt are in the pool and no state of it is anywhere.
RankHarness::Ask audited(const RankHarness::Ask& ask, std::uint32_t blocks, wire::DriftAudit audit) {
  RankHarness::Ask again = ask;
  again.hit_blocks = blocks;
  again.window = {blocks, 0, {}, audit};
  return again;
}

TEST_F(WindowRankTest, AnAuditSaysTheRowsOfBothWays) {
  RankHarness harness(setup_);
  ASSERT_TRUE(harness.start());
  RankHarness::Ask ask;
  ask.tokens = TinyGguf::tokens(1000, 3);
  ask.output_limit = 3;
  const auto expected = reference(ask);
  EXPECT_EQ(harness.run(RequestId{1}, ask).checksums, expected);

  const auto drifted = harness.run(RequestId{2}, audited(ask, 7, wire::DriftAudit::kKeep));
  EXPECT_EQ(drifted.failure, "");
  EXPECT_EQ(drifted.prefill.hit_tokens, 896U - 128U);
  EXPECT_EQ(drifted.prefill.handed_blocks, 8U) << "it is served like any other";
  EXPECT_EQ(drifted.prefill.logits, approximate_row(ask.tokens, 7));
  EXPECT_EQ(drifted.checksums, harness.run(RequestId{3}, audited(ask, 7, wire::DriftAudit::kNone)).checksums);

  // Exact although the mode says approximate; at once, although it was told to wait for a place.
  harness.start_prefill(RequestId{4}, audited(ask, 7, wire::DriftAudit::kTruth));
  const auto truth = harness.wait_for<wire::PrefillDone>(RankHarness::prefill(0), RequestId{4});
  ASSERT_TRUE(truth);
  EXPECT_EQ(truth->hit_tokens, 896U - 512U);
  EXPECT_EQ(truth->fetched_blocks, 7U);
  EXPECT_EQ(truth->stored_blocks, 0U);
  EXPECT_EQ(truth->handed_blocks, 0U);
  const auto row = model_->run(ask.tokens, 10'000);
  ASSERT_TRUE(row);
  EXPECT_EQ(truth->logits, *row);
  const auto drift = kv::logits_drift(truth->logits, drifted.prefill.logits);
  ASSERT_TRUE(drift);
  EXPECT_GT(drift->relative, 0);
  EXPECT_EQ(drift->relative, kv::logits_drift(*row, approximate_row(ask.tokens, 7))->relative);
  EXPECT_THAT(harness.stop(), Each(0));
}

TEST_F(WindowRankTest, ARowIsKeptOfHitsThatDriftOnly) {
  ASSERT_NO_FATAL_FAILURE(serve_states());
  RankHarness harness(setup_);
  ASSERT_TRUE(harness.start());
  RankHarness::Ask ask;
  ask.tokens = TinyGguf::tokens(1000, 3);
  ask.output_limit = 1;
  const auto miss = harness.run(RequestId{1}, audited(ask, 0, wire::DriftAudit::kKeep));
  EXPECT_TRUE(miss.prefill.logits.empty());
  put_state(ask.tokens, 7, harness.keys(ask));
  auto with_state = audited(ask, 7, wire::DriftAudit::kKeep);
  with_state.window.offers = {{7, {holder()}}};
  const auto state = harness.run(RequestId{2}, with_state);
  EXPECT_EQ(state.prefill.hit_tokens, 896U);
  EXPECT_TRUE(state.prefill.logits.empty());
  auto exact = audited(ask, 7, wire::DriftAudit::kKeep);
  exact.window.exact = 1;
  EXPECT_TRUE(harness.run(RequestId{3}, exact).prefill.logits.empty());
  // One block alone is computed from the prompt's start: exact, whatever the mode.
  EXPECT_TRUE(harness.run(RequestId{4}, audited(ask, 1, wire::DriftAudit::kKeep)).prefill.logits.empty());
  // The truth is found without a state, even with one at hand.
  with_state.window.audit = wire::DriftAudit::kTruth;
  harness.start_prefill(RequestId{5}, with_state);
  const auto truth = harness.wait_for<wire::PrefillDone>(RankHarness::prefill(0), RequestId{5});
  ASSERT_TRUE(truth);
  EXPECT_EQ(truth->hit_tokens, 896U - 512U);
  EXPECT_TRUE(truth->states.empty());
  EXPECT_EQ(truth->logits_checksum, miss.checksums.front());
  EXPECT_THAT(harness.stop(), Each(0));
}

TEST_F(WindowRankTest, AnAuditStoresNothing) {
  RankHarness harness(setup_);
  ASSERT_TRUE(harness.start());
  RankHarness::Ask known, ask, other;
  ask.tokens = TinyGguf::tokens(1000, 3);
  known.tokens.assign(ask.tokens.begin(), ask.tokens.begin() + 400);
  other.tokens = TinyGguf::tokens(300, 9);
  known.output_limit = other.output_limit = 1;
  EXPECT_EQ(harness.run(RequestId{1}, known).failure, "");
  auto pool = kv_pool::PoolClient::connect(harness.kv_socket(), base::Nanos{60'000'000'000});
  ASSERT_TRUE(pool);
  for (int tries = 0; tries < 6'000 && pool->match(harness.keys(known))->blocks < 3; ++tries) usleep(10'000);
  // This test is the machine's store of states from now on.
  const std::string runtime = std::filesystem::path(harness.kv_socket()).parent_path().string();
  auto listener = ipc::Listener::bind(kv_state::keep_socket_path(runtime, 0));
  ASSERT_TRUE(listener);
  std::size_t states = 0;
  std::thread store([&] {
    auto accepted = listener->accept(base::Nanos{30'000'000'000});
    if (!accepted || !*accepted) return;
    ipc::Channel rank(**accepted);
    while (true) {
      const auto frame = rank.receive(base::Nanos{30'000'000'000});
      if (!frame || !*frame) return;
      ++states;
    }
  });

  harness.start_prefill(RequestId{2}, audited(ask, 3, wire::DriftAudit::kTruth));
  const auto truth = harness.wait_for<wire::PrefillDone>(RankHarness::prefill(0), RequestId{2});
  EXPECT_EQ(truth.value_or(wire::PrefillDone{}).computed_tokens, 1000U) << "four blocks back is its start";
  EXPECT_EQ(truth.value_or(wire::PrefillDone{}).stored_blocks, 0U);
  // What was stored before what another request stores would be there by then.
  EXPECT_EQ(harness.run(RequestId{3}, other).prefill.stored_blocks, 2U);
  for (int tries = 0; tries < 6'000 && pool->match(harness.keys(other))->blocks < 2; ++tries) usleep(10'000);
  EXPECT_EQ(pool->match(harness.keys(other))->blocks, 2U);
  EXPECT_EQ(pool->match(harness.keys(ask))->blocks, 3U);
  EXPECT_THAT(harness.stop(), Each(0));
  store.join();
  EXPECT_EQ(states, 2U) << "those of the other request, and no other";
}

TEST_F(WindowRankTest, AuditsLeaveNothingBehindWhereverTheyEnd) {
  RankHarness harness(setup_);
  ASSERT_TRUE(harness.start());
  RankHarness::Ask ask;
  ask.tokens = TinyGguf::tokens(1000, 3);
  ask.output_limit = 2;
  const auto expected = reference(ask);
  EXPECT_EQ(harness.run(RequestId{1}, ask).checksums, expected);
  // More than a rank has slots (39): queued, fetching, computing, done.
  const auto place = RankHarness::prefill(0);
  std::uint64_t id = 1;
  for (std::uint32_t round = 0; round < 15; ++round) {
    const std::uint64_t first = id + 1;
    for (int i = 0; i < 4; ++i)
      harness.start_prefill(RequestId{++id}, audited(ask, 7, wire::DriftAudit::kTruth));
    usleep(3'000 * (round % 5));
    for (std::uint64_t each = first; each <= id; ++each) harness.send(place, wire::Abort{RequestId{each}});
    for (std::uint64_t each = first; each <= id; ++each)
      ASSERT_TRUE(harness.wait_for<wire::Released>(place, RequestId{each}));
  }
  // The pool has none of these blocks: all is computed, and said to be.
  RankHarness::Ask lost;
  lost.tokens = TinyGguf::tokens(700, 77);
  harness.start_prefill(RequestId{++id}, audited(lost, 5, wire::DriftAudit::kTruth));
  const auto truth = harness.wait_for<wire::PrefillDone>(place, RequestId{id});
  ASSERT_TRUE(truth);
  EXPECT_EQ(truth->fetched_blocks, 0U);
  EXPECT_EQ(truth->fetch, wire::FetchEnd::kGone);
  EXPECT_EQ(truth->logits, *model_->run(lost.tokens, 10'000));
  const auto free = [&] {
    harness.send(place, wire::Abort{RequestId{1'000'000}});
    const auto released = harness.wait_for<wire::Released>(place, RequestId{1'000'000});
    return released ? released->blocks_free : 0U;
  };
  for (int tries = 0; tries < 6'000 && free() < harness.hello(place).blocks_total; ++tries) usleep(10'000);
  EXPECT_EQ(free(), harness.hello(place).blocks_total);
  EXPECT_EQ(harness.run(RequestId{++id}, ask).checksums, expected);
  EXPECT_THAT(harness.stop(), Each(0));
}

}  // namespace
}  // namespace trimtab::engine
