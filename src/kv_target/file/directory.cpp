#include "kv_target/file/directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/check.h"
#include "kv_target/file/staging.h"

namespace trimtab::kv_target::file {

namespace {

/// A disk's sector.
constexpr std::size_t kReadUnitLeast = 512;

std::string file_name(std::size_t number) { return fmt::format("extents.{:06}", number); }

}  // namespace

base::Result<Directory> Directory::open(DirectoryOptions options) {
  Directory directory;
  directory.options_ = std::move(options);
  directory.log_ = LogFile(directory.options_.path, directory.layout(), directory.options_.on_step);
  TRIMTAB_TRY(directory.prepare());
  const auto scan = directory.recover();
  if (!scan) return tl::unexpected(scan.error());
  const auto anew = directory.log_.write_anew(directory.recovered_);
  const bool full = !anew && anew.error().code == base::Code::kResourceExhausted;
  if (full && scan->log_id != 0) {
    ::unlink(directory.path("log.new").c_str());
    TRIMTAB_TRY(directory.log_.keep(*scan));
  } else {
    TRIMTAB_TRY(anew);
  }
  return directory;
}

base::Status Directory::prepare() {
  std::error_code error;
  std::filesystem::create_directories(options_.path, error);
  if (error) {
    return base::fail(base::Code::kIo,
                      fmt::format("cannot make the target directory {}: {}: choose another", options_.path,
                                  error.message()),
                      "kv_target");
  }
  auto lock = take_lock(path("lock"), LockFile::kMake, options_.owner_patience);
  if (!lock && lock.error().is_held())
    return base::fail(base::Code::kUnavailable,
                      fmt::format("the target directory {} is in use by another process ({}): stop it, or "
                                  "choose another directory",
                                  options_.path, lock.error().held),
                      "kv_target");
  if (!lock)
    return system_error(
        fmt::format("the target directory {} cannot be written and locked (choose another)", options_.path),
        lock.error().reason);
  lock_ = std::move(*lock);
  return {};
}

base::Result<LogScan> Directory::recover() {
  auto scan = log_.read();
  if (!scan) return tl::unexpected(scan.error());
  dropped_ = scan->dropped;
  probe_direct();
  for (std::size_t number = 0; std::filesystem::exists(path(file_name(number))); ++number)
    TRIMTAB_TRY(open_file(number, false));
  for (const LogEntry& entry : scan->live) {
    const std::size_t file = file_of(entry.extent.unit);
    const std::uint64_t end =
        entry.extent.unit % layout().units_per_file() + layout().units_of(entry.extent.bytes);
    if (file < files_.size() && end <= files_[file].units)
      recovered_.push_back(entry);
    else
      ++dropped_;  // someone cut or removed the file
  }
  return scan;
}

/// Writes and reads one unit with O_DIRECT: file systems refuse it in several ways, and some only at the
/// first write. Reads its end in ever smaller parts too.
void Directory::probe_direct() {
  if (!options_.direct) return;
  const std::string name = path("probe");
  const Descriptor file(::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_DIRECT, 0600));
  Staging memory(layout().unit_bytes);
  const std::size_t bytes = layout().unit_bytes;
  std::memset(memory.region().data(), 0, bytes);
  const auto all = static_cast<ssize_t>(bytes);
  direct_ = file.get() >= 0 && pwrite(file.get(), memory.region().data(), bytes, 0) == all &&
            pread(file.get(), memory.region().data(), bytes, 0) == all;
  if (!direct_) why_buffered_ = fmt::format("O_DIRECT is refused: {}", std::strerror(errno));
  read_unit_bytes_ = direct_ ? bytes : 1;
  for (std::size_t grain = bytes / 2; direct_ && grain >= kReadUnitLeast; grain /= 2) {
    const auto at = static_cast<off_t>(bytes - grain);
    if (pread(file.get(), memory.region().data() + at, grain, at) != static_cast<ssize_t>(grain)) break;
    read_unit_bytes_ = grain;
  }
  ::unlink(name.c_str());
}

