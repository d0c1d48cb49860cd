#include "ipc/life_counter.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace trimtab::ipc {

namespace {

bool write_all(const std::string& path, const std::string& text) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return false;
  const bool written =
      ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) && ::fsync(fd) == 0;
  const int error = errno;
  const bool closed = ::close(fd) == 0;
  if (!written) errno = error;
  return written && closed;
}

/// Who numbered his life with it may be known to other machines, which a power cut here does not end.
bool keep_name(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  const int fd = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool kept = ::fsync(fd) == 0;
  const int error = errno;
  ::close(fd);
  errno = error;
  return kept;
}

}  // namespace

base::Result<std::uint64_t> next_life(const std::string& path) {
  std::uint64_t last = 0;
  std::error_code absent;
  if (std::filesystem::exists(path, absent)) {
    std::ifstream file(path);
    // Beginning again at 1 would take what the lives before numbered for this one's.
    if (!(file >> last))
      return base::fail(base::Code::kIo,
                        fmt::format("{} holds no number of lives; write into it a number larger than any "
                                    "before, or end what outlived this process and remove it",
                                    path),
                        "ipc");
  }
  const std::string part = path + ".part";
  if (!write_all(part, std::to_string(last + 1) + '\n') || ::rename(part.c_str(), path.c_str()) != 0 ||
      !keep_name(path))
    return base::fail(base::Code::kIo,
                      fmt::format("cannot write {}: {}; the number of lives must survive, or old answers "
                                  "would be taken for new ones; choose another directory",
                                  path, std::strerror(errno)),
                      "ipc");
  return last + 1;
}

}  // namespace trimtab::ipc
