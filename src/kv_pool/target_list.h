#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "kv_target/file/extent_log.h"
#include "kv_target/file/owner_lock.h"
#include "kv_target/target.h"

namespace trimtab::kv_pool {

struct TargetList {
  std::vector<std::unique_ptr<kv_target::Target>> targets;
  std::uint64_t capacity_bytes = 0;  // of those that say
};

/// Opens the places where shards go:
///   /mnt/a, dir:/mnt/a     a directory, on a disk or a mounted 3FS or NFS, made when missing
///   usrbio:/m:/m/a         the same on a 3FS mounted at /m, without its FUSE mount in between; in
///                          builds that have 3FS's library (-DTRIMTAB_USRBIO=ON)
///   tcp://host:7701        another machine's `trimtab kv-target`
///   redis://host:6379      a Redis, or any node of a Redis Cluster; redis://user:password@host:6379, or the
///                          environment says the password (kv_remote/redis/redis_login.h)
/// `directory_bytes`: of all directories together. Errors name the target that could not be opened and why.
base::Result<TargetList> open_targets(std::span<const std::string> specs, std::uint64_t directory_bytes,
                                      std::uint64_t shard_bytes);

struct OpenPatience {
  /// For a server's answer; one that gives none is a target all the same: it may come.
  base::Nanos answer{2'000'000'000};
  /// For a directory's owner, who may be ending.
  base::Nanos owner = kv_target::file::kOwnerPatience;
};
constexpr OpenPatience kNoPatience{base::Nanos{0}, base::Nanos{0}};

/// One of them. `directory_bytes`: of this one, if it is a directory.
base::Result<std::unique_ptr<kv_target::Target>> open_target(const std::string& spec,
                                                             std::uint64_t directory_bytes,
                                                             std::uint64_t shard_bytes,
                                                             OpenPatience patience = {});
/// The directory that a place is; nothing: it is a server.
std::optional<std::string> directory_of(const std::string& spec);
/// Its name in the pool's map, in messages and in reports: without user and password.
std::string place_of(const std::string& spec);
/// Of the list, how much is each directory's.
std::uint64_t directory_share(std::span<const std::string> specs, std::uint64_t directory_bytes);

/// What a shard takes in a directory: whole units.
inline std::uint64_t on_disk(std::uint64_t shard_bytes) {
  const kv_target::file::Layout layout;
  return layout.units_of(shard_bytes) * layout.unit_bytes;
}

}  // namespace trimtab::kv_pool
