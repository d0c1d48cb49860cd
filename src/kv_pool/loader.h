#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "model/profile.h"

namespace trimtab::policy {
class CostModel;
}

namespace trimtab::kv_pool {

/// The pool as one machine has it: fixed slots in shared memory over blocks that are striped across targets.
struct LoaderOptions {
  std::string socket_path;  // users dial here
  /// Where shards go (target_list.h): directories, other machines. Empty: memory only.
  std::vector<std::string> targets;
  std::vector<std::uint32_t> racks;  // of each; empty: not known
  std::uint64_t memory_bytes =
      1ULL << 30;                         // the arena, which users get by descriptor: no file is left behind
  bool huge_pages = true;                 // for it, when the machine has them to spare
  std::uint64_t file_bytes = 4ULL << 30;  // of all directories together
  model::KvLayout kv;                     // block_bytes of one block, and how its layers lie in it
  std::string eviction = "hit_density";   // which blocks leave when the targets, or memory alone, are full
  /// What computing a block again costs; it outlives the loader. None: every block counts the same.
  const policy::CostModel* cost = nullptr;
  base::Nanos ttl = base::kForever;    // blocks stored longer ago leave before all others
  bool writes_all = false;             // a block is durable with twelve shards only, never with ten
  std::uint32_t loads_most = 512;      // blocks being read from the targets for fetch plans
  std::uint32_t ring_entries = 4'096;  // of each user's progress ring; more wait with the loader
};

/// Serves the pool until `stop` becomes true (a signal that interrupts `poll`, or within 100 ms), then makes
/// what is in memory durable and returns. Errors at start are clear and final: kInvalidArgument (sizes that
/// hold no block, a target that is none), kIo (directory cannot be made or written), kUnavailable
/// (another loader uses it), kResourceExhausted (more memory than the machine has). Later write errors make
/// the pool memory-only for a while and are counted, never answered with wrong data.
base::Status run_loader(const LoaderOptions& options, const std::atomic<bool>& stop);

}  // namespace trimtab::kv_pool
