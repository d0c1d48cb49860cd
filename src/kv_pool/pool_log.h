#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"
#include "model/ids.h"

namespace trimtab::kv_pool {

using model::BlockKey;

/// A block of the file tier: which key lies in which slot with which content.
struct FileEntry {
  BlockKey key;
  std::uint32_t slot = 0;
  std::uint64_t checksum = 0;  // content_checksum of the block
  bool operator==(const FileEntry&) const = default;
};

/// XXH3 of a block's bytes, bound to its key: right bytes under a wrong key do not pass either.
std::uint64_t content_checksum(BlockKey key, std::span<const std::byte> bytes);

/// The log of the file tier: a header, then records of one size, each with a checksum that covers its place
/// in the file, so that a record is told from torn or stale bytes whatever came before it. All little-endian.
inline constexpr std::size_t kLogRecordBytes = 40;
using LogBytes = std::array<std::byte, kLogRecordBytes>;

enum class LogRecordKind : std::uint32_t { kPut = 1, kErase = 2 };

LogBytes encode_log_header(std::uint64_t block_bytes);
/// `index` counts the records of the file from 0.
LogBytes encode_log_record(LogRecordKind kind, const FileEntry& entry, std::uint64_t index);

struct LogScan {
  std::uint64_t block_bytes = 0;
  std::vector<FileEntry> live;  // in the order they were put
  std::uint64_t records = 0;    // good ones
  std::uint64_t dropped = 0;    // damaged or torn ones, and puts into slots that do not exist
};

/// What the log says, after any crash: a put counts when its whole record is there; an erase, or a later put
/// into the same slot, ends it. Damage in the middle loses the damaged records only. kDataLoss when the
/// header is none of ours.
base::Result<LogScan> scan_log(std::span<const std::byte> log, std::uint32_t slots);

}  // namespace trimtab::kv_pool
