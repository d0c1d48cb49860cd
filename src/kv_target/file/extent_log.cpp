#include "kv_target/file/extent_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <optional>

#include "base/hash.h"

namespace trimtab::kv_target::file {

namespace {

static_assert(std::endian::native == std::endian::little, "logs are little-endian");

constexpr std::uint64_t kMagic = 0x3147544c564b5454ULL;  // "TTKVLTG1"
constexpr std::uint64_t kHeaderSeed = ~std::uint64_t{0};

struct RawHeader {
  std::uint64_t magic = kMagic;
  std::uint64_t log_id = 0;
  std::uint64_t unit_bytes = 0, file_bytes = 0;
  std::uint64_t reserved[3] = {0, 0, 0};
  std::uint64_t check = 0;
};
struct RawRecord {
  std::uint32_t kind = 0, shard = 0;
  std::uint64_t high = 0, low = 0;
  std::uint64_t unit = 0, bytes = 0;
  std::uint64_t checksum = 0;
  std::uint64_t reserved = 0;
  std::uint64_t check = 0;
};
static_assert(sizeof(RawHeader) == kRecordBytes && sizeof(RawRecord) == kRecordBytes);

template <class Raw>
RecordBytes sealed(Raw raw, std::uint64_t seed) {
  RecordBytes bytes;
  std::memcpy(bytes.data(), &raw, sizeof raw);
  raw.check = base::checksum(std::span{bytes}.first(kRecordBytes - 8), seed);
  std::memcpy(bytes.data(), &raw, sizeof raw);
  return bytes;
}

/// False when the checksum does not hold.
template <class Raw>
bool unseal(std::span<const std::byte> bytes, std::uint64_t seed, Raw& raw) {
  std::memcpy(&raw, bytes.data(), sizeof raw);
  return raw.check == base::checksum(bytes.first(kRecordBytes - 8), seed);
}

std::optional<RawHeader> read_header(std::span<const std::byte> log) {
  RawHeader header;
  for (const std::size_t at : {std::size_t{0}, kHeaderBytes}) {
    if (log.size() < at + kRecordBytes) break;
    if (unseal(log.subspan(at, kRecordBytes), kHeaderSeed, header) && header.magic == kMagic) return header;
  }
  return std::nullopt;
}

/// Live entries by the order of their puts, found by name and by place.
class Replay {
 public:
  explicit Replay(const Layout& layout) : layout_(layout) {}

  bool put(const LogEntry& entry) {
    const std::uint64_t units = layout_.units_of(entry.extent.bytes), first = entry.extent.unit;
    if (units == 0 || units > layout_.units_per_file() || first > (~std::uint64_t{0} >> 16)) return false;
    if (first / layout_.units_per_file() != (first + units - 1) / layout_.units_per_file()) return false;
    erase(entry.name);
    // The room was given to this put only after its old owner's end was durable, whatever became of the
    // record that said so.
    for (auto old = at_or_after(first); old != by_place_.end() && old->first < first + units;)
      forget((old++)->second);
    by_name_[entry.name] = next_;
    by_place_[first] = next_;
    by_order_[next_++] = entry;
    return true;
  }
  void erase(const ShardName& name) {
    if (const auto found = by_name_.find(name); found != by_name_.end()) forget(found->second);
  }
  std::vector<LogEntry> live() const {
    std::vector<LogEntry> entries;
    entries.reserve(by_order_.size());
    for (const auto& [order, entry] : by_order_) entries.push_back(entry);
    return entries;
  }

 private:
  /// The first entry that ends after `unit`.
  std::map<std::uint64_t, std::uint64_t>::iterator at_or_after(std::uint64_t unit) {
    auto it = by_place_.upper_bound(unit);
    if (it != by_place_.begin()) {
      const auto before = std::prev(it);
      const Extent& extent = by_order_.at(before->second).extent;
      if (extent.unit + layout_.units_of(extent.bytes) > unit) return before;
    }
    return it;
  }
  void forget(std::uint64_t order) {
    const auto found = by_order_.find(order);
    by_name_.erase(found->second.name);
    by_place_.erase(found->second.extent.unit);
    by_order_.erase(found);
  }

