#include "apps/place.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

namespace trimtab::apps {

namespace {

namespace fs = std::filesystem;

constexpr const char* kLockName = "lock";

/// The locked descriptor; -1 when another holds it, or when it vanished meanwhile (`errno` ENOENT).
int try_lock(const std::string& path, int flags) {
  const int fd = open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return -1;
  struct stat locked {};
  if (flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &locked) == 0) {
    if (locked.st_nlink > 0) return fd;
    errno = ENOENT;  // its holder ended between the two calls, and took the file along
  }
  const int reason = errno;
  close(fd);
  errno = reason;
  return -1;
}

void remove_contents(const std::string& directory, const char* except) {
  std::error_code ignored;
  for (fs::directory_iterator it(directory, ignored), end; it != end; it.increment(ignored)) {
    if (ignored) return;
    if (it->path().filename() != except) fs::remove_all(it->path(), ignored);
  }
}

/// Directories of this user whose supervisor is gone. One without a lock file is not (yet) a supervisor's.
void remove_left_behind(const Instance& instance) {
  const std::string name = fs::path(instance.runtime_dir).filename();
  const std::string prefix = name.substr(0, name.rfind('-') + 1);
  std::error_code ignored;
  for (fs::directory_iterator it(fs::path(instance.runtime_dir).parent_path(), ignored), end; it != end;
       it.increment(ignored)) {
    if (ignored) return;
    const std::string found = it->path().filename();
    if (!found.starts_with(prefix) || found == name) continue;
    const int lock = try_lock(it->path() / kLockName, O_RDWR);
    if (lock < 0) continue;
    fs::remove_all(fs::path(instance.shm_dir).parent_path() / found, ignored);
    fs::remove_all(it->path(), ignored);
    close(lock);
  }
}

}  // namespace

base::Status make_own_directory(const std::string& path) {
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    return base::fail(base::Code::kIo, fmt::format("cannot create {}: {}", path, std::strerror(errno)),
                      "trimtab");
  struct stat found {};
  // The names are known to everyone on the machine: what lies there may be another user's, or a link.
  if (lstat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode) && found.st_uid == geteuid() &&
      chmod(path.c_str(), 0700) == 0)
    return {};
  return base::fail(
      base::Code::kIo,
      fmt::format("{} is not a directory of this user; remove it or choose another --port", path), "trimtab");
}

base::Result<Place> Place::take(const Instance& instance) {
  remove_left_behind(instance);
  int lock = -1;
  do {
    TRIMTAB_TRY(make_own_directory(instance.runtime_dir));
    lock = try_lock(instance.runtime_dir + "/" + kLockName, O_RDWR | O_CREAT);
  } while (lock < 0 && errno == ENOENT);
  if (lock < 0 && errno == EWOULDBLOCK) {
    return base::fail(
        base::Code::kUnavailable,
        fmt::format("another trimtab serves on port {} (it holds {}); stop it or choose another with --port",
                    instance.config.gateway.port, instance.runtime_dir),
        "trimtab");
  }
  if (lock < 0) {
    return base::fail(base::Code::kIo,
                      fmt::format("cannot write to {}: {}", instance.runtime_dir, std::strerror(errno)),
                      "trimtab");
  }
  Place place(instance, lock);
  remove_contents(instance.runtime_dir, kLockName);
  std::error_code ignored;
  fs::remove_all(instance.shm_dir, ignored);
  TRIMTAB_TRY(make_own_directory(instance.shm_dir));
  return place;
}

Place::Place(Place&& other) noexcept
    : runtime_dir_(std::move(other.runtime_dir_)),
      shm_dir_(std::move(other.shm_dir_)),
      lock_(std::exchange(other.lock_, -1)) {}

Place::~Place() {
  if (lock_ < 0) return;
  std::error_code ignored;
  fs::remove_all(shm_dir_, ignored);
  fs::remove_all(runtime_dir_, ignored);
  close(lock_);
}

}  // namespace trimtab::apps
