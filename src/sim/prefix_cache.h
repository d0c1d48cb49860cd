#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/trace.h"

namespace trimtab::sim {

/// Which prefix blocks the pool holds, by the ids of a trace. Equal ids mean equal prefixes, so a block
/// counts as hit when all before it do. With a capacity the least recently used block leaves first; without
/// one everything stays.
class PrefixCache {
 public:
  /// In blocks of the trace; 0: no bound.
  explicit PrefixCache(std::int64_t capacity_blocks);

  /// Leading blocks that are present; they are used now.
  std::int64_t match(std::span<const model::BlockRun> runs);
  /// The first `blocks` of the runs are stored.
  void store(std::span<const model::BlockRun> runs, std::int64_t blocks);

  std::int64_t blocks() const { return count_; }
  std::int64_t evicted() const { return evicted_; }

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;
  struct Entry {
    std::uint64_t id = 0;
    std::uint32_t newer = kNone, older = kNone;  // of the order of use; kept only with a capacity
    bool used = false;
  };
  std::uint32_t find(std::uint64_t id) const;
  void insert(std::uint64_t id);
  void erase(std::uint32_t at);
  void grow();
  void touch(std::uint32_t at);
  void unlink(std::uint32_t at);
  void relink(std::uint32_t from, std::uint32_t to);
  std::size_t home(std::uint64_t id) const;

  std::int64_t capacity_;
  std::vector<Entry> table_;  // open addressing, a power of two, at most half full
  std::int64_t count_ = 0, evicted_ = 0;
  std::uint32_t newest_ = kNone, oldest_ = kNone;
};

}  // namespace trimtab::sim
