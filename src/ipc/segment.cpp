#include "ipc/segment.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

namespace trimtab::ipc {

namespace {

tl::unexpected<base::Error> system_error(const std::string& what, const std::string& path) {
  return base::fail(base::Code::kIo, fmt::format("{} {}: {}", what, path, std::strerror(errno)), "ipc");
}

constexpr std::size_t kHugePage = 2UL << 20;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;

/// A sealed memory file of that size, or what failed in `errno`.
int sealed_file(const std::string& label, std::size_t bytes, unsigned flags) {
  const int fd = memfd_create(label.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);
  if (fd < 0) return -1;
  if (ftruncate(fd, static_cast<off_t>(bytes)) == 0 && fcntl(fd, F_ADD_SEALS, kSeals) == 0) return fd;
  const int reason = errno;
  close(fd);
  errno = reason;
  return -1;
}

}  // namespace

base::Result<Segment> Segment::map(int fd, const std::string& path, std::size_t bytes, bool read_only) {
  Segment segment;
  if (bytes > 0) {
    void* address = mmap(nullptr, bytes, read_only ? PROT_READ : PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (address == MAP_FAILED) {
      auto error = system_error("cannot map", path);
      close(fd);
      return error;
    }
    segment.data_ = static_cast<std::byte*>(address);
  }
  segment.size_ = bytes;
  segment.path_ = path;
  close(fd);
  return segment;
}

base::Result<Segment> Segment::create(const std::string& path, std::size_t bytes) {
  unlink(path.c_str());
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return system_error("cannot create", path);
  struct statvfs room {};
  if (fstatvfs(fd, &room) == 0 && static_cast<std::size_t>(room.f_bavail) * room.f_frsize < bytes) {
    close(fd);
    unlink(path.c_str());
    return base::fail(
        base::Code::kResourceExhausted,
        fmt::format("{} needs {} MB of shared memory, its file system has {} MB free: lower kv_blocks or "
                    "memory_bytes in the config, or enlarge /dev/shm",
                    path, bytes >> 20, (static_cast<std::size_t>(room.f_bavail) * room.f_frsize) >> 20),
        "ipc");
  }
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    auto error = system_error("cannot size", path);
    close(fd);
    return error;
  }
  return map(fd, path, bytes, false);
}

base::Result<Segment> Segment::open(const std::string& path, bool read_only) {
  const int fd = ::open(path.c_str(), (read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC);
  if (fd < 0) return system_error("cannot open", path);
  struct stat info {};
  if (fstat(fd, &info) != 0) {
    auto error = system_error("cannot stat", path);
    close(fd);
    return error;
  }
  return map(fd, path, static_cast<std::size_t>(info.st_size), read_only);
}

void Segment::remove(const std::string& path) { unlink(path.c_str()); }

base::Result<Segment> Segment::anonymous(const std::string& label, std::size_t bytes, bool huge_pages) {
  struct sysinfo machine {};
  const std::size_t has = sysinfo(&machine) == 0
                              ? static_cast<std::size_t>(machine.totalram) * machine.mem_unit
                              : std::numeric_limits<std::size_t>::max();
  if (bytes == 0 || bytes > has) {
    return base::fail(
        base::Code::kResourceExhausted,
        fmt::format("{} needs {} MB of memory, the machine has {} MB: lower memory_bytes in the "
                    "config",
                    label, bytes >> 20, has >> 20),
        "ipc");
  }
  Segment segment;
  if (huge_pages) {
    // Mapping reserves the pages: without enough of them it fails here, and not when they are touched.
    const std::size_t whole = (bytes + kHugePage - 1) / kHugePage * kHugePage;
    segment.fd_ = sealed_file(label, whole, MFD_HUGETLB);
    void* address = MAP_FAILED;
    if (segment.fd_ >= 0) address = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_SHARED, segment.fd_, 0);
    if (address != MAP_FAILED) {
      segment.data_ = static_cast<std::byte*>(address);
      segment.size_ = whole;
      segment.path_ = label;
      segment.huge_pages_ = true;
      return segment;
    }
    if (segment.fd_ >= 0) close(std::exchange(segment.fd_, -1));
  }
  const int fd = sealed_file(label, bytes, 0);
  if (fd < 0) return system_error("cannot make memory for", label);
  const int kept = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (kept < 0) {
    auto error = system_error("cannot make memory for", label);
    close(fd);
    return error;
  }
  auto mapped = map(fd, label, bytes, false);
  if (!mapped) {
    close(kept);
    return mapped;
  }
  mapped->fd_ = kept;
  if (huge_pages) madvise(mapped->data_, bytes, MADV_HUGEPAGE);  // a wish: not all kernels grant it
  return mapped;
}

base::Result<Segment> Segment::adopt(int fd) {
  const std::string name = fmt::format("the memory of descriptor {}", fd);
  struct stat info {};
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals || fstat(fd, &info) != 0) {
    close(fd);
    return base::fail(base::Code::kInvalidArgument, name + " is not sealed: its peer could cut it short",
                      "ipc");
  }
  const int kept = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  auto mapped = map(fd, name, static_cast<std::size_t>(info.st_size), false);
  if (!mapped) {
    if (kept >= 0) close(kept);
    return mapped;
  }
  mapped->fd_ = kept;
  return mapped;
}

Segment::~Segment() {
  if (data_ != nullptr) munmap(data_, size_);
  if (fd_ >= 0) close(fd_);
}

void Segment::swap(Segment& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(huge_pages_, other.huge_pages_);
}

}  // namespace trimtab::ipc
