#include "kv_pool/pool_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "base/hash.h"

namespace trimtab::kv_pool {

namespace {

constexpr std::uint64_t kMagic = 0x31474f4c564b5454ULL;  // "TTKVLOG1"
constexpr std::uint64_t kHeaderSeed = ~std::uint64_t{0};

struct RawRecord {
  std::uint32_t kind = 0;
  std::uint32_t slot = 0;
  std::uint64_t high = 0, low = 0;
  std::uint64_t content = 0;
  std::uint64_t check = 0;
};
struct RawHeader {
  std::uint64_t magic = kMagic;
  std::uint64_t block_bytes = 0;
  std::uint64_t reserved[2] = {0, 0};
  std::uint64_t check = 0;
};
static_assert(sizeof(RawRecord) == kLogRecordBytes && sizeof(RawHeader) == kLogRecordBytes);

template <class Raw>
LogBytes sealed(Raw raw, std::uint64_t seed) {
  LogBytes bytes;
  std::memcpy(bytes.data(), &raw, sizeof raw);
  raw.check = base::checksum(std::span{bytes}.first(kLogRecordBytes - 8), seed);
  std::memcpy(bytes.data(), &raw, sizeof raw);
  return bytes;
}

/// False when the checksum does not hold.
template <class Raw>
bool unseal(std::span<const std::byte> bytes, std::uint64_t seed, Raw& raw) {
  std::memcpy(&raw, bytes.data(), sizeof raw);
  return raw.check == base::checksum(bytes.first(kLogRecordBytes - 8), seed);
}

/// Live entries by the order of their puts, found by key and by slot.
class Replay {
 public:
  void put(const FileEntry& entry) {
    erase_slot(entry.slot);
    erase_key(entry.key);
    by_key_[entry.key] = next_;
    by_slot_[entry.slot] = next_;
    by_order_[next_++] = entry;
  }
  void erase_key(BlockKey key) {
    if (const auto found = by_key_.find(key); found != by_key_.end()) erase_order(found->second);
  }
  std::vector<FileEntry> live() const {
    std::vector<FileEntry> entries;
    for (const auto& [order, entry] : by_order_) entries.push_back(entry);
    return entries;
  }

 private:
  void erase_slot(std::uint32_t slot) {
    if (const auto found = by_slot_.find(slot); found != by_slot_.end()) erase_order(found->second);
  }
  void erase_order(std::uint64_t order) {
    const FileEntry entry = by_order_.at(order);
    by_key_.erase(entry.key);
    by_slot_.erase(entry.slot);
    by_order_.erase(order);
  }
  std::map<BlockKey, std::uint64_t> by_key_;
  std::map<std::uint32_t, std::uint64_t> by_slot_;
  std::map<std::uint64_t, FileEntry> by_order_;
  std::uint64_t next_ = 0;
};

}  // namespace

std::uint64_t content_checksum(BlockKey key, std::span<const std::byte> bytes) {
  return base::checksum(bytes, base::mix(key.high, key.low));
}

LogBytes encode_log_header(std::uint64_t block_bytes) {
  RawHeader header;
  header.block_bytes = block_bytes;
  return sealed(header, kHeaderSeed);
}

LogBytes encode_log_record(LogRecordKind kind, const FileEntry& entry, std::uint64_t index) {
  RawRecord record;
  record.kind = static_cast<std::uint32_t>(kind);
  record.slot = entry.slot;
  record.high = entry.key.high;
  record.low = entry.key.low;
  record.content = entry.checksum;
  return sealed(record, index);
}

base::Result<LogScan> scan_log(std::span<const std::byte> log, std::uint32_t slots) {
  RawHeader header;
  if (log.size() < kLogRecordBytes || !unseal(log, kHeaderSeed, header) || header.magic != kMagic) {
    return base::fail(base::Code::kDataLoss,
                      fmt::format("{} bytes that do not begin with the header of a pool log", log.size()),
                      "kv_pool");
  }
  LogScan scan;
  scan.block_bytes = header.block_bytes;
  Replay replay;
  log = log.subspan(kLogRecordBytes);
  const std::uint64_t whole = log.size() / kLogRecordBytes;
  if (log.size() % kLogRecordBytes != 0) ++scan.dropped;
  for (std::uint64_t index = 0; index < whole; ++index) {
    RawRecord raw;
    if (!unseal(log.subspan(index * kLogRecordBytes), index, raw)) {
      ++scan.dropped;
      continue;
    }
    const FileEntry entry{{raw.high, raw.low}, raw.slot, raw.content};
    const auto kind = static_cast<LogRecordKind>(raw.kind);
    if (kind == LogRecordKind::kErase) {
      replay.erase_key(entry.key);
    } else if (kind == LogRecordKind::kPut && entry.slot < slots) {
      replay.put(entry);
    } else {
      ++scan.dropped;
      continue;
    }
    ++scan.records;
  }
  scan.live = replay.live();
  return scan;
}

}  // namespace trimtab::kv_pool
