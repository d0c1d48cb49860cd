#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "base/error.h"
#include "base/units.h"
#include "kv_store/places.h"

namespace trimtab::kv_store {

enum class WalkKind : std::uint8_t {
  kRebuild,  // every block whose shards are not where the map wants them: after a loss, a replacement, a
             // resize
  kScrub,    // every shard of every block is read and verified
};

/// What of a walk must be remembered to go on with it after a restart.
struct WalkCursor {
  WalkKind kind = WalkKind::kScrub;
  std::uint32_t map_version = 0;
  BlockKey next;  // everything below it is finished
  std::uint64_t blocks = 0, shards_written = 0, shards_bad = 0, unreadable = 0, bytes = 0;

  constexpr bool operator==(const WalkCursor&) const = default;
  template <class A>
  void visit(A& a) {
    a(kind, map_version, next, blocks, shards_written, shards_bad, unreadable, bytes);
  }
};

/// A walk over all blocks in the order of their keys. Blocks written after it began need none.
class Walk {
 public:
  Walk(const WalkCursor& from, std::vector<BlockKey> sorted_keys, base::Nanos now);

  std::optional<BlockKey> next();
  struct Found {
    std::uint32_t shards_written = 0, shards_bad = 0;
    bool unreadable = false;
    std::uint64_t bytes = 0;  // read and written
  };
  void finished(BlockKey key, const Found& found);
  bool more() const { return at_ < keys_.size(); }
  bool done() const { return at_ == keys_.size() && under_way_.empty(); }

  /// Where to go on: nothing before it is left to do.
  WalkCursor cursor() const;
  struct Progress {
    std::uint64_t blocks_done = 0, blocks_left = 0;
    double done_ratio = 1;
    base::Nanos left = base::kForever;  // at the speed so far; kForever: not known yet
  };
  Progress progress(base::Nanos now) const;

 private:
  WalkCursor cursor_;
  std::vector<BlockKey> keys_;
  std::size_t at_ = 0;
  std::set<BlockKey> under_way_;
  std::uint64_t finished_ = 0;
  base::Nanos begun_{0};
};

}  // namespace trimtab::kv_store
