#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <optional>

#include "base/hash.h"
#include "kv_store/striped_store.h"
#include "kv_store/testing/faulty_target.h"

namespace trimtab::kv_store::testing {

inline kv_code::StripeLayout layout_of(std::vector<std::int64_t> layers) {
  model::KvLayout kv;
  for (const std::int64_t bytes : layers) kv.layer_bytes.push_back(base::Bytes{bytes});
  kv.block_bytes = base::Bytes{std::accumulate(layers.begin(), layers.end(), std::int64_t{0})};
  auto layout = kv_code::StripeLayout::make(kv);
  EXPECT_TRUE(layout.has_value());
  return std::move(*layout);
}

inline BlockKey key_of(std::uint64_t n) { return {base::mix(21, n), base::mix(22, n)}; }

/// The one right content of a block at its `version`-th writing.
inline std::vector<std::byte> block_of(std::uint64_t n, std::size_t bytes, std::uint64_t version = 0) {
  base::Prng prng(n + 1, version);
  std::vector<std::byte> block(bytes);
  for (std::size_t i = 0; i < bytes; i += 8) {
    const std::uint64_t word = prng.next();
    std::memcpy(block.data() + i, &word, std::min<std::size_t>(8, bytes - i));
  }
  return block;
}

using Kind = StoreEvent::Kind;
inline constexpr base::Nanos kSecond{1'000'000'000};

/// A store over faulty targets in a time that moves from one thing due to the next.
class Fleet {
 public:
  explicit Fleet(std::uint32_t count, StoreOptions options = small(), std::uint64_t seed = 1,
                 std::uint64_t capacity_bytes = 64ULL << 20) {
    std::vector<std::unique_ptr<kv_target::Target>> owned;
    for (std::uint32_t i = 0; i < count; ++i) owned.push_back(make_target(seed * 1'000 + i, capacity_bytes));
    auto opened = StripedStore::open(std::move(owned), std::move(options), now);
    EXPECT_TRUE(opened.has_value()) << (opened ? "" : opened.error().message);
    store = std::move(*opened);
  }

  static StoreOptions small() {
    StoreOptions options;
    options.layout = layout_of({600, 300, 500});
    options.memory_bytes = 512 * options.layout.shard_bytes;
    options.first_layers = 1;
    options.repair_bytes_per_second = 1'000'000'000;
    options.second_look = base::Nanos{2'000'000'000};
    options.targets.request_timeout = base::Nanos{50'000'000};
    return options;
  }

  std::unique_ptr<kv_target::Target> make_target(std::uint64_t seed,
                                                 std::uint64_t capacity_bytes = 64ULL << 20) {
    auto one = std::make_unique<FaultyTarget>(seed, capacity_bytes, 1 + seed);
    targets.push_back(one.get());
    return one;
  }

  std::size_t block_bytes() const { return 1'400; }

  /// Moves the time to the next thing due, `most` at most, and polls. Events are kept.
  void step(base::Nanos most = base::Nanos{10'000'000}) {
    base::Nanos next = std::min(now + most, std::max(store->next_wake(), now + base::Nanos{1}));
    for (FaultyTarget* target : targets)
      if (target != nullptr) next = std::min(next, std::max(target->due(), now));
    now = next;
    for (FaultyTarget* target : targets)
      if (target != nullptr) target->set_time(now);
    store->poll(now, events);
  }
  void pass(base::Nanos span) {
    for (const base::Nanos end = now + span; now < end;) step(std::min(end - now, base::Nanos{10'000'000}));
  }
  /// The last event of a handle; fails the test when none comes within a minute of the store's time.
  StoreEvent wait(StripedStore::Handle handle) {
    for (const base::Nanos end = now + base::Nanos{60'000'000'000}; now < end;) {
      for (auto it = events.begin(); it != events.end(); ++it) {
        if (it->handle != handle || !it->last) continue;
        const StoreEvent event = *it;
        events.erase(it);
        return event;
      }
      step();
    }
    ADD_FAILURE() << "no end of " << handle;
    return {};
  }
  StoreEvent::Kind write(std::uint64_t n, std::uint64_t version = 0) {
    const auto block = block_of(n, block_bytes(), version);
    return wait(store->write(key_of(n), block, base::kForever, now)).kind;
  }
  /// The bytes, or nothing when they could not be read.
  std::optional<std::vector<std::byte>> read(std::uint64_t n) {
    std::vector<std::byte> to(block_bytes());
    const StripedStore::BlockRead one{key_of(n), to};
    last_read = wait(store->read({&one, 1}, base::kForever, 0, now)).kind;
    if (last_read != StoreEvent::Kind::kRead) return std::nullopt;
    return to;
  }
  /// Until nothing is left to mend: at most `most`.
  void settle(base::Nanos most = base::Nanos{60'000'000'000}) {
    const base::Nanos end = now + most;
    while (now < end && (store->repairs_waiting() > 0 || (store->walk() && !store->walk()->done()))) step();
  }
  bool whole(std::uint64_t n) {
    const auto at = store->index().find(key_of(n));
    return at && std::ranges::equal(*at, store->map().of(key_of(n)));
  }

  base::Nanos now{1'000'000'000};
  std::vector<FaultyTarget*> targets;  // null: given to nobody any more
  std::vector<StoreEvent> events;
  StoreEvent::Kind last_read = StoreEvent::Kind::kRead;
  std::unique_ptr<StripedStore> store;
};

}  // namespace trimtab::kv_store::testing
