#include <gtest/gtest.h>

#include "kv_store/testing/fleet.h"

namespace trimtab::kv_store {
namespace {

using namespace testing;  // the fleet's

/// Random writes, reads, erases and cancels, many at a time, while two targets at a time die, hang, come back
/// with what they held, or are replaced by empty ones, and the others delay and damage what they say.
class Storm {
 public:
  Storm(std::uint32_t targets, std::uint64_t seed, StoreOptions options)
      : fleet_(targets, std::move(options), seed), prng_(seed, 5) {}

  void run(std::uint32_t operations) {
    for (std::uint32_t i = 0; i < operations; ++i) {
      if (prng_.below(60) == 0) change_faults();
      ask();
      for (std::uint64_t steps = prng_.below(8); steps > 0; --steps) fleet_.step();
      if (prng_.below(20) == 0) fleet_.pass(base::Nanos{30'000'000});
      collect();
    }
    heal();
    finish();
  }

  std::uint64_t reads_right = 0, reads_failed = 0, writes = 0, rounds = 0, lies = 0;
  std::uint32_t damage_per_mille = 0;
  bool replacing = false;
  Fleet& fleet() { return fleet_; }

 private:
  struct Asked {
    std::uint64_t n = 0;
    bool write = false;
    bool acknowledged = false;  // before the read was asked
    std::vector<std::byte> bytes;
  };

  void ask() {
    const std::uint64_t n = prng_.below(300);
    if (busy_.contains(n)) return;
    Asked asked;
    asked.n = n;
    if (!acknowledged_.contains(n)) {
      if (prng_.below(2) != 0) return;
      asked.write = true;
      asked.bytes = block_of(n, fleet_.block_bytes());
      const auto handle = fleet_.store->write(key_of(n), asked.bytes, base::kForever, fleet_.now);
      asked_.emplace(handle, std::move(asked));
    } else if (prng_.below(12) == 0) {
      const BlockKey key = key_of(n);
      fleet_.store->erase({&key, 1}, fleet_.now);
      acknowledged_.erase(n);
      return;
    } else {
      asked.bytes.resize(fleet_.block_bytes());
      const StripedStore::BlockRead one{key_of(n), asked.bytes};
      const auto handle = fleet_.store->read({&one, 1}, base::kForever,
                                             static_cast<std::int32_t>(prng_.below(3)), fleet_.now);
      if (prng_.below(15) == 0) {
        fleet_.store->cancel(handle, fleet_.now);
        return;
      }
      asked_.emplace(handle, std::move(asked));
    }
    busy_.insert(n);
  }

  void collect() {
    for (const StoreEvent& event : fleet_.events) {
      if (!event.last) continue;
      const auto found = asked_.find(event.handle);
      ASSERT_NE(found, asked_.end()) << "an end that nobody waits for";
      const Asked& asked = found->second;
      if (asked.write) {
        ASSERT_EQ(event.kind, Kind::kWritten) << "block " << asked.n;
        acknowledged_.insert(asked.n);
        ++writes;
      } else if (event.kind == Kind::kRead) {
        ASSERT_EQ(asked.bytes, block_of(asked.n, fleet_.block_bytes())) << "wrong bytes of block " << asked.n;
        ++reads_right;
      } else {
        ++reads_failed;
        ADD_FAILURE() << "block " << asked.n
                      << " was acknowledged and is not read: " << static_cast<int>(event.kind) << " in round "
                      << rounds;
      }
      busy_.erase(asked.n);
      asked_.erase(found);
    }
    fleet_.events.clear();
  }

  void heal() {
    for (const std::uint32_t t : broken_)
      fleet_.targets[t]->faults.dead = fleet_.targets[t]->faults.hung = false;
    broken_.clear();
  }