base::Status Directory::open_file(std::size_t number, bool create) {
  TRIMTAB_CHECK(number == files_.size());
  const std::string name = path(file_name(number));
  const int flags = O_RDWR | O_CLOEXEC | (create ? O_CREAT : 0) | (direct_ ? O_DIRECT : 0);
  Descriptor file(::open(name.c_str(), flags, 0600));
  if (file.get() < 0) return system_error("cannot open " + name, errno);
  struct stat info {};
  if (fstat(file.get(), &info) != 0) return system_error("cannot stat " + name, errno);
  const std::uint64_t units = static_cast<std::uint64_t>(info.st_size) / layout().unit_bytes;
  files_.push_back({std::move(file), std::min(units, layout().units_per_file())});
  return {};
}

std::uint64_t Directory::wanted_units(std::size_t number) const {
  const std::uint64_t before = number * layout().units_per_file();
  const std::uint64_t capacity = options_.capacity_bytes / layout().unit_bytes;
  return capacity > before ? std::min(capacity - before, layout().units_per_file()) : 0;
}

std::uint64_t Directory::units() const {
  std::uint64_t sum = 0;
  for (const File& file : files_) sum += file.units;
  return sum;
}

void Directory::add_room_to(ExtentAllocator& allocator) const {
  for (std::size_t number = 0; number < files_.size(); ++number) {
    if (files_[number].units > 0) allocator.give(number * layout().units_per_file(), files_[number].units);
  }
}

base::Result<bool> Directory::grow(ExtentAllocator& allocator) {
  std::size_t number = 0;
  while (number < files_.size() && files_[number].units >= wanted_units(number)) ++number;
  const std::uint64_t wanted = wanted_units(number);
  if (wanted == 0) return false;
  if (number == files_.size()) TRIMTAB_TRY(open_file(number, true));
  const std::uint64_t before = files_[number].units;
  // A disk with less room than a whole file still gives what it has.
  for (std::uint64_t more = wanted - before;; more /= 2) {
    const auto done = lengthen(number, before + more);
    if (!done && (done.error().code != base::Code::kResourceExhausted || more < 2 * 256))
      return tl::unexpected(done.error());
    if (!done) continue;
    allocator.give(number * layout().units_per_file() + before, more);
    return true;
  }
}

/// Takes the room now, so that a full disk shows here and not in the middle of a write. File systems without
/// preallocation leave holes; a write into one may still find the disk full.
base::Status Directory::lengthen(std::size_t number, std::uint64_t units) {
  File& file = files_[number];
  const int fd = file.descriptor.get();
  const std::string name = path(file_name(number));
  const auto before = static_cast<off_t>(file.units * layout().unit_bytes);
  const auto bytes = static_cast<off_t>(units * layout().unit_bytes);
  if (fallocate(fd, 0, before, bytes - before) != 0) {
    const int reason = errno;
    if (reason != EOPNOTSUPP && reason != ENOSYS) {
      [[maybe_unused]] const int undone = ftruncate(fd, before);
      return system_error("cannot take the room for " + name, reason);
    }
    if (ftruncate(fd, bytes) != 0) return system_error("cannot lengthen " + name, errno);
  }
  step("extents lengthened");
  if (fsync(fd) != 0) return system_error("cannot sync " + name, errno);
  const Descriptor folder(::open(options_.path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.get() < 0 || fsync(folder.get()) != 0)
    return system_error("cannot sync " + options_.path, errno);
  step("extents in place");
  file.units = units;
  return {};
}

std::string Directory::describe() const {
  return direct_ ? fmt::format("O_DIRECT in units of {} bytes", layout().unit_bytes)
                 : fmt::format("buffered by the kernel ({})", why_buffered_);
}

}  // namespace trimtab::kv_target::file
