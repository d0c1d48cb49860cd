#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/prng.h"
#include "kv_remote/net/network_target.h"
#include "kv_remote/testing/target_process.h"
#include "kv_store/striped_store.h"
#include "kv_store/testing/fleet.h"
#include "kv_target/file/testing/temp_directory.h"

namespace trimtab::kv_remote {
namespace {

using kv_store::StoreEvent;
using kv_store::StripedStore;
using kv_store::TargetId;
using kv_store::testing::block_of;
using kv_store::testing::key_of;
using kv_target::file::testing::TempDirectory;
using Kind = StoreEvent::Kind;

constexpr std::uint32_t kProcesses = 12, kAtOnce = 48;
constexpr std::size_t kBlockBytes = 4'096;
constexpr base::Nanos kPatience{120'000'000'000};  // for what must come, however busy the machine is

kv_store::StoreOptions storm_options() {
  kv_store::StoreOptions options;
  options.layout = kv_store::testing::layout_of({1'024, 1'024, 1'024, 1'024});
  options.memory_bytes = 64ULL << 20;
  options.write_timeout = options.read_timeout = kPatience;
  options.repair_bytes_per_second = 1'000'000'000;
  options.repair_jobs = 16;
  options.second_look = base::Nanos{1'000'000'000};  // at what an erase left behind at a dead target
  // Killed processes show by their connections; a busy machine must not look like a dead one.
  options.targets.request_timeout = options.targets.health.probe_timeout = kPatience;
  options.targets.health.backoff = base::Nanos{50'000'000};
  options.targets.health.backoff_most = base::Nanos{200'000'000};
  return options;
}

/// Writes, reads and erases over target processes of which two at a time are killed and started again.
class ProcessStorm {
 public:
  ProcessStorm(std::uint32_t operations, std::uint64_t seed, const std::string& parent)
      : operations_(operations), directory_(parent), prng_(seed, 9) {}

  void run(std::uint32_t rounds) {
    start();
    for (std::uint32_t round = 0; round < rounds && !::testing::Test::HasFatalFailure(); ++round) {
      const std::uint32_t end = (round + 1) * (operations_ / rounds);
      const std::uint32_t third = operations_ / rounds / 3;
      go_until(end - 2 * third);
      const auto [one, other] = kill_two();
      go_until(end - third);
      if (::testing::Test::HasFatalFailure()) return;
      processes_[one].start();
      processes_[other].start();
      go_until(end);
      heal();
    }
    if (!::testing::Test::HasFatalFailure()) everything_is_there();
  }

  std::uint64_t reads = 0, writes = 0, writes_failed = 0, erases = 0, degraded_claims = 0;
  const kv_store::StoreCounters& counters() const { return store_->counters(); }

 private:
  struct Asked {
    std::uint64_t n = 0;
    bool write = false;
    std::vector<std::byte> bytes;
  };

  void start() {
    for (std::uint32_t i = 0; i < kProcesses; ++i) {
      processes_.emplace_back(directory_.path("target" + std::to_string(i)), i);
      ASSERT_NO_FATAL_FAILURE(processes_.back().start());
    }
    std::vector<std::unique_ptr<kv_target::Target>> targets;
    for (const auto& process : processes_) {
      NetworkOptions options;
      options.server = process.address();
      options.request_timeout = options.question_timeout = kPatience;
      options.backoff_max = base::Nanos{100'000'000};
      options.follow_in_background = true;
      auto target = NetworkTarget::open(std::move(options));
      ASSERT_TRUE(target && (*target)->wait_until_connected(kPatience));
      targets.push_back(std::move(*target));
    }
    auto store = StripedStore::open(std::move(targets), storm_options(), steady_now());
    ASSERT_TRUE(store.has_value()) << base::to_string(store.error());
    store_ = std::move(*store);
  }

  std::pair<std::size_t, std::size_t> kill_two() {
    const std::size_t one = prng_.below(kProcesses);
    const std::size_t other = (one + 1 + prng_.below(kProcesses - 1)) % kProcesses;
    processes_[one].kill();
    ask_some();  // some requests meet the first one's death, some the second's
    processes_[other].kill();
    return {one, other};
  }

  void go_until(std::uint32_t operation) {
    while (done_ < operation && !::testing::Test::HasFatalFailure()) {
      ask_some();
      turn();
    }
  }

  void ask_some() {
    while (asked_.size() < kAtOnce) {
      // Twice as many names as writes: of the others the index must claim nothing.
      const std::uint64_t n = prng_.below(operations_);
      if (busy_.contains(n)) continue;
      const model::BlockKey key = key_of(n);
      const bool held = acknowledged_.contains(n);
      // Before every operation: what was acknowledged is claimed, and nothing else is.
      ASSERT_EQ(store_->index().present(key), held) << "block " << n << " at operation " << done_;
      Asked asked;
      asked.n = n;
      asked.write = !held && prng_.below(2) == 0;
      if (asked.write) {
        asked.bytes = block_of(n, kBlockBytes);
        const auto handle = store_->write(key, asked.bytes, base::kForever, steady_now());
        asked_.emplace(handle, std::move(asked));
      } else {
        // Those that are acknowledged are read, at any time; every twentieth is erased instead.
        const std::uint64_t of = held ? n : some_acknowledged();
        if (of == UINT64_MAX || busy_.contains(of)) continue;
        asked.n = of;
        if (prng_.below(20) == 0) {
          const model::BlockKey gone = key_of(of);
          store_->erase({&gone, 1}, steady_now());
          acknowledged_.erase(of);
          ++erases;
          continue;
        }
        asked.bytes.resize(kBlockBytes);
        const StripedStore::BlockRead one{key_of(of), asked.bytes};
        const auto handle = store_->read({&one, 1}, base::kForever, 0, steady_now());
        asked_.emplace(handle, std::move(asked));
        busy_.insert(of);
        continue;
      }
      busy_.insert(n);
    }
  }
  std::uint64_t some_acknowledged() {
    if (acknowledged_.empty()) return UINT64_MAX;
    const auto at = acknowledged_.lower_bound(prng_.below(operations_));
    return at == acknowledged_.end() ? *acknowledged_.begin() : *at;
  }

  void turn() {
    store_->poll(steady_now(), events_);
    collect();
    const std::int64_t span = (store_->next_wake() - steady_now()).value;
    if (span <= 0 || asked_.size() < kAtOnce) return;
    std::vector<pollfd> fds;
    for (const int fd : store_->wake_fds()) fds.push_back({fd, POLLIN, 0});
    ::poll(fds.data(), fds.size(), static_cast<int>(std::min<std::int64_t>(span / 1'000'000 + 1, 50)));
  }

  void collect() {
    for (const StoreEvent& event : events_) {
      if (!event.last) continue;
      const auto found = asked_.find(event.handle);
      ASSERT_NE(found, asked_.end());
      const Asked& asked = found->second;
      ++done_;
      if (asked.write && event.kind == Kind::kWritten) {
        acknowledged_.insert(asked.n);
        ++writes;
      } else if (asked.write) {
        ++writes_failed;
      } else {
        ASSERT_EQ(event.kind, Kind::kRead) << "block " << asked.n << " was acknowledged, operation " << done_;
        ASSERT_EQ(asked.bytes, block_of(asked.n, kBlockBytes)) << "wrong bytes of block " << asked.n;
        ++reads;
      }
      busy_.erase(asked.n);
      asked_.erase(found);
    }
    events_.clear();
  }

  /// Until both are relied upon again and hold what belongs to them: the next two may be killed then.
  void heal() {
    const base::Nanos end = steady_now() + kPatience;
    const auto well = [this] {
      for (TargetId t = 0; t < kProcesses; ++t)
        if (!store_->channels().usable(t) || !store_->index().alive(t)) return false;
      return store_->repairs_waiting() == 0 && (!store_->walk() || store_->walk()->done());
    };
    while (!asked_.empty() || !well()) {
      ASSERT_LT(steady_now(), end) << asked_.size() << " operations, " << store_->repairs_waiting()
                                   << " repairs";
      turn();
      if (asked_.size() < kAtOnce) ::poll(nullptr, 0, 1);
    }
  }

  /// With twelve shards each, and readable while yet another two are killed.
  void everything_is_there() {
    for (const std::uint64_t n : acknowledged_) {
      const auto at = store_->index().find(key_of(n));
      ASSERT_TRUE(at && std::ranges::equal(*at, store_->map().of(key_of(n))))
          << "block " << n << " is not whole";
    }
    kill_two();
    std::vector<std::uint64_t> left(acknowledged_.begin(), acknowledged_.end());
    while (!left.empty() || !asked_.empty()) {
      for (; !left.empty() && asked_.size() < kAtOnce; left.pop_back()) {
        Asked asked;
        asked.n = left.back();
        asked.bytes.resize(kBlockBytes);
        const StripedStore::BlockRead one{key_of(asked.n), asked.bytes};
        const auto handle = store_->read({&one, 1}, base::kForever, 0, steady_now());
        asked_.emplace(handle, std::move(asked));
      }
      ASSERT_NO_FATAL_FAILURE(turn());
    }
  }

  std::uint32_t operations_, done_ = 0;
  TempDirectory directory_;
  base::Prng prng_;
  std::vector<testing::TargetProcess> processes_;
  std::unique_ptr<StripedStore> store_;
  std::vector<StoreEvent> events_;
  std::map<StripedStore::Handle, Asked> asked_;
  std::set<std::uint64_t> acknowledged_, busy_;
};

/// TRIMTAB_STORM_OPERATIONS=100000 for the long form, on the disk instead of in memory.
TEST(ProcessStormTest, NothingIsLostOrWrongWhileTwoOfTwelveProcessesAreKilledAndReturn) {
  const char* wanted = std::getenv("TRIMTAB_STORM_OPERATIONS");
  const auto operations = static_cast<std::uint32_t>(wanted != nullptr ? std::atol(wanted) : 3'000);
  ProcessStorm storm(operations, 1, wanted != nullptr ? "/tmp" : TempDirectory::memory());
  storm.run(wanted != nullptr ? 8 : 2);
  if (HasFatalFailure()) return;
  const auto& counters = storm.counters();
  EXPECT_EQ(storm.writes_failed, 0U) << "ten targets are left: enough for every write";
  EXPECT_EQ(counters.stale, 0U) << "the index claimed what could not be read";
  EXPECT_EQ(counters.reads_missing + counters.reads_failed, 0U);
  EXPECT_GE(counters.targets_died, 4U);
  EXPECT_GT(counters.reads_degraded, 0U);
  EXPECT_GT(counters.writes_lacking, 0U);
  EXPECT_GT(counters.shards_repaired, 0U);
  RecordProperty("reads", static_cast<int>(storm.reads));
  std::printf(
      "%llu reads, %llu writes, %llu erases; %llu deaths, %llu degraded reads, %llu writes with ten or "
      "eleven "
      "shards, %llu shards mended\n",
      static_cast<unsigned long long>(storm.reads), static_cast<unsigned long long>(storm.writes),
      static_cast<unsigned long long>(storm.erases), static_cast<unsigned long long>(counters.targets_died),
      static_cast<unsigned long long>(counters.reads_degraded),
      static_cast<unsigned long long>(counters.writes_lacking),
      static_cast<unsigned long long>(counters.shards_repaired));
}

}  // namespace
}  // namespace trimtab::kv_remote
