#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"
#include "kv_target/target.h"

namespace trimtab::kv_target::file {

/// How a directory is cut up; fixed when it is made.
struct Layout {
  std::uint32_t unit_bytes = 4096;
  std::uint64_t file_bytes = 256ULL << 20;  // of an extent file; a multiple of the unit

  std::uint64_t units_per_file() const { return file_bytes / unit_bytes; }
  std::uint64_t units_of(std::uint64_t bytes) const { return (bytes + unit_bytes - 1) / unit_bytes; }
  bool operator==(const Layout&) const = default;
};

/// Where a shard lies: from `unit` on, counted through all extent files.
struct Extent {
  std::uint64_t unit = 0;
  std::uint64_t bytes = 0;
  std::uint64_t checksum = 0;  // content_checksum

  bool operator==(const Extent&) const = default;
};
struct LogEntry {
  ShardName name;
  Extent extent;

  bool operator==(const LogEntry&) const = default;
};

/// XXH3 of a shard's bytes, bound to its name: right bytes under a wrong name do not pass either.
std::uint64_t content_checksum(const ShardName& name, std::span<const std::byte> bytes);

/// The log: two copies of a header, 4 KiB each, then records of 64 bytes, little-endian. A record's checksum
/// covers its place and the log's own random number, so that it is told from torn, stale or foreign bytes
/// whatever came before it. The order of records is their place; no time is written down.
inline constexpr std::size_t kRecordBytes = 64, kHeaderBytes = 4096, kRecordsBegin = 2 * kHeaderBytes;
using RecordBytes = std::array<std::byte, kRecordBytes>;

enum class RecordKind : std::uint32_t {
  kPut = 1,    // the shard is here from now on, and nowhere else
  kErase = 2,  // it is gone
};

std::vector<std::byte> encode_headers(const Layout& layout, std::uint64_t log_id);
RecordBytes encode_record(RecordKind kind, const LogEntry& entry, std::uint64_t log_id, std::uint64_t index);

struct LogScan {
  Layout layout;
  std::vector<LogEntry> live;  // in the order they were put; no two share a name or a unit
  std::uint64_t records = 0;   // good ones
  std::uint64_t dropped = 0;   // damaged or torn ones, and those that describe no possible extent
  std::uint64_t log_id = 0;
  std::uint64_t end = 0;  // the first place for a record behind which there are only zeros
};

/// What a log says, after any crash: a put counts when its whole record is there; it ends by an erase or by a
/// later put of the same name or into the same room. Damage in the middle loses the damaged records only.
/// Zeros behind the last record are room that was taken ahead. kDataLoss when neither header is ours.
base::Result<LogScan> scan_log(std::span<const std::byte> log);

}  // namespace trimtab::kv_target::file
