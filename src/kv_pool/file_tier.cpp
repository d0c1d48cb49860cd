#include "kv_pool/file_tier.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/check.h"

namespace trimtab::kv_pool {

namespace {

constexpr std::uint64_t kAlignment = 4096;
// The log is rewritten when it holds this many records beyond twice the slots.
constexpr std::uint64_t kLogSlack = 4096;

tl::unexpected<base::Error> system_error(const std::string& what, int reason = errno) {
  return base::fail(base::Code::kIo, fmt::format("{}: {}", what, std::strerror(reason)), "kv_pool");
}

base::Status write_all(int fd, std::span<const std::byte> bytes, std::uint64_t offset,
                       const std::string& name) {
  while (!bytes.empty()) {
    const ssize_t n = pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return system_error("cannot write " + name, n == 0 ? ENOSPC : errno);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
    offset += static_cast<std::uint64_t>(n);
  }
  return {};
}

base::Status read_all(int fd, std::span<std::byte> bytes, std::uint64_t offset, const std::string& name) {
  while (!bytes.empty()) {
    const ssize_t n = pread(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return system_error("cannot read " + name);
    if (n == 0) return base::fail(base::Code::kDataLoss, name + " is shorter than its slots", "kv_pool");
    bytes = bytes.subspan(static_cast<std::size_t>(n));
    offset += static_cast<std::uint64_t>(n);
  }
  return {};
}

}  // namespace

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) close(fd_);
}

std::string FileTier::path(std::string_view name) const { return fmt::format("{}/{}", directory_, name); }

base::Result<FileTier> FileTier::open(const std::string& directory, std::uint64_t file_bytes,
                                      std::uint64_t block_bytes) {
  FileTier tier;
  tier.directory_ = directory;
  tier.block_bytes_ = block_bytes;
  tier.stride_ = (block_bytes + kAlignment - 1) / kAlignment * kAlignment;
  const std::uint64_t slots = std::min<std::uint64_t>(file_bytes / tier.stride_, 1U << 28);
  if (slots == 0) {
    return base::fail(base::Code::kInvalidArgument,
                      fmt::format("pool.file_bytes = {} holds not one block of {} bytes: raise it, or leave "
                                  "pool.directory empty for a pool in memory only",
                                  file_bytes, tier.stride_),
                      "kv_pool");
  }
  tier.slots_ = static_cast<std::uint32_t>(slots);
  tier.live_.resize(tier.slots_);
  TRIMTAB_TRY(tier.prepare_directory());
  // In this order: a directory that is not ours is refused untouched, and no log ever names slots that a
  // smaller file_bytes has cut off.
  TRIMTAB_TRY(tier.recover());
  TRIMTAB_TRY(tier.rewrite_log());
  TRIMTAB_TRY(tier.prepare_blocks(slots * tier.stride_));
  return tier;
}