  /// Nothing left to do, and everything acknowledged is whole again.
  void finish() {
    for (int i = 0; i < 20'000 && !(asked_.empty() && all_alive()); ++i) {
      fleet_.step();
      collect();
    }
    ASSERT_TRUE(asked_.empty());
    ASSERT_TRUE(all_alive());
    fleet_.settle();
    collect();
    for (const std::uint64_t n : acknowledged_) ASSERT_TRUE(fleet_.store->index().present(key_of(n))) << n;
  }
  bool all_alive() {
    for (std::uint32_t t = 0; t < fleet_.targets.size(); ++t)
      if (!fleet_.store->channels().usable(static_cast<TargetId>(t))) return false;
    return true;
  }

  /// The two broken ones come back and are mended before the next two break: three at once may lose blocks.
  void change_faults() {
    ++rounds;
    heal();
    for (auto* target : fleet_.targets) target->faults.corrupt_per_mille = 0;
    finish();
    if (replacing && prng_.below(3) == 0) {
      const auto lost = static_cast<TargetId>(prng_.below(fleet_.targets.size()));
      auto fresh = fleet_.make_target(90'000 + rounds);
      fleet_.targets[lost] = fleet_.targets.back();
      fleet_.targets.pop_back();
      fleet_.targets[lost]->set_time(fleet_.now);
      fleet_.store->replace(lost, std::move(fresh), fleet_.now);
      return;
    }
    const bool one_lies = damage_per_mille > 0 && prng_.below(2) == 0;
    for (std::uint32_t i = 0; i < (one_lies ? 1U : 2U); ++i) {
      const auto t = static_cast<std::uint32_t>(prng_.below(fleet_.targets.size()));
      (prng_.below(3) == 0 ? fleet_.targets[t]->faults.hung : fleet_.targets[t]->faults.dead) = true;
      broken_.insert(t);
    }
    if (one_lies) {
      ++lies;
      const auto t = static_cast<std::uint32_t>(prng_.below(fleet_.targets.size()));
      fleet_.targets[t]->faults.corrupt_per_mille = damage_per_mille;
    }
  }

  Fleet fleet_;
  base::Prng prng_;
  std::map<StripedStore::Handle, Asked> asked_;
  std::set<std::uint64_t> acknowledged_, busy_;
  std::set<std::uint32_t> broken_;
};

TEST(StormTest, NothingAcknowledgedIsLostWhileTwoTargetsDieAndReturn) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(seed);
    Storm storm(seed % 2 == 0 ? 12 : 17, seed, Fleet::small());
    storm.run(6'000);
    if (HasFatalFailure()) return;
    EXPECT_EQ(storm.reads_failed, 0U);
    EXPECT_GT(storm.reads_right, 1'000U);
    EXPECT_GT(storm.writes, 200U);
    EXPECT_GT(storm.fleet().store->counters().targets_died, 20U);
    EXPECT_GT(storm.fleet().store->counters().reads_degraded, 50U);
  }
}

TEST(StormTest, NorWhileTargetsAreReplacedAndOthersLie) {
  Storm storm(14, 9, Fleet::small());
  storm.replacing = true;
  storm.damage_per_mille = 200;
  storm.run(6'000);
  if (HasFatalFailure()) return;
  EXPECT_EQ(storm.reads_failed, 0U);
  EXPECT_GT(storm.fleet().store->counters().shards_corrupt, 10U)
      << storm.reads_right << " reads, " << storm.rounds << " rounds, " << storm.lies << " lies";
  EXPECT_GT(storm.fleet().store->counters().shards_repaired, 100U);
}

/// Memory for few stripes: everything waits for everything, and still ends.
TEST(StormTest, AlsoWithHardlyAnyMemory) {
  StoreOptions options = Fleet::small();
  options.memory_bytes = 70 * options.layout.shard_bytes;
  options.read_bytes_in_flight = 1;
  Storm storm(12, 3, options);
  storm.run(2'000);
  EXPECT_EQ(storm.reads_failed, 0U);
}

}  // namespace
}  // namespace trimtab::kv_store
