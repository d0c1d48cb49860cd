#include "kv_target/file/log_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/check.h"

namespace trimtab::kv_target::file {

namespace {

constexpr std::uint64_t kRoomStepBytes = 1U << 20;

bool cannot_preallocate(int reason) { return reason == EOPNOTSUPP || reason == ENOSYS || reason == EINVAL; }

base::Result<std::vector<std::byte>> read_whole(int fd, const std::string& name) {
  struct stat info {};
  if (fstat(fd, &info) != 0) return system_error("cannot stat " + name, errno);
  std::vector<std::byte> bytes(static_cast<std::size_t>(info.st_size));
  std::size_t at = 0;
  while (at < bytes.size()) {
    const ssize_t n = pread(fd, bytes.data() + at, bytes.size() - at, static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return system_error("cannot read " + name, errno);
    if (n == 0) break;
    at += static_cast<std::size_t>(n);
  }
  bytes.resize(at);
  return bytes;
}

}  // namespace

tl::unexpected<base::Error> system_error(const std::string& what, int reason) {
  const bool full = reason == ENOSPC || reason == EDQUOT;
  return base::fail(full ? base::Code::kResourceExhausted : base::Code::kIo,
                    fmt::format("{}: {}", what, std::strerror(reason)), "kv_target");
}

std::optional<Layout> layout_of(const std::string& directory) {
  const Descriptor log(::open((directory + "/log").c_str(), O_RDONLY | O_CLOEXEC));
  std::vector<std::byte> headers(kRecordsBegin);
  if (log.get() < 0) return std::nullopt;
  const ssize_t got = pread(log.get(), headers.data(), headers.size(), 0);
  if (got <= 0) return std::nullopt;
  const auto scan = scan_log(std::span<const std::byte>(headers).first(static_cast<std::size_t>(got)));
  if (!scan) return std::nullopt;
  return scan->layout;
}

base::Result<LogScan> LogFile::read() const {
  const std::string name = path("log");
  const Descriptor old(::open(name.c_str(), O_RDONLY | O_CLOEXEC));
  if (old.get() < 0) {
    if (errno == ENOENT) return LogScan{layout_, {}, 0, 0, 0, 0};
    return system_error("cannot open " + name, errno);
  }
  const auto bytes = read_whole(old.get(), name);
  if (!bytes) return tl::unexpected(bytes.error());
  auto scan = scan_log(*bytes);
  if (!scan) {
    return base::fail(base::Code::kInvalidArgument,
                      fmt::format("{} is not the log of a target ({}): choose another directory, or remove "
                                  "this one",
                                  name, scan.error().message),
                      "kv_target");
  }
  if (scan->layout != layout_) {
    return base::fail(
        base::Code::kInvalidArgument,
        fmt::format(
            "{} was made with units of {} bytes in files of {} bytes, asked for are {} in {}: ask for "
            "what it has, or choose another directory",
            directory_, scan->layout.unit_bytes, scan->layout.file_bytes, layout_.unit_bytes,
            layout_.file_bytes),
        "kv_target");
  }
  return scan;
}

base::Result<LogFile::Draft> LogFile::draft(const std::vector<LogEntry>& live) const {
  Draft draft;
  if (getrandom(&draft.log_id, sizeof draft.log_id, 0) != sizeof draft.log_id)
    return system_error("no random number for a log", errno);
  const std::string name = path("log.new");
  draft.file = Descriptor(::open(name.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (draft.file.get() < 0) return system_error("cannot make " + name, errno);
  draft.image = encode_headers(layout_, draft.log_id);
  draft.image.reserve(kRecordsBegin + live.size() * kRecordBytes);
  for (const LogEntry& entry : live) {
    const RecordBytes record = encode_record(RecordKind::kPut, entry, draft.log_id, draft.records++);
    draft.image.insert(draft.image.end(), record.begin(), record.end());
  }
  draft.room = draft.image.size() + kRoomStepBytes;
  if (fallocate(draft.file.get(), 0, 0, static_cast<off_t>(draft.room)) != 0) {
    if (!cannot_preallocate(errno)) return system_error("cannot take the room for " + name, errno);
    draft.room = ~std::uint64_t{0};
  }
  step("log drafted");
  return draft;
}

base::Status LogFile::adopt(Draft draft) {
  step("before the log is renamed");
  if (rename(path("log.new").c_str(), path("log").c_str()) != 0)
    return system_error("cannot rename " + path("log.new"), errno);
  step("log renamed");
  file_ = std::move(draft.file);
  log_id_ = draft.log_id;
  records_ = draft.records;
  room_ = draft.room;
  const Descriptor folder(::open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  uncertain_ = folder.get() < 0 || fsync(folder.get()) != 0;
  if (uncertain_) return system_error("cannot sync " + directory_, errno);
  step("log in place");
  return {};
}

base::Status LogFile::write_anew(const std::vector<LogEntry>& live) {
  auto made = draft(live);
  if (!made) return tl::unexpected(made.error());
  for (std::size_t at = 0; at < made->image.size();) {
    const ssize_t n =
        pwrite(made->file.get(), made->image.data() + at, made->image.size() - at, static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return system_error("cannot write " + path("log.new"), n == 0 ? ENOSPC : errno);
    at += static_cast<std::size_t>(n);
  }
  step("log written anew");
  if (fdatasync(made->file.get()) != 0) return system_error("cannot sync " + path("log.new"), errno);
  return adopt(std::move(*made));
}

base::Status LogFile::keep(const LogScan& scan) {
  const std::string name = path("log");
  file_ = Descriptor(::open(name.c_str(), O_RDWR | O_CLOEXEC));
  struct stat info {};
  if (file_.get() < 0 || fstat(file_.get(), &info) != 0) return system_error("cannot open " + name, errno);
  // What was read may be in nobody's hands but the kernel's yet.
  if (fdatasync(file_.get()) != 0) return system_error("cannot sync " + name, errno);
  log_id_ = scan.log_id;
  records_ = scan.end;
  room_ = static_cast<std::uint64_t>(info.st_size);
  return {};
}

base::Status LogFile::make_room(std::uint64_t bytes) {
  while (room_left() < bytes) {
    const std::uint64_t wanted = std::max(room_, end()) + kRoomStepBytes;
    if (fallocate(file_.get(), 0, 0, static_cast<off_t>(wanted)) != 0) {
      if (!cannot_preallocate(errno)) return system_error("cannot take room for " + path("log"), errno);
      room_ = ~std::uint64_t{0};
      break;
    }
    step("log given room");
    room_ = wanted;
  }
  return {};
}

void LogFile::encode(RecordKind kind, const LogEntry& entry, std::uint64_t ahead,
                     std::vector<std::byte>& bytes) const {
  const RecordBytes record = encode_record(kind, entry, log_id_, records_ + ahead);
  bytes.insert(bytes.end(), record.begin(), record.end());
}

}  // namespace trimtab::kv_target::file
