#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/error.h"
#include "engine/kv_arena.h"
#include "model/ids.h"

namespace trimtab::engine {

/// Carries KV blocks from this rank's arena to a decode rank's. Shared memory on one machine; another network
/// is another implementation.
class Transport {
 public:
  virtual ~Transport() = default;
  /// Copies block `from` of `arena` into block `to` of the arena that `segment` names. kUnavailable when the
  /// target is gone, kInvalidArgument when it has no such block.
  virtual base::Status copy(const KvArena& arena, std::uint32_t from, model::RankId target,
                            const std::string& segment, std::uint32_t to) = 0;
};

/// Maps the target's arena and copies straight into it. One thread.
class SharedMemoryTransport final : public Transport {
 public:
  explicit SharedMemoryTransport(const LlamaShape& shape) : shape_(shape) {}
  base::Status copy(const KvArena& arena, std::uint32_t from, model::RankId target,
                    const std::string& segment, std::uint32_t to) override;

 private:
  LlamaShape shape_;
  std::map<model::RankId, KvArena> targets_;  // a restarted rank comes with a new segment
};

}  // namespace trimtab::engine
