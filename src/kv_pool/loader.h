#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "base/error.h"

namespace trimtab::kv_pool {

/// The embedded pool of one machine: fixed slots in shared memory over a file tier.
struct LoaderOptions {
  std::string socket_path;   // users dial here
  std::string segment_path;  // the memory tier, mapped by all users; made at start, removed at the end
  std::string directory;     // the file tier; made when missing. Empty: memory only
  std::uint64_t memory_bytes = 1ULL << 30;
  std::uint64_t file_bytes = 4ULL << 30;
  std::uint64_t block_bytes = 0;  // of one KV block, all layers
};

/// Serves the pool until `stop` becomes true (a signal that interrupts `poll`, or within 100 ms), then makes
/// what is in memory durable and returns. Errors at start are clear and final: kInvalidArgument (sizes that
/// hold no block, a directory made for other blocks), kIo (directory cannot be made or written), kUnavailable
/// (another loader uses it), kResourceExhausted (disk or shared memory too small). Later write errors turn
/// the pool memory-only and are counted, never answered with wrong data.
base::Status run_loader(const LoaderOptions& options, const std::atomic<bool>& stop);

}  // namespace trimtab::kv_pool
