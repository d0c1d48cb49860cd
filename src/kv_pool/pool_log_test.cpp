#include "kv_pool/pool_log.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>

#include "kv_pool/test_support.h"

namespace trimtab::kv_pool {
namespace {

using test::key;

class LogWriter {
 public:
  LogWriter() { add(encode_log_header(4096)); }
  void put(std::uint64_t k, std::uint32_t slot) { record(LogRecordKind::kPut, k, slot); }
  void erase(std::uint64_t k, std::uint32_t slot) { record(LogRecordKind::kErase, k, slot); }
  std::vector<std::byte> bytes;

 private:
  void record(LogRecordKind kind, std::uint64_t k, std::uint32_t slot) {
    add(encode_log_record(kind, {key(k), slot, k * 3}, index_++));
  }
  void add(const LogBytes& record) { bytes.insert(bytes.end(), record.begin(), record.end()); }
  std::uint64_t index_ = 0;
};

std::vector<FileEntry> live(const std::vector<std::byte>& log, std::uint32_t slots = 8) {
  const auto scan = scan_log(log, slots);
  return scan ? scan->live : std::vector<FileEntry>{};
}
FileEntry entry(std::uint64_t k, std::uint32_t slot) { return {key(k), slot, k * 3}; }

TEST(PoolLog, PutsErasesAndReusedSlots) {
  LogWriter log;
  log.put(1, 0);
  log.put(2, 1);
  log.put(3, 2);
  log.erase(1, 0);
  log.put(4, 0);
  log.put(5, 1);  // no erase before it: the slot's old entry is gone all the same
  log.put(3, 6);  // moved
  EXPECT_EQ(live(log.bytes), (std::vector<FileEntry>{entry(4, 0), entry(5, 1), entry(3, 6)}));
  EXPECT_EQ(scan_log(log.bytes, 8)->block_bytes, 4096U);
  EXPECT_EQ(scan_log(log.bytes, 8)->records, 7U);
}

TEST(PoolLog, SlotsThatDoNotExistAreDropped) {
  LogWriter log;
  log.put(1, 0);
  log.put(2, 5);
  EXPECT_EQ(live(log.bytes, 5), (std::vector<FileEntry>{entry(1, 0)}));
  EXPECT_EQ(scan_log(log.bytes, 5)->dropped, 1U);
}

TEST(PoolLog, CutAnywhereItHoldsWhatWasWholeBefore) {
  LogWriter log;
  std::vector<std::vector<FileEntry>> after = {{}};
  for (std::uint32_t i = 0; i < 6; ++i) {
    if (i == 3) {
      log.erase(1, 1);
    } else {
      log.put(i, i);
    }
    after.push_back(live(log.bytes));
  }
  for (std::size_t size = 0; size <= log.bytes.size(); ++size) {
    const std::vector<std::byte> cut(log.bytes.begin(),
                                     log.bytes.begin() + static_cast<std::ptrdiff_t>(size));
    const auto scan = scan_log(cut, 8);
    if (size < kLogRecordBytes) {
      EXPECT_FALSE(scan);
      continue;
    }
    ASSERT_TRUE(scan);
    EXPECT_EQ(scan->live, after[size / kLogRecordBytes - 1]);
    EXPECT_EQ(scan->dropped, size % kLogRecordBytes == 0 ? 0U : 1U);
  }
}

TEST(PoolLog, ADamagedRecordCostsItselfOnly) {
  LogWriter log;
  for (std::uint32_t i = 0; i < 5; ++i) log.put(i, i);
  for (std::size_t at = kLogRecordBytes; at < log.bytes.size(); ++at) {
    auto damaged = log.bytes;
    damaged[at] ^= std::byte{0x10};
    const std::size_t hurt = at / kLogRecordBytes - 1;
    const auto entries = live(damaged);
    ASSERT_EQ(entries.size(), 4U) << at;
    for (const FileEntry& e : entries) {
      EXPECT_NE(e.slot, hurt);
      EXPECT_EQ(e, entry(e.slot, e.slot));
    }
  }
}

TEST(PoolLog, ARecordInAnotherPlaceIsNoRecord) {
  LogWriter log;
  for (std::uint32_t i = 0; i < 3; ++i) log.put(i, i);
  const auto first = log.bytes.begin() + kLogRecordBytes;
  std::copy(first, first + kLogRecordBytes, first + kLogRecordBytes);  // stale bytes over the second
  EXPECT_EQ(live(log.bytes), (std::vector<FileEntry>{entry(0, 0), entry(2, 2)}));
}

TEST(PoolLog, AHeaderThatIsNotOursIsRefused) {
  LogWriter log;
  log.bytes[9] ^= std::byte{1};
  const auto scan = scan_log(log.bytes, 8);
  ASSERT_FALSE(scan);
  EXPECT_EQ(scan.error().code, base::Code::kDataLoss);
  EXPECT_FALSE(scan_log(std::vector<std::byte>(4096), 8));
  EXPECT_FALSE(scan_log({}, 8));
}

RC_GTEST_PROP(PoolLogProperty, ReplayEqualsTwoMaps, ()) {
  base::Prng prng(*rc::gen::arbitrary<std::uint64_t>());
  LogWriter log;
  std::map<std::uint64_t, std::uint32_t> slot_of;
  for (int i = 0; i < 100; ++i) {
    const std::uint64_t k = prng.below(6);
    if (prng.below(3) == 0) {
      log.erase(k, slot_of.contains(k) ? slot_of[k] : 0);
      slot_of.erase(k);
      continue;
    }
    const auto slot = static_cast<std::uint32_t>(prng.below(5));
    std::erase_if(slot_of, [slot](const auto& item) { return item.second == slot; });
    slot_of[k] = slot;
    log.put(k, slot);
  }
  const auto entries = live(log.bytes);
  RC_ASSERT(entries.size() == slot_of.size());
  for (const auto& [k, slot] : slot_of)
    RC_ASSERT(std::count(entries.begin(), entries.end(), entry(k, slot)) == 1);
}

TEST(ContentChecksum, BindsTheBytesToTheKey) {
  const auto block = test::block_of(key(1), 4096);
  EXPECT_NE(content_checksum(key(1), block), content_checksum(key(2), block));
}

}  // namespace
}  // namespace trimtab::kv_pool