  Layout layout_;
  std::map<ShardName, std::uint64_t> by_name_;
  std::map<std::uint64_t, std::uint64_t> by_place_;
  std::map<std::uint64_t, LogEntry> by_order_;
  std::uint64_t next_ = 0;
};

bool all_zero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

}  // namespace

std::uint64_t content_checksum(const ShardName& name, std::span<const std::byte> bytes) {
  return base::checksum(bytes, base::mix(base::mix(name.key.high, name.key.low), name.shard));
}

std::vector<std::byte> encode_headers(const Layout& layout, std::uint64_t log_id) {
  RawHeader raw;
  raw.log_id = log_id;
  raw.unit_bytes = layout.unit_bytes;
  raw.file_bytes = layout.file_bytes;
  const RecordBytes header = sealed(raw, kHeaderSeed);
  std::vector<std::byte> bytes(kRecordsBegin);
  for (const std::size_t at : {std::size_t{0}, kHeaderBytes})
    std::copy(header.begin(), header.end(), bytes.begin() + static_cast<std::ptrdiff_t>(at));
  return bytes;
}

RecordBytes encode_record(RecordKind kind, const LogEntry& entry, std::uint64_t log_id, std::uint64_t index) {
  RawRecord raw;
  raw.kind = static_cast<std::uint32_t>(kind);
  raw.shard = entry.name.shard;
  raw.high = entry.name.key.high;
  raw.low = entry.name.key.low;
  raw.unit = entry.extent.unit;
  raw.bytes = entry.extent.bytes;
  raw.checksum = entry.extent.checksum;
  return sealed(raw, base::mix(log_id, index));
}

base::Result<LogScan> scan_log(std::span<const std::byte> log) {
  const auto header = read_header(log);
  if (!header || header->unit_bytes < 512 || header->unit_bytes > (1U << 20) ||
      header->file_bytes < header->unit_bytes || header->file_bytes % header->unit_bytes != 0) {
    return base::fail(base::Code::kDataLoss,
                      fmt::format("{} bytes that do not begin with the header of a target's log", log.size()),
                      "kv_target");
  }
  LogScan scan;
  scan.layout = {static_cast<std::uint32_t>(header->unit_bytes), header->file_bytes};
  scan.log_id = header->log_id;
  Replay replay(scan.layout);
  log = log.subspan(std::min(log.size(), kRecordsBegin));
  const std::uint64_t whole = log.size() / kRecordBytes;
  std::uint64_t zeros = 0;  // in a row; a loss only when records follow
  for (std::uint64_t index = 0; index < whole; ++index) {
    const auto bytes = log.subspan(index * kRecordBytes, kRecordBytes);
    RawRecord raw;
    if (!unseal(bytes, base::mix(header->log_id, index), raw)) {
      const bool room = all_zero(bytes);
      room ? ++zeros : ++scan.dropped;
      if (!room) scan.end = index + 1;
      continue;
    }
    scan.end = index + 1;
    scan.dropped += std::exchange(zeros, 0);
    const LogEntry entry{{{raw.high, raw.low}, static_cast<std::uint8_t>(raw.shard)},
                         {raw.unit, raw.bytes, raw.checksum}};
    const auto kind = static_cast<RecordKind>(raw.kind);
    const bool good = kind == RecordKind::kErase || (kind == RecordKind::kPut && replay.put(entry));
    if (kind == RecordKind::kErase) replay.erase(entry.name);
    good ? ++scan.records : ++scan.dropped;
  }
  if (const auto torn = log.subspan(whole * kRecordBytes); !all_zero(torn)) {
    ++scan.dropped;
    scan.end = whole + 1;
  }
  scan.live = replay.live();
  return scan;
}

}  // namespace trimtab::kv_target::file
