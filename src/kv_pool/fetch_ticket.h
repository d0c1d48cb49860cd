#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/units.h"

namespace trimtab::kv_pool {

/// A fetch plan under way, at its user: blocks come to lie in the loader's arena, layer by layer, and stay
/// there until they are released. Thread-safe; the arena stays mapped while a ticket lives. A ticket that
/// goes away cancels what has not come and releases what has.
///
/// Two ways to use it: layer by layer (`take`), where every block of the plan must have its slot at once, so
/// plans of more than `PoolClient::fetch_blocks_most()` blocks would wait for ever; or block by block
/// (`finished`, `copy`), where released blocks make room for the next, and a plan may be larger than the
/// arena.
///
/// When the loader dies, or its answers make no sense, every call fails with kUnavailable at once.
class FetchTicket {
 public:
  struct Arrival {
    std::uint32_t block = 0;           // of the plan
    const std::byte* bytes = nullptr;  // where the block lies; the layer asked for is there
  };
  struct Finished {
    std::uint32_t block = 0;
    /// kNotFound: not in the pool any more; kDeadlineExceeded; kUnavailable: the store could not read it;
    /// kResourceExhausted: the plan has more blocks than the loader takes.
    base::Status status;
  };

  FetchTicket(FetchTicket&&) noexcept;
  FetchTicket& operator=(FetchTicket&&) noexcept;
  ~FetchTicket();

  /// Appends blocks of which the first `layer` + 1 layers lie in memory and that were not given for this
  /// layer before; waits up to `wait` for the first. The error of a block that failed, for all callers. The
  /// last layer is given once the block is whole, so that `checksum` is known by then.
  base::Status take(std::uint32_t layer, std::vector<Arrival>& arrivals, base::Nanos wait);
  /// Appends blocks that are whole or have failed, each once, in the order it became known.
  base::Status finished(std::vector<Finished>& blocks, base::Nanos wait);
  /// Copies a whole block (exactly block_bytes), verifies the copy, and releases the block. kDataLoss:
  /// damaged in memory, and withdrawn from the pool.
  base::Status copy(std::uint32_t block, std::span<std::byte> destination);
  /// What the content of a block that is whole must hash to (content_checksum). Whoever copies it layer by
  /// layer compares before anything that was computed from it counts.
  std::uint64_t checksum(std::uint32_t block) const;
  /// Blocks that `take` or `finished` gave; nothing may read them any more.
  void release(std::span<const std::uint32_t> blocks);

  std::uint32_t blocks() const;
  std::uint32_t layers() const;

 private:
  friend class PoolClient;
  struct State;
  explicit FetchTicket(std::shared_ptr<State> state) : state_(std::move(state)) {}
  void end();
  std::shared_ptr<State> state_;
};

}  // namespace trimtab::kv_pool
