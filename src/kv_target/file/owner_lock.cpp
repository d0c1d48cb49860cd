#include "kv_target/file/owner_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>

namespace trimtab::kv_target::file {

namespace {

constexpr std::chrono::milliseconds kPause{20};

/// The process that took the lock; 0: it is on another machine, or in a container that is not shown here.
int owner_of(int fd) {
  struct stat file {};
  if (::fstat(fd, &file) != 0) return 0;
  const std::string wanted =
      fmt::format("{:02x}:{:02x}:{}", major(file.st_dev), minor(file.st_dev), file.st_ino);
  std::ifstream locks("/proc/locks");
  for (std::string line; std::getline(locks, line);) {
    std::istringstream words(line);
    std::string number, kind, strength, access, where;
    int process = 0;
    if (words >> number >> kind >> strength >> access >> process >> where && kind == "FLOCK" &&
        where == wanted)
      return std::max(process, 0);
  }
  return 0;
}

/// The program and what it was told to be. Other arguments may hold passwords, and are nobody's business.
std::string name_of(int process) {
  std::string program, argument;
  std::getline(std::ifstream(fmt::format("/proc/{}/comm", process)), program);
  std::ifstream arguments(fmt::format("/proc/{}/cmdline", process));
  std::getline(arguments, argument, '\0');
  std::getline(arguments, argument, '\0');
  const bool is_word = !argument.empty() && argument.front() != '-' &&
                       argument.find_first_not_of("abcdefghijklmnopqrstuvwxyz-") == std::string::npos;
  return is_word ? program + " " + argument : program;
}

std::string describe(int fd, base::Nanos patience) {
  const std::string waited =
      fmt::format("waited {:.1f} s for it", static_cast<double>(patience.value) / 1'000'000'000);
  const int owner = owner_of(fd);
  const std::string name = owner > 0 ? name_of(owner) : "";
  if (name.empty()) return waited;
  return fmt::format("process {}, {}; {}", owner, name, waited);
}

}  // namespace

bool LockRefusal::is_held() const { return reason == EWOULDBLOCK; }

tl::expected<Descriptor, LockRefusal> take_lock(const std::string& path, LockFile file,
                                                base::Nanos patience) {
  const int make = file == LockFile::kMake ? O_CREAT : 0;
  Descriptor lock(::open(path.c_str(), O_RDWR | O_CLOEXEC | make, 0600));
  if (!lock) return tl::unexpected(LockRefusal{errno, ""});
  const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(patience.value);
  while (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return tl::unexpected(LockRefusal{errno, ""});
    if (std::chrono::steady_clock::now() >= end)
      return tl::unexpected(LockRefusal{EWOULDBLOCK, describe(lock.get(), patience)});
    std::this_thread::sleep_for(kPause);
  }
  return lock;
}

}  // namespace trimtab::kv_target::file
