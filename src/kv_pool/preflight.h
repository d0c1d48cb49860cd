#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"

namespace trimtab::kv_pool {

/// Looks at the directories among a pool's places before anything starts on them; makes those that are
/// missing. `directory_bytes`: of all of them together. Errors name the directory, the value and the fix:
/// named twice, cannot be made or written, served by another process, less room on its file system than its
/// share (what the pool holds there already counts as room, and a pool that is there already may lack some).
/// The answer: what is no error and worth knowing, such as two directories on one file system.
base::Result<std::vector<std::string>> check_places(std::span<const std::string> specs,
                                                    std::uint64_t directory_bytes);

/// Racks (of each place, as configured; empty: none) by which no pool can be made, where there is none yet. A
/// pool that is there keeps its racks in its map and opens whatever the configuration says; so does nothing
/// get refused while a place cannot be asked. Waits for servers only if the racks break the rule.
base::Status check_racks(std::span<const std::string> specs, std::span<const std::uint32_t> racks,
                         std::uint64_t directory_bytes, std::uint64_t shard_bytes);

}  // namespace trimtab::kv_pool
