#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace trimtab::io {

/// An append-only file of records: the magic "TRIMLOG1", then for each record a little-endian u32 length, the
/// u64 XXH3 of length and payload, and the payload. A process that dies in the middle of a write leaves a
/// torn tail, which the checksum finds; everything before it stays readable.
inline constexpr std::string_view kRecordFileMagic = "TRIMLOG1";
inline constexpr std::size_t kRecordHeaderBytes = 12;
inline constexpr std::size_t kRecordBytesMax = 16UL << 20;  // a longer length is damage, not a record

/// `payload` with its header in front.
void append_record(std::vector<std::byte>& out, std::span<const std::byte> payload);

/// What a reading pass found.
struct RecordScan {
  std::uint64_t records = 0;
  std::uint64_t bytes_good = 0;  // the magic and every whole record, from the front
  std::uint64_t bytes_torn = 0;  // after them: a record cut short, or damage
};

/// Calls `visit` for each whole record of `bytes` in order and stops at the first torn or damaged one.
/// kDataLoss when the magic is wrong (an empty input is a file without records).
base::Result<RecordScan> scan_records(std::span<const std::byte> bytes,
                                      const std::function<void(std::span<const std::byte>)>& visit);

/// The bytes of a whole file; kNotFound when there is none, kIo otherwise.
base::Result<std::vector<std::byte>> read_file(const std::string& path);

/// The writing side of one record file. Records gather in memory until `flush`; what the disk refuses is
/// dropped and counted, because a full disk must not stop serving.
class RecordFile {
 public:
  /// Opens or creates `path`. A torn tail of an earlier process is cut off; a file that is no record file at
  /// all is moved to `path`.damaged.
  static base::Result<RecordFile> open(const std::string& path);
  RecordFile(RecordFile&& other) noexcept;
  RecordFile& operator=(RecordFile&& other) noexcept;
  ~RecordFile();

  void append(std::span<const std::byte> payload);
  base::Status flush();
  /// Size once flushed.
  std::uint64_t bytes() const { return written_bytes_ + buffer_.size(); }
  std::size_t buffered_bytes() const { return buffer_.size(); }
  std::uint64_t torn_bytes_cut() const { return torn_bytes_cut_; }
  std::uint64_t dropped_bytes() const { return dropped_bytes_; }

 private:
  RecordFile() = default;
  std::string path_;
  int fd_ = -1;
  std::uint64_t written_bytes_ = 0;
  std::uint64_t torn_bytes_cut_ = 0;
  std::uint64_t dropped_bytes_ = 0;
  std::vector<std::byte> buffer_;
};

}  // namespace trimtab::io
