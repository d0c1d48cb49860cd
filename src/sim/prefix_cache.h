#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/units.h"
#include "model/trace.h"
#include "policy/eviction/slots.h"
#include "sim/eviction.h"

namespace trimtab::sim {

using base::Nanos;

/// Which prefix blocks the pool (or one storage node of it) holds, by the ids of a trace. Equal ids mean
/// equal prefixes, so a block counts as hit when all before it do. With a capacity the eviction order says
/// who leaves (the least recently used unless another is given); without one everything stays.
class PrefixCache {
 public:
  /// In blocks of the trace; 0: no bound.
  explicit PrefixCache(std::int64_t capacity_blocks, std::unique_ptr<eviction::Policy> policy = nullptr);

  /// Leading blocks that are present; they are used now.
  std::int64_t match(std::span<const model::BlockRun> runs, Nanos now);
  /// The first `blocks` of the runs are stored, and then weighed together with what was there. A block that
  /// is here already was used when it was matched.
  void store(std::span<const model::BlockRun> runs, std::int64_t blocks, Nanos now);

  /// The answer to a request is whole: its first `blocks` were used or stored last at `told`.
  void answered(std::span<const model::BlockRun> runs, std::int64_t blocks, Nanos told, std::int64_t tokens,
                Nanos now);
  /// The same of one block that stands for itself.
  void answered(std::uint64_t id, Nanos told, std::int64_t tokens, Nanos now);

  /// One block: is it here? Then it is used now.
  bool use(std::uint64_t id, Nanos now);
  /// One block that stands for itself: the blocks before it are elsewhere.
  void put(std::uint64_t id, Nanos now);
  /// Without using it.
  bool contains(std::uint64_t id) const {
    return capacity_ > 0 ? find(id) != kNone : (stored_of(id / kGroup) >> (id % kGroup) & 1U) != 0;
  }
  bool bounded() const { return capacity_ > 0; }
  /// Everything is gone, in no order of leaving: it does not count as evicted.
  void clear();

  std::int64_t blocks() const { return count_; }
  std::int64_t evicted() const { return evicted_; }

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;
  struct Entry {
    std::uint64_t id = 0;
    std::uint32_t slot = kNone;  // of the eviction policy; kNone: the entry is free
  };
  std::uint32_t find(std::uint64_t id) const;
  std::int64_t leading(std::span<const model::BlockRun> runs) const;
  std::uint32_t insert(std::uint64_t id, const eviction::Block& block, const eviction::Access& access);
  void fit(Nanos now);
  void erase(std::uint32_t at);
  void grow();
  std::size_t home(std::uint64_t id) const;

  // Without a capacity nobody needs to know a block by itself: one entry says of 64 ids in a row which are
  // there.
  static constexpr std::uint64_t kGroup = 64;
  struct Group {
    std::uint64_t number = 0;  // id / kGroup
    std::uint64_t stored = 0;  // a bit a block; 0: the entry is free
  };
  /// Bits of the ids from `id` on, up to `count` of them, as far as the group of `id` goes.
  static std::uint64_t bits_from(std::uint64_t id, std::uint64_t count);
  std::size_t home_of_group(std::uint64_t number) const;
  std::uint64_t stored_of(std::uint64_t number) const;
  void store_in_group(std::uint64_t number, std::uint64_t bits);
  std::uint64_t match_run(std::uint64_t id, std::uint64_t count) const;
  void store_run(std::uint64_t id, std::uint64_t count);

  std::int64_t capacity_;
  std::unique_ptr<eviction::Policy> policy_;
  std::vector<Entry> table_;   // with a capacity: open addressing, a power of two, at most half full
  std::vector<Group> groups_;  // without: the same
  std::size_t groups_used_ = 0;
  eviction::Slots<std::uint64_t> slots_;  // with a capacity
  std::int64_t count_ = 0, evicted_ = 0;
};

}  // namespace trimtab::sim
