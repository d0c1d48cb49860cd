#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/steady_clock.h"
#include "kv_pool/content_checksum.h"
#include "kv_pool/pool_store.h"
#include "kv_pool/target_list.h"
#include "kv_pool/test_support.h"
#include "kv_store/testing/faulty_target.h"

namespace trimtab::kv_pool::test {

/// A pool of a few slots over a directory, without sockets.
struct Pool {
  static constexpr std::uint64_t kBytes = 4'096;

  /// `layers` equal ones, the first of which is asked for by itself when there are more.
  Pool(std::uint32_t memory_slots, std::uint32_t file_slots, const std::string& directory = {},
       std::uint32_t layers = 1)
      : memory(memory_slots * kBytes) {
    if (!directory.empty()) {
      const std::string specs[] = {directory};
      const std::uint64_t shard = kv_code::StripeLayout::make(layout(layers))->shard_bytes;
      auto targets = open_targets(specs, file_slots * kv_code::kShards * on_disk(shard), shard);
      EXPECT_TRUE(targets) << base::to_string(targets.error());
      open(file_slots, layers, std::move(targets->targets));
    }
    begin(file_slots);
  }
  /// Over twelve targets in memory whose answers come late and wrong as the test says.
  struct Faulty {
    std::uint64_t bytes_in_flight = 8ULL << 20;  // that each takes at a time
    std::uint32_t blocks = 0;                    // for which there is room; 0: for all
    base::Nanos ttl = base::kForever;
  };
  Pool(Faulty how, std::uint32_t memory_slots, std::uint32_t layers) : memory(memory_slots * kBytes) {
    std::vector<std::unique_ptr<kv_target::Target>> targets;
    const std::uint64_t shard = kv_code::StripeLayout::make(layout(layers))->shard_bytes;
    const std::uint64_t room = how.blocks > 0 ? how.blocks * shard : 64ULL << 20;
    for (std::uint64_t i = 0; i < kv_code::kShards; ++i) {
      auto one = std::make_unique<kv_store::testing::FaultyTarget>(i, room);
      one->set_time(clock.now());
      one->bytes_in_flight = how.bytes_in_flight;
      faulty.push_back(one.get());
      targets.push_back(std::move(one));
    }
    open(1'000, layers, std::move(targets), how.ttl);
    begin(1'000);
  }
  void open(std::uint32_t file_slots, std::uint32_t layers,
            std::vector<std::unique_ptr<kv_target::Target>> targets, base::Nanos ttl = base::kForever) {
    StoreTier::Options options;
    options.store.layout = *kv_code::StripeLayout::make(layout(layers));
    options.store.first_layers = layers > 1 ? 1 : 0;
    options.eviction = "lru";
    options.ttl = ttl;
    options.capacity_blocks = file_slots;
    tier = *StoreTier::open(std::move(targets), std::move(options), clock.now());
  }
  void begin(std::uint32_t file_slots) {
    store = std::make_unique<PoolStore>(memory, kBytes, kBytes, 100, tier.get(), file_slots);
    store->at(clock.now());
  }

  static model::KvLayout layout(std::uint32_t layers) {
    model::KvLayout kv;
    kv.block_bytes = base::Bytes{kBytes};
    kv.layer_bytes.assign(layers, base::Bytes{static_cast<std::int64_t>(kBytes / layers)});
    return kv;
  }
  std::span<std::byte> slot(std::uint32_t i) { return std::span{memory}.subspan(i * kBytes, kBytes); }

  protocol::PutOutcome put(ClientId client, std::uint64_t n, std::optional<BlockKey> parent = {}) {
    store->at(clock.now());
    const auto granted = store->put(client, key(n), parent);
    if (granted.outcome != protocol::PutOutcome::kGranted) return granted.outcome;
    const auto content = block_of(key(n), kBytes);
    std::copy(content.begin(), content.end(), slot(granted.slot).begin());
    EXPECT_TRUE(store->commit(client, granted.slot, content_checksum(key(n), content)));
    return granted.outcome;
  }
  /// Waits for the disk where needed.
  protocol::Got get(ClientId client, std::uint64_t n) {
    if (auto at_once = store->get(client, key(n))) return *at_once;
    while (true) {
      wait();
      for (const auto& [who, got] : store->take_answers().gets)
        if (who == client) return got;
    }
  }
  /// Get, compare, unpin.
  protocol::GetOutcome read(ClientId client, std::uint64_t n) {
    const auto got = get(client, n);
    if (got.outcome != protocol::GetOutcome::kPinned) return got.outcome;
    EXPECT_TRUE(std::ranges::equal(slot(got.slot), block_of(key(n), kBytes)));
    EXPECT_TRUE(store->unpin(client, got.slot, false));
    return got.outcome;
  }
  void wait() {
    std::vector<pollfd> items;
    if (tier != nullptr && faulty.empty())
      for (const int fd : tier->wake_fds()) items.push_back({fd, POLLIN, 0});
    poll(items.data(), items.size(), faulty.empty() ? 2 : 0);
    for (kv_store::testing::FaultyTarget* one : faulty) one->set_time(clock.now());
    store->at(clock.now());
    store->advance();
    ASSERT_LT(clock.now() - began, base::Nanos{120'000'000'000}) << "the store gives no answer";
  }
  void settle() {
    while (!store->idle()) wait();
  }
  std::uint32_t match(std::initializer_list<std::uint64_t> chain, bool counted = true) {
    std::vector<BlockKey> keys;
    for (const std::uint64_t n : chain) keys.push_back(key(n));
    return store->match(keys, counted).blocks;
  }

  std::vector<std::byte> memory;
  ipc::SteadyClock clock;
  base::Nanos began = clock.now();
  std::vector<kv_store::testing::FaultyTarget*> faulty;
  std::unique_ptr<StoreTier> tier;
  std::unique_ptr<PoolStore> store;
};

/// Every shard content in the directory's extent files, one byte of each changed, as far as `most` shards go.
inline void damage_shards(const std::string& directory, std::uint64_t most) {
  std::uint64_t damaged = 0;
  for (const auto& file : std::filesystem::directory_iterator(directory)) {
    if (file.file_size() < kv_code::kShards * 4'096) continue;
    const int fd = ::open(file.path().c_str(), O_RDWR);
    std::array<char, 4> magic{};
    for (std::uint64_t at = 0; at + 4'096 <= file.file_size() && damaged < most; at += 4'096) {
      if (pread(fd, magic.data(), 4, static_cast<off_t>(at)) != 4 ||
          std::string_view(magic.data(), 4) != "TKVS")
        continue;
      char byte = 0;
      EXPECT_EQ(pread(fd, &byte, 1, static_cast<off_t>(at + 200)), 1);
      byte = static_cast<char>(byte ^ 4);
      EXPECT_EQ(pwrite(fd, &byte, 1, static_cast<off_t>(at + 200)), 1);
      ++damaged;
    }
    close(fd);
  }
  EXPECT_EQ(damaged, most) << "the test must find what it damages";
}

}  // namespace trimtab::kv_pool::test
