#include "io/record_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/hash.h"

namespace trimtab::io {

namespace {

base::Error system_error(const std::string& what) {
  return {base::Code::kIo, fmt::format("{}: {}", what, std::strerror(errno)), "io"};
}

/// The length takes part, so that a damaged length cannot pair with a payload of another record.
std::uint64_t record_checksum(std::uint32_t length, std::span<const std::byte> payload) {
  return base::checksum(payload, length);
}

base::Status write_all(int fd, std::span<const std::byte> bytes, std::uint64_t offset) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return tl::unexpected(system_error("cannot write the log"));
    offset += static_cast<std::uint64_t>(n);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  return {};
}

}  // namespace

void append_record(std::vector<std::byte>& out, std::span<const std::byte> payload) {
  const auto length = static_cast<std::uint32_t>(payload.size());
  const std::uint64_t sum = record_checksum(length, payload);
  const std::size_t at = out.size();
  out.resize(at + kRecordHeaderBytes + payload.size());
  std::memcpy(out.data() + at, &length, 4);
  std::memcpy(out.data() + at + 4, &sum, 8);
  if (length > 0) std::memcpy(out.data() + at + kRecordHeaderBytes, payload.data(), length);
}

base::Result<RecordScan> scan_records(std::span<const std::byte> bytes,
                                      const std::function<void(std::span<const std::byte>)>& visit) {
  RecordScan scan;
  if (bytes.empty()) return scan;
  if (bytes.size() < kRecordFileMagic.size() ||
      std::memcmp(bytes.data(), kRecordFileMagic.data(), kRecordFileMagic.size()) != 0) {
    return base::fail(base::Code::kDataLoss, "this is no decision log: it does not begin with TRIMLOG1",
                      "io");
  }
  std::size_t at = kRecordFileMagic.size();
  while (bytes.size() - at >= kRecordHeaderBytes) {
    std::uint32_t length = 0;
    std::uint64_t sum = 0;
    std::memcpy(&length, bytes.data() + at, 4);
    std::memcpy(&sum, bytes.data() + at + 4, 8);
    if (length > kRecordBytesMax || length > bytes.size() - at - kRecordHeaderBytes) break;
    const auto payload = bytes.subspan(at + kRecordHeaderBytes, length);
    if (record_checksum(length, payload) != sum) break;
    visit(payload);
    ++scan.records;
    at += kRecordHeaderBytes + length;
  }
  scan.bytes_good = at;
  scan.bytes_torn = bytes.size() - at;
  return scan;
}

constexpr std::size_t kPipeBytesMax = std::size_t{1} << 32U;

base::Result<std::vector<std::byte>> read_file(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    if (errno == ENOENT) return base::fail(base::Code::kNotFound, "no such file: " + path, "io");
    return tl::unexpected(system_error("cannot open " + path));
  }
  struct stat info {};
  if (::fstat(fd, &info) != 0) {
    const base::Error error = system_error("cannot stat " + path);
    ::close(fd);
    return tl::unexpected(error);
  }
  // A pipe has no size: it is read until its end. A device has none either, and perhaps no end.
  const bool sized = !S_ISFIFO(info.st_mode) && !S_ISSOCK(info.st_mode);
  std::vector<std::byte> bytes(sized ? static_cast<std::size_t>(info.st_size) : std::size_t{1} << 16U);
  std::size_t have = 0;
  while (have < bytes.size() || !sized) {
    if (have == bytes.size()) {
      if (bytes.size() >= kPipeBytesMax) {
        ::close(fd);
        return base::fail(base::Code::kTooLarge, path + " has no size and does not end", "io");
      }
      bytes.resize(2 * bytes.size());
    }
    const ssize_t n = ::read(fd, bytes.data() + have, bytes.size() - have);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const base::Error error = system_error("cannot read " + path);
      ::close(fd);
      return tl::unexpected(error);
    }
    if (n == 0) break;  // cut meanwhile
    have += static_cast<std::size_t>(n);
  }
  ::close(fd);
  bytes.resize(have);
  return bytes;
}

base::Result<RecordFile> RecordFile::open(const std::string& path) {
  RecordFile file;
  file.path_ = path;
  std::uint64_t good = 0;
  if (auto bytes = read_file(path)) {
    const auto scan = scan_records(*bytes, [](std::span<const std::byte>) {});
    if (scan) {
      good = scan->bytes_good;
      file.torn_bytes_cut_ = scan->bytes_torn;
    } else if (std::rename(path.c_str(), (path + ".damaged").c_str()) != 0) {
      return tl::unexpected(system_error("cannot move the damaged log " + path + " aside"));
    }
  } else if (bytes.error().code != base::Code::kNotFound) {
    return tl::unexpected(bytes.error());
  }
  file.fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file.fd_ < 0) return tl::unexpected(system_error("cannot open the decision log " + path));
  if (::ftruncate(file.fd_, static_cast<off_t>(good)) != 0)
    return tl::unexpected(system_error("cannot cut the torn tail of " + path));
  file.written_bytes_ = good;
  if (good == 0) {
    const auto magic = std::as_bytes(std::span{kRecordFileMagic.data(), kRecordFileMagic.size()});
    file.buffer_.assign(magic.begin(), magic.end());
    TRIMTAB_TRY(file.flush());
  }
  return file;
}

RecordFile::RecordFile(RecordFile&& other) noexcept { *this = std::move(other); }

RecordFile& RecordFile::operator=(RecordFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(written_bytes_, other.written_bytes_);
  std::swap(torn_bytes_cut_, other.torn_bytes_cut_);
  std::swap(dropped_bytes_, other.dropped_bytes_);
  std::swap(buffer_, other.buffer_);
  return *this;
}

RecordFile::~RecordFile() {
  if (fd_ < 0) return;
  (void)flush();  // nobody is left to tell; the bytes are counted as dropped
  ::close(fd_);
}

void RecordFile::append(std::span<const std::byte> payload) {
  if (payload.size() > kRecordBytesMax) {
    dropped_bytes_ += payload.size();
    return;
  }
  append_record(buffer_, payload);
}

base::Status RecordFile::flush() {
  if (buffer_.empty()) return {};
  base::Status status = write_all(fd_, buffer_, written_bytes_);
  if (status) {
    written_bytes_ += buffer_.size();
  } else {
    // Half a record may have reached the disk: the next flush overwrites it from the last good end.
    dropped_bytes_ += buffer_.size();
  }
  buffer_.clear();
  return status;
}

}  // namespace trimtab::io