base::Status FileTier::prepare_directory() {
  std::error_code error;
  std::filesystem::create_directories(directory_, error);
  if (error) {
    return base::fail(base::Code::kIo,
                      fmt::format("cannot make the pool directory {}: {}: choose another pool.directory",
                                  directory_, error.message()),
                      "kv_pool");
  }
  lock_ = FileDescriptor(::open(path("lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (lock_.get() < 0) {
    return system_error(
        fmt::format("the pool directory {} cannot be written (choose another pool.directory)", directory_));
  }
  if (flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    return base::fail(base::Code::kUnavailable,
                      fmt::format("the pool directory {} is in use by another loader: stop it, or choose "
                                  "another pool.directory",
                                  directory_),
                      "kv_pool");
  }
  return {};
}

base::Status FileTier::prepare_blocks(std::uint64_t file_bytes) {
  const std::string name = path("blocks");
  blocks_ = FileDescriptor(::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (blocks_.get() < 0) return system_error("cannot open " + name);
  struct stat info {};
  if (fstat(blocks_.get(), &info) != 0) return system_error("cannot stat " + name);
  const auto taken = static_cast<std::uint64_t>(info.st_blocks) * 512;
  struct statvfs room {};
  const std::uint64_t available =
      fstatvfs(blocks_.get(), &room) == 0 ? static_cast<std::uint64_t>(room.f_bavail) * room.f_frsize : 0;
  if (file_bytes > taken && file_bytes - taken > available) {
    return base::fail(
        base::Code::kResourceExhausted,
        fmt::format("the pool directory {} needs {} MB more for pool.file_bytes, its disk has {} MB "
                    "free: lower pool.file_bytes or choose another pool.directory",
                    directory_, (file_bytes - taken) >> 20, available >> 20),
        "kv_pool");
  }
  if (ftruncate(blocks_.get(), static_cast<off_t>(file_bytes)) != 0)
    return system_error("cannot size " + name);
  // Taking the room now makes a full disk an error at start and not one in the middle of serving. File
  // systems without preallocation leave holes; a write into one may still fail, which `write` reports.
  const int refused = fallocate(blocks_.get(), 0, 0, static_cast<off_t>(file_bytes)) != 0 ? errno : 0;
  if (refused != 0 && refused != EOPNOTSUPP && refused != ENOSYS)
    return system_error("cannot take the room for " + name, refused);
  return {};
}

base::Status FileTier::recover() {
  const std::string name = path("log");
  FileDescriptor old(::open(name.c_str(), O_RDONLY | O_CLOEXEC));
  if (old.get() < 0) {
    if (errno == ENOENT) return {};
    return system_error("cannot open " + name);
  }
  struct stat info {};
  if (fstat(old.get(), &info) != 0) return system_error("cannot stat " + name);
  std::vector<std::byte> bytes(static_cast<std::size_t>(info.st_size));
  TRIMTAB_TRY(read_all(old.get(), bytes, 0, name));
  auto scan = scan_log(bytes, slots_);
  if (!scan) {
    return base::fail(base::Code::kInvalidArgument,
                      fmt::format("{} is not the log of a pool ({}): choose another pool.directory, or "
                                  "remove this one",
                                  name, scan.error().message),
                      "kv_pool");
  }
  if (scan->block_bytes != block_bytes_) {
    return base::fail(base::Code::kInvalidArgument,
                      fmt::format("the pool directory {} holds blocks of {} bytes, this model's have {}: "
                                  "choose another pool.directory, or remove this one",
                                  directory_, scan->block_bytes, block_bytes_),
                      "kv_pool");
  }
  dropped_ = scan->dropped;
  struct stat blocks {};
  const bool there = stat(path("blocks").c_str(), &blocks) == 0;
  const std::uint64_t blocks_bytes = there ? static_cast<std::uint64_t>(blocks.st_size) : 0;
  for (const FileEntry& entry : scan->live) {
    if ((entry.slot + 1) * stride_ > blocks_bytes) {  // someone cut or removed the file
      ++dropped_;
      continue;
    }
    recovered_.push_back(entry);
    live_[entry.slot] = {entry, next_order_++};
  }
  return {};
}

base::Status FileTier::rewrite_log() {
  std::vector<Live> entries;
  for (const Live& live : live_)
    if (live.order > 0) entries.push_back(live);
  std::sort(entries.begin(), entries.end(), [](const Live& a, const Live& b) { return a.order < b.order; });
  std::vector<std::byte> bytes;
  const auto add = [&bytes](const LogBytes& record) {
    bytes.insert(bytes.end(), record.begin(), record.end());
  };
  add(encode_log_header(block_bytes_));
  for (std::size_t i = 0; i < entries.size(); ++i)
    add(encode_log_record(LogRecordKind::kPut, entries[i].entry, i));

  const std::string next = path("log.new");
  FileDescriptor file(::open(next.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (file.get() < 0) return system_error("cannot make " + next);
  TRIMTAB_TRY(write_all(file.get(), bytes, 0, next));
  step("log written anew");
  TRIMTAB_TRY(sync(file, next));
  if (rename(next.c_str(), path("log").c_str()) != 0) return system_error("cannot rename " + next);
  step("log renamed");
  FileDescriptor folder(::open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.get() < 0 || fsync(folder.get()) != 0) return system_error("cannot sync " + directory_);
  log_ = std::move(file);
  log_records_ = entries.size();
  return {};
}

base::Status FileTier::append(LogRecordKind kind, std::span<const FileEntry> entries) {
  if (entries.empty()) return {};
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const LogBytes record = encode_log_record(kind, entries[i], log_records_ + i);
    bytes.insert(bytes.end(), record.begin(), record.end());
  }
  TRIMTAB_TRY(write_all(log_.get(), bytes, (log_records_ + 1) * kLogRecordBytes, path("log")));
  log_records_ += entries.size();
  return {};
}

base::Status FileTier::sync(const FileDescriptor& file, std::string_view name) {
  if (fdatasync(file.get()) != 0) return system_error(fmt::format("cannot sync {}", name));
  return {};
}

base::Status FileTier::write(std::span<const FileEntry> erased, std::span<const Store> stores) {
  if (failed_) return base::fail(base::Code::kIo, "an earlier write to the file tier failed", "kv_pool");
  auto done = write_steps(erased, stores);
  failed_ = !done;
  return done;
}

base::Status FileTier::write_steps(std::span<const FileEntry> erased, std::span<const Store> stores) {
  step("begin");
  if (!erased.empty()) {
    TRIMTAB_TRY(append(LogRecordKind::kErase, erased));
    step("erases written");
    TRIMTAB_TRY(sync(log_, "log"));
    for (const FileEntry& entry : erased) live_[entry.slot].order = 0;
  }
  std::vector<FileEntry> entries;
  for (const Store& store : stores) {
    TRIMTAB_CHECK(store.entry.slot < slots_ && live_[store.entry.slot].order == 0, "the slot is taken");
    TRIMTAB_CHECK(store.content.size() == block_bytes_, "a block of another size");
    step("before a block");
    TRIMTAB_TRY(write_all(blocks_.get(), store.content, store.entry.slot * stride_, path("blocks")));
    entries.push_back(store.entry);
  }
  if (!entries.empty()) {
    step("blocks written");
    TRIMTAB_TRY(sync(blocks_, "blocks"));
    TRIMTAB_TRY(append(LogRecordKind::kPut, entries));
    step("puts written");
    TRIMTAB_TRY(sync(log_, "log"));
    for (const FileEntry& entry : entries) live_[entry.slot] = {entry, next_order_++};
  }
  step("end");
  if (log_records_ > 2 * std::uint64_t{slots_} + kLogSlack) return rewrite_log();
  return {};
}

base::Status FileTier::read(std::uint32_t slot, std::span<std::byte> destination) const {
  TRIMTAB_CHECK(slot < slots_ && destination.size() == block_bytes_);
  return read_all(blocks_.get(), destination, slot * stride_, path("blocks"));
}

}  // namespace trimtab::kv_pool
