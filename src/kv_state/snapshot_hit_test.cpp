#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include "kv/hit_counters.h"
#include "kv/key_chain.h"
#include "kv/window_ring.h"
#include "kv_state/directory_feed.h"
#include "kv_state/snapshot_client.h"
#include "kv_state/snapshot_server.h"

/// The whole way of a hit's window state: an engine keeps it, the directory hears of it, another machine's
/// request finds it, fetches it and goes on from it.
namespace trimtab::kv_state {
namespace {

using base::operator""_s;

constexpr kv::RingShape kShape{4, 134, 128, 64};
constexpr std::int64_t kPrompt = 6 * 128 + 40;

/// What token `position` of this conversation leaves in a ring.
std::byte row_value(std::int64_t layer, std::int64_t position) {
  return static_cast<std::byte>(layer * 53 + position % 251);
}

std::vector<std::byte> ring_after(std::int64_t tokens) {
  std::vector<std::byte> ring(static_cast<std::size_t>(kv::ring_bytes(kShape).value));
  for (std::int64_t layer = 0; layer < kShape.layers; ++layer) {
    for (std::int64_t p = std::max<std::int64_t>(0, tokens - kShape.window_tokens); p < tokens; ++p) {
      const std::int64_t at = (layer * kShape.ring_slots + p % kShape.ring_slots) * kShape.row_bytes;
      std::fill_n(ring.begin() + at, kShape.row_bytes, row_value(layer, p));
    }
  }
  return ring;
}

class SnapshotHit : public ::testing::Test {
 protected:
  struct Machine {
    Machine(std::uint32_t id, std::uint64_t epoch) : store(base::Bytes{1 << 20}, HostId{id}, epoch) {
      server = *SnapshotServer::start(store, {{"127.0.0.1", 0}});
    }
    SnapshotStore store;
    std::unique_ptr<SnapshotServer> server;
  };

