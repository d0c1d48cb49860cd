#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/error.h"
#include "base/units.h"
#include "kv_pool/pool_client.h"
#include "kv_pool/pool_stats.h"
#include "model/ids.h"

namespace trimtab::agents {

/// Where the entrypoint asks how much of a prompt is cached.
class PrefixSource {
 public:
  virtual ~PrefixSource() = default;
  /// Leading keys that are present, and of which epoch of the index that is the answer. `counted`: a
  /// request's first question. An error is treated as a miss.
  /// `prompt_blocks`: with the last one, which is not full.
  virtual base::Result<kv_pool::Match> match(std::span<const model::BlockKey> keys, bool counted,
                                             std::uint32_t prompt_blocks) = 0;
  /// The answer to the request that a counted match named is whole. Said and forgotten.
  virtual void answered(std::uint64_t request, std::uint32_t tokens) = 0;
  /// Nothing when the pool does not answer.
  virtual std::optional<kv_pool::PoolStats> stats() = 0;
};

/// The embedded pool. The question is asked on the host's one thread, so it may only take `timeout`: a hung
/// pool costs one such wait and then none until it is dialled again (PoolClient's rule).
class PoolPrefixSource final : public PrefixSource {
 public:
  PoolPrefixSource(std::string socket_path, const base::Clock& clock, base::Nanos timeout);
  base::Result<kv_pool::Match> match(std::span<const model::BlockKey> keys, bool counted,
                                     std::uint32_t prompt_blocks) override;
  void answered(std::uint64_t request, std::uint32_t tokens) override;
  std::optional<kv_pool::PoolStats> stats() override;

 private:
  /// The client. Dials when there is none, ten times a second, or less often where that is what takes time:
  /// the first request after a start should find the pool, and a pool that hangs must not take the thread.
  kv_pool::PoolClient* client();
  std::string socket_path_;
  const base::Clock& clock_;
  base::Nanos timeout_;
  base::Nanos next_dial_;
  std::optional<kv_pool::PoolClient> client_;
};

}  // namespace trimtab::agents
