#include "kv_pool/preflight.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <utility>

#include "ipc/steady_clock.h"
#include "kv_pool/target_list.h"
#include "kv_store/map_search.h"
#include "kv_target/file/log_file.h"
#include "kv_target/file/owner_lock.h"

namespace trimtab::kv_pool {

namespace {

namespace fs = std::filesystem;

tl::unexpected<base::Error> refuse(base::Code code, std::string message) {
  return base::fail(code, std::move(message), "pool");
}

struct FileSystem {
  std::vector<std::string> directories;
  std::uint64_t room_bytes = 0;  // free, and what the pool has taken already
  bool in_use = false;           // a pool is there already
};

/// The directory can be made and written, and nobody serves it.
base::Status check_writable(const std::string& directory) {
  std::error_code error;
  fs::create_directories(directory, error);
  if (error)
    return refuse(base::Code::kIo,
                  fmt::format("the pool's directory {} cannot be made: {}; name another in pool.targets",
                              directory, error.message()));
  const std::string probe = directory + "/preflight";
  const int fd = ::open(probe.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  const int why = errno;
  if (fd >= 0) ::close(fd);
  ::unlink(probe.c_str());
  // A full disk takes no new file and still has a pool to read.
  if (fd < 0 && why != ENOSPC && why != EDQUOT)
    return refuse(base::Code::kIo,
                  fmt::format("the pool's directory {} cannot be written: {}; give this user the right to "
                              "write there, or name another in pool.targets",
                              directory, std::strerror(why)));
  // Let go at once: the target takes it when it opens. Where there is no such file, nobody has ever served.
  const auto lock = kv_target::file::take_lock(directory + "/lock", kv_target::file::LockFile::kFind);
  if (lock || !lock.error().is_held()) return {};
  return refuse(base::Code::kUnavailable,
                fmt::format("the pool's directory {} is in use by another process ({}), and has one owner: "
                            "stop that one, or reach a kv-target's by tcp://host:port",
                            directory, lock.error().held));
}

std::uint64_t held_in(const std::string& directory) {
  std::uint64_t held = 0;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(directory, ignored)) {
    struct stat file {};
    if (entry.path().filename().string().starts_with("extents.") && ::stat(entry.path().c_str(), &file) == 0)
      held += static_cast<std::uint64_t>(file.st_blocks) * 512;
  }
  return held;
}

/// Empty: there is room enough.
std::string lack_of_room(const FileSystem& there, std::uint64_t share, std::size_t directories) {
  const std::uint64_t wanted = share * there.directories.size();
  if (there.room_bytes >= wanted) return {};
  return fmt::format(
      "pool.file_bytes = {} is {} MB for each of {} directories; the file system of {} has room for {} MB "
      "and "
      "would need {}: free some, set pool.file_bytes to {} or less, or name another directory",
      share * directories, share >> 20, directories, fmt::join(there.directories, ", "),
      there.room_bytes >> 20, wanted >> 20, there.room_bytes / there.directories.size() * directories);
}

}  // namespace

base::Result<std::vector<std::string>> check_places(std::span<const std::string> specs,
                                                    std::uint64_t directory_bytes) {
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::string> seen;  // by device and inode
  std::map<std::uint64_t, FileSystem> systems;
  std::size_t directories = 0;
  for (const std::string& spec : specs) {
    const auto named = directory_of(spec);
    if (!named) continue;
    const std::string& directory = *named;
    ++directories;
    TRIMTAB_TRY(check_writable(directory));
    struct stat status {};
    struct statvfs room {};
    if (::stat(directory.c_str(), &status) != 0 || ::statvfs(directory.c_str(), &room) != 0)
      return refuse(base::Code::kIo, fmt::format("the pool's directory {}: {}; name another in pool.targets",
                                                 directory, std::strerror(errno)));
    const auto [twin, first] = seen.try_emplace({status.st_dev, status.st_ino}, directory);
    if (!first)
      return refuse(base::Code::kInvalidArgument,
                    fmt::format("{} and {} in pool.targets are one directory: name every target once",
                                twin->second, directory));
    FileSystem& there = systems[status.st_dev];
    if (there.directories.empty()) there.room_bytes = std::uint64_t{room.f_bavail} * room.f_frsize;
    there.directories.push_back(directory);
    const std::uint64_t held = held_in(directory);
    there.room_bytes += held;
    there.in_use = there.in_use || held > 0;
  }
  std::vector<std::string> notes;
  for (const auto& [device, there] : systems) {
    const std::string lack = lack_of_room(there, directory_share(specs, directory_bytes), directories);
    // A pool that is there goes on with what it has, and evicts.
    if (!lack.empty() && !there.in_use) return refuse(base::Code::kResourceExhausted, lack);
    if (!lack.empty()) notes.push_back(lack);
    if (there.directories.size() > 1)
      notes.push_back(
          fmt::format("{} lie on one file system: if its disk is lost, so are all of them, and "
                      "every block that has more than two shards there",
                      fmt::join(there.directories, ", ")));
  }
  return notes;
}

namespace {

/// Whether a place belongs to a pool already, or may: it cannot be asked.
base::Result<bool> may_be_taken(const std::string& spec, std::uint64_t share, std::uint64_t shard_bytes) {
  // A directory in which no target was ever made stays as it is.
  if (const auto directory = directory_of(spec); directory && !kv_target::file::layout_of(*directory))
    return false;
  auto target = open_target(spec, share, shard_bytes);
  if (!target) return tl::unexpected<base::Error>(target.error());
  const ipc::SteadyClock clock;
  std::shared_ptr<void> memory;
  const auto found = kv_store::look_at(**target, memory, clock, base::Nanos{2'000'000'000});
  target->reset();  // lets go of the memory
  return found.kind != kv_store::MapFound::Kind::kBlank;
}

}  // namespace

base::Status check_racks(std::span<const std::string> specs, std::span<const std::uint32_t> racks,
                         std::uint64_t directory_bytes, std::uint64_t shard_bytes) {
  if (specs.empty() || racks.empty()) return {};
  const auto map = kv_store::PlaceMap::make(static_cast<std::uint32_t>(specs.size()), racks);
  if (map) return {};
  const std::uint64_t share = directory_share(specs, directory_bytes);
  for (const std::string& spec : specs) {
    const auto taken = may_be_taken(spec, share, shard_bytes);
    if (!taken) return tl::unexpected<base::Error>(taken.error());
    if (*taken) return {};
  }
  return refuse(base::Code::kInvalidArgument,
                fmt::format("pool.racks = [{}]: {}", fmt::join(racks, ", "), map.error().message));
}

}  // namespace trimtab::kv_pool
