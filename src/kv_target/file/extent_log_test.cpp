#include "kv_target/file/extent_log.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>

#include "kv_target/testing/conformance.h"

namespace trimtab::kv_target::file {
namespace {

using kv_target::testing::shard_name;

constexpr Layout kLayout{4096, 16 * 4096};
constexpr std::uint64_t kId = 99;

LogEntry entry(std::uint64_t n, std::uint64_t unit, std::uint64_t bytes = 5'000) {
  return {shard_name(n, static_cast<std::uint8_t>(n % 12)), {unit, bytes, n * 1'000 + unit}};
}

struct Log {
  std::vector<std::byte> bytes = encode_headers(kLayout, kId);
  std::uint64_t records = 0;

  void add(RecordKind kind, const LogEntry& e) {
    const RecordBytes record = encode_record(kind, e, kId, records++);
    bytes.insert(bytes.end(), record.begin(), record.end());
  }
};

std::vector<LogEntry> live(const std::vector<std::byte>& bytes) {
  const auto scan = scan_log(bytes);
  EXPECT_TRUE(scan);
  return scan ? scan->live : std::vector<LogEntry>{};
}

TEST(ExtentLog, SaysWhatItsRecordsSay) {
  Log log;
  log.add(RecordKind::kPut, entry(1, 0));
  log.add(RecordKind::kPut, entry(2, 2));
  log.add(RecordKind::kPut, entry(1, 4));  // moved
  log.add(RecordKind::kErase, entry(2, 2));
  log.add(RecordKind::kPut, entry(3, 1));  // in the room of both
  log.bytes.resize(log.bytes.size() + 4096);
  const auto scan = scan_log(log.bytes);
  ASSERT_TRUE(scan);
  EXPECT_EQ(scan->live, (std::vector<LogEntry>{entry(1, 4), entry(3, 1)}));
  EXPECT_EQ(scan->records, 5U);
  EXPECT_EQ(scan->dropped, 0U) << "zeros at the end are room";
  EXPECT_EQ(scan->layout, kLayout);
}

TEST(ExtentLog, ALaterPutIntoTheSameRoomEndsTheOlder) {
  Log log;
  log.add(RecordKind::kPut, entry(1, 0, 3 * 4096));
  log.add(RecordKind::kPut, entry(2, 3, 4096));
  log.add(RecordKind::kPut, entry(3, 2, 2 * 4096));  // reaches into both; the erases between are damaged
  EXPECT_EQ(live(log.bytes), (std::vector<LogEntry>{entry(3, 2, 2 * 4096)}));
}

TEST(ExtentLog, ImpossibleExtentsAreDropped) {
  Log log;
  log.add(RecordKind::kPut, entry(1, 15, 5'000));  // over the end of its file
  log.add(RecordKind::kPut, entry(2, 0, 0));
  log.add(RecordKind::kPut, entry(3, 0, 17 * 4096));
  log.add(RecordKind::kPut, entry(4, ~std::uint64_t{0}, 4096));
  log.add(static_cast<RecordKind>(7), entry(5, 3));
  const auto scan = scan_log(log.bytes);
  ASSERT_TRUE(scan);
  EXPECT_TRUE(scan->live.empty());
  EXPECT_EQ(scan->dropped, 5U);
}

TEST(ExtentLog, CutAnywhereItSaysWhatItSaidThen) {
  Log log;
  std::vector<std::vector<LogEntry>> after{{}};
  for (std::uint64_t i = 0; i < 6; ++i) {
    log.add(i == 3 ? RecordKind::kErase : RecordKind::kPut, entry(i == 3 ? 1 : i, 2 * (i % 4)));
    after.push_back(live(log.bytes));
  }
  for (std::size_t size = kRecordsBegin; size <= log.bytes.size(); ++size) {
    const auto scan = scan_log(std::span(log.bytes).first(size));
    ASSERT_TRUE(scan);
    const std::size_t whole = (size - kRecordsBegin) / kRecordBytes;
    EXPECT_EQ(scan->live, after[whole]) << size;
    EXPECT_LE(scan->dropped, 1U);
  }
}

TEST(ExtentLog, ADamagedRecordCostsItselfOnly) {
  Log log;
  for (std::uint64_t i = 0; i < 5; ++i) log.add(RecordKind::kPut, entry(i, 2 * i));
  for (std::size_t at = kRecordsBegin; at < log.bytes.size(); ++at) {
    auto damaged = log.bytes;
    damaged[at] ^= std::byte{0x10};
    const auto scan = scan_log(damaged);
    ASSERT_TRUE(scan);
    EXPECT_EQ(scan->dropped, 1U);
    ASSERT_EQ(scan->live.size(), 4U) << at;
    for (const LogEntry& e : scan->live) {
      EXPECT_NE(e.extent.unit / 2, (at - kRecordsBegin) / kRecordBytes);
      EXPECT_EQ(e, entry(e.extent.unit / 2, e.extent.unit));
    }
  }
  std::fill_n(log.bytes.begin() + kRecordsBegin + 64, 64, std::byte{0});
  EXPECT_EQ(scan_log(log.bytes)->dropped, 1U) << "zeros before records are a loss";
}

TEST(ExtentLog, OneHeaderIsEnoughAndNoneIsRefused) {
  Log log;
  log.add(RecordKind::kPut, entry(1, 0));
  auto one = log.bytes;
  one[5] ^= std::byte{1};
  EXPECT_EQ(live(one).size(), 1U);
  one[kHeaderBytes + 20] ^= std::byte{1};
  const auto scan = scan_log(one);
  ASSERT_FALSE(scan);
  EXPECT_EQ(scan.error().code, base::Code::kDataLoss);
  EXPECT_FALSE(scan_log({}));
}

TEST(ExtentLog, ARecordInAnotherPlaceOrOfAnotherLogIsNone) {
  Log log;
  for (std::uint64_t i = 0; i < 3; ++i) log.add(RecordKind::kPut, entry(i, 2 * i));
  const auto first = log.bytes.begin() + kRecordsBegin;
  std::copy(first, first + kRecordBytes, first + kRecordBytes);
  EXPECT_EQ(live(log.bytes), (std::vector<LogEntry>{entry(0, 0), entry(2, 4)}));
  auto other = encode_headers(kLayout, kId + 1);
  other.insert(other.end(), first, log.bytes.end());
  EXPECT_TRUE(live(other).empty());
}

RC_GTEST_PROP(ExtentLogProperty, ReplayEqualsAModel, ()) {
  Log log;
  std::map<ShardName, LogEntry> model;
  const auto steps =
      *rc::gen::container<std::vector<std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>>>(
          rc::gen::tuple(rc::gen::inRange<std::uint64_t>(0, 6), rc::gen::inRange<std::uint64_t>(0, 30),
                         rc::gen::inRange<std::uint64_t>(0, 5)));
  for (const auto& [n, unit, units] : steps) {
    const LogEntry e = entry(n, unit, units * 4096);
    if (units == 0) {
      log.add(RecordKind::kErase, e);
      model.erase(e.name);
      continue;
    }
    log.add(RecordKind::kPut, e);
    if (unit / 16 != (unit + units - 1) / 16) continue;
    std::erase_if(model, [&, first = unit, count = units](const auto& item) {
      const Extent& old = item.second.extent;
      return item.first == e.name || (old.unit < first + count && first < old.unit + old.bytes / 4096);
    });
    model[e.name] = e;
  }
  const auto found = live(log.bytes);
  RC_ASSERT(found.size() == model.size());
  for (const LogEntry& e : found) RC_ASSERT(model.at(e.name) == e);
}

TEST(ContentChecksum, BindsTheBytesToTheName) {
  const auto content = kv_target::testing::content_of(shard_name(1), 4096);
  EXPECT_NE(content_checksum(shard_name(1), content), content_checksum(shard_name(2), content));
  EXPECT_NE(content_checksum(shard_name(1, 0), content), content_checksum(shard_name(1, 1), content));
}

}  // namespace
}  // namespace trimtab::kv_target::file