  SnapshotHit() {
    for (std::int32_t i = 0; i < kPrompt; ++i) tokens_.push_back(i * 7 % 1'000);
    keys_ = kv::block_keys(kv::root_key({"model", "f32", "bpe", "", ""}), tokens_);
    layout_.window_tokens = kShape.window_tokens;
    layout_.window_layers = kShape.layers;
  }

  void start(std::uint32_t id, std::uint64_t epoch) {
    machines_[id] = std::make_unique<Machine>(id, epoch);
    endpoints_[id] = {"127.0.0.1", machines_[id]->server->port()};
  }
  /// The engine of machine `id` has computed `blocks` blocks of the prompt.
  void keep(std::uint32_t id, std::int64_t blocks) {
    std::vector<std::byte> snapshot(static_cast<std::size_t>(kv::snapshot_bytes(kShape, blocks * 128).value));
    ASSERT_TRUE(kv::copy_window_out(kShape, ring_after(blocks * 128), blocks * 128, blocks * 128, snapshot));
    ASSERT_TRUE(machines_.at(id)->store.put(kv::snapshot_name(keys_, blocks, layout_name_), snapshot));
    ASSERT_TRUE(refresh(directory_, HostId{id}, endpoint(id), client_, 10_s));
  }
  Endpoint endpoint(std::uint32_t id) const { return endpoints_.at(id); }

  /// A request on machine 9 whose block KV is all there: reads the window state from wherever it is.
  kv::HitRead read_hit(kv::WindowMode mode = kv::WindowMode::kApproximate) {
    const auto snapshots = directory_.endpoints(keys_, layout_name_, 20);
    kv::HitRead read({kPrompt, 6, snapshots, mode}, keys_, 1, layout_);
    for (std::uint32_t i = 0; i < 6; ++i) read.on_block(i, kv::ReadResult::kRead);
    ring_.assign(static_cast<std::size_t>(kv::ring_bytes(kShape).value), std::byte{0x77});
    while (!read.ready()) {
      const auto blocks = static_cast<std::uint32_t>(read.hit().snapshot_blocks);
      read.on_snapshot(blocks, fetch(blocks));
    }
    EXPECT_TRUE(counters_.settle(account_, read));
    account_ = {};
    return read;
  }
  /// Asks one holder after the other.
  kv::ReadResult fetch(std::uint32_t blocks) {
    const SnapshotName name = kv::snapshot_name(keys_, blocks, layout_name_);
    kv::ReadResult result = kv::ReadResult::kGone;
    for (auto holders = directory_.holders(name); !holders.empty(); holders = directory_.holders(name)) {
      const auto from = kv::choose_holder(holders, HostId{9}, {});
      std::vector<std::byte> snapshot(
          static_cast<std::size_t>(kv::snapshot_bytes(kShape, name.position).value));
      result = read_result(client_.fetch(endpoint(from.machine.value), from.epoch, name, snapshot, 10_s));
      if (result == kv::ReadResult::kRead) {
        kv::copy_window_in(kShape, snapshot, name.position, ring_);
        return result;
      }
      EXPECT_TRUE(directory_.withdraw(name, from));
    }
    return result;
  }

  std::vector<std::int32_t> tokens_;
  std::vector<kv::BlockKey> keys_;
  model::KvLayout layout_;
  kv::BlockKey layout_name_ = kv::layout_key(kShape, "bytes");
  std::map<std::uint32_t, std::unique_ptr<Machine>> machines_;
  std::map<std::uint32_t, Endpoint> endpoints_;
  kv::SnapshotDirectory directory_;
  SnapshotClient client_;
  kv::HitCounters counters_;
  kv::HitAccount account_;
  std::vector<std::byte> ring_;
};

TEST_F(SnapshotHit, AnotherMachinesStateIsTheOneThatWasLeft) {
  start(1, 1);
  keep(1, 6);
  const kv::HitRead read = read_hit();
  EXPECT_EQ(read.hit().tokens.value, 6 * 128);
  EXPECT_TRUE(read.hit().exact);
  EXPECT_EQ(ring_, ring_after(6 * 128));
  EXPECT_EQ(counters_.totals().hits, 1U);
  EXPECT_EQ(counters_.totals().snapshots_used, 1U);
}

TEST_F(SnapshotHit, ALostSnapshotCostsOneBlockInApproximateAndIsNotTriedAgain) {
  start(1, 1);
  keep(1, 6);
  machines_.at(1)->store.erase(kv::snapshot_name(keys_, 6, layout_name_));  // the directory does not know yet
  const kv::HitRead read = read_hit();
  EXPECT_EQ(read.hit().tokens.value, 5 * 128);
  EXPECT_FALSE(read.hit().exact);
  EXPECT_EQ(read.outcome(), kv::HitRead::Outcome::kStale);
  EXPECT_EQ(counters_.totals().approximate, 1U);
  EXPECT_EQ(counters_.totals().window_tokens_recomputed, 128);
  const auto asked = machines_.at(1)->server->stats().not_found;
  EXPECT_EQ(read_hit().outcome(), kv::HitRead::Outcome::kHit) << "nothing is promised that is not there";
  EXPECT_EQ(machines_.at(1)->server->stats().not_found, asked);
}

TEST_F(SnapshotHit, ALostSnapshotInExactCostsWindowTimesLayers) {
  start(1, 1);
  keep(1, 6);
  machines_.at(1)->store.erase(kv::snapshot_name(keys_, 6, layout_name_));
  const kv::HitRead read = read_hit(kv::WindowMode::kExact);
  EXPECT_EQ(read.hit().tokens.value, (6 - 4) * 128);
  EXPECT_TRUE(read.hit().exact);
  EXPECT_EQ(counters_.totals().approximate, 0U);
}

TEST_F(SnapshotHit, ASnapshotOfAMachineThatWasRestartedIsAMiss) {
  start(1, 1);
  keep(1, 6);
  start(1, 2);
  const kv::HitRead read = read_hit();
  EXPECT_EQ(read.hit().tokens.value, 5 * 128);
  EXPECT_EQ(read.outcome(), kv::HitRead::Outcome::kStale);
}

TEST_F(SnapshotHit, AMachineThatDoesNotAnswerIsAFallback) {
  start(1, 1);
  keep(1, 6);
  machines_.erase(1);  // and nobody has noticed its death yet
  const kv::HitRead read = read_hit();
  EXPECT_EQ(read.hit().tokens.value, 5 * 128);
  EXPECT_EQ(read.outcome(), kv::HitRead::Outcome::kFallback);
  EXPECT_EQ(counters_.totals().fallbacks, 1U);
}

TEST_F(SnapshotHit, WhenTwoMachinesBothHoldItTheOtherHelps) {
  start(1, 1);
  start(2, 1);
  keep(1, 6);
  keep(2, 6);
  machines_.at(1)->store.erase(kv::snapshot_name(keys_, 6, layout_name_));
  const kv::HitRead read = read_hit();
  EXPECT_EQ(read.hit().tokens.value, 6 * 128);
  EXPECT_EQ(read.outcome(), kv::HitRead::Outcome::kHit);
  EXPECT_EQ(ring_, ring_after(6 * 128));
}

TEST_F(SnapshotHit, AMachinesDeathRemovesAllItHeldAtOnce) {
  start(1, 1);
  keep(1, 4);
  keep(1, 6);
  directory_.remove_machine(HostId{1});
  const kv::HitRead read = read_hit();
  EXPECT_EQ(read.promised().snapshot_blocks, 0) << "nobody is asked";
  EXPECT_EQ(read.outcome(), kv::HitRead::Outcome::kHit);
  EXPECT_FALSE(read.hit().exact);
}

TEST_F(SnapshotHit, AnotherPromptsStateIsNeverUsed) {
  start(1, 1);
  keep(1, 6);
  tokens_[5] += 1;
  const auto other = kv::block_keys(kv::root_key({"model", "f32", "bpe", "", ""}), tokens_);
  EXPECT_TRUE(directory_.endpoints(other, layout_name_, 20).empty());
  EXPECT_TRUE(directory_.endpoints(keys_, kv::layout_key(kShape, "other"), 20).empty());
}

}  // namespace
}  // namespace trimtab::kv_state
