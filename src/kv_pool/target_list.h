#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "kv_target/file/extent_log.h"
#include "kv_target/target.h"

namespace trimtab::kv_pool {

struct TargetList {
  std::vector<std::unique_ptr<kv_target::Target>> targets;
  std::uint64_t capacity_bytes = 0;  // of those that say
};

/// Opens the places where shards go, in the given order (which is part of where blocks lie: do not reorder):
///   /mnt/a, dir:/mnt/a     a directory, on a disk or a mounted 3FS or NFS, made when missing
///   tcp://host:7701        another machine's `trimtab kv-target`
///   redis://host:6379      a Redis, or any node of a Redis Cluster
/// `directory_bytes`: of all directories together. Errors name the target that could not be opened and why.
base::Result<TargetList> open_targets(std::span<const std::string> specs, std::uint64_t directory_bytes,
                                      std::uint64_t shard_bytes);

/// What a shard takes in a directory: whole units.
inline std::uint64_t on_disk(std::uint64_t shard_bytes) {
  const kv_target::file::Layout layout;
  return layout.units_of(shard_bytes) * layout.unit_bytes;
}

}  // namespace trimtab::kv_pool
