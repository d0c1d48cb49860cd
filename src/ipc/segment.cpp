#include "ipc/segment.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace trimtab::ipc {

namespace {

tl::unexpected<base::Error> system_error(const std::string& what, const std::string& path) {
  return base::fail(base::Code::kIo, fmt::format("{} {}: {}", what, path, std::strerror(errno)), "ipc");
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

Segment::~Segment() {
  if (data_ != nullptr) munmap(data_, size_);
}

void Segment::swap(Segment& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(path_, other.path_);
}

}  // namespace trimtab::ipc
