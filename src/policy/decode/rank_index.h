#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "policy/decode/types.h"

namespace trimtab::policy {

/// Open ranks of equal capacity, ordered so that both questions of the placers are answered without looking
/// at every rank: one heap by (KV, id) for each number of running requests. The ranks of a balanced fleet run
/// nearly equal numbers, so few heaps are in use and a question looks only at their tops. The room a request
/// needs depends on its length and on the rank's count alone, hence is one KV limit per heap and the top
/// decides for the whole heap.
///
/// Cost: update O(log ranks), O(1) when the order does not change; a question O(distinct counts).
class RankIndex {
 public:
  struct Pick {
    DecodeLoad load;
    std::uint32_t slot = 0;
  };
  struct Best {
    std::optional<Pick> winner, runner_up;
  };

  RankIndex(DecodeCapacity capacity, std::int64_t headroom_tokens);

  /// Returns a slot that names the rank until `remove`.
  std::uint32_t add(RankId rank, std::int64_t running, std::int64_t kv);
  void update(std::uint32_t slot, std::int64_t running, std::int64_t kv);
  void remove(std::uint32_t slot);

  /// Among the ranks with room for `tokens` whose KV is at most `kv_max`: fewest running, then least KV, then
  /// id.
  Best fewest(std::int64_t tokens, std::int64_t kv_max) const;
  /// Among the ranks with room for `tokens`: least KV, then fewest running, then id.
  Best least_kv(std::int64_t tokens) const;
  /// How many ranks have room for `tokens` and a KV of at most `kv_max`.
  std::int64_t count_fitting(std::int64_t tokens, std::int64_t kv_max) const;
  bool has_room(std::uint32_t slot, std::int64_t tokens) const;
  /// Calls `visit(Pick)` with the rank of least KV of each count of running requests that has room.
  template <class Visit>
  void for_each_least(std::int64_t tokens, Visit&& visit) const {
    for (std::uint32_t bucket = 0; bucket < capacity_.max_running; ++bucket) {
      if ((in_use_[bucket / 64] >> bucket % 64 & 1) == 0) continue;
      const Entry& least = buckets_[bucket].front();
      if (least.kv <= room_kv_max(bucket, tokens)) visit(pick(least));
    }
  }

  const DecodeCapacity& capacity() const { return capacity_; }
  bool empty() const { return used_ == 0; }
  std::int64_t size() const { return used_; }

 private:
  struct Entry {
    std::int64_t kv = 0;
    std::uint64_t order = 0;  // engine and rank in one number: the tie break
    std::uint32_t slot = 0;
    bool operator<(const Entry& other) const { return kv != other.kv ? kv < other.kv : order < other.order; }
  };
  struct Member {
    std::uint32_t bucket = 0;
    std::uint32_t position = 0;  // in the bucket's heap
    std::int64_t running = 0;
  };
  using Heap = std::vector<Entry>;

  /// The largest KV that leaves room for one more request of `tokens` beside `running` others; negative:
  /// none.
  std::int64_t room_kv_max(std::uint32_t running, std::int64_t tokens) const;
  Pick pick(const Entry& entry) const;
  void place(Heap& heap, std::uint32_t position, const Entry& entry);
  void sift_up(Heap& heap, std::uint32_t position, const Entry& entry);
  void sift_down(Heap& heap, std::uint32_t position, const Entry& entry);
  void erase(std::uint32_t slot);
  void insert(std::uint32_t slot, const Entry& entry);
  void mirror(std::uint32_t slot, std::int64_t kv);
  template <class Visit>
  void for_each_open_bucket(Visit&& visit) const;

  DecodeCapacity capacity_;
  std::int64_t headroom_;
  std::vector<Heap> buckets_;          // by running; the last holds every full rank
  std::vector<std::uint64_t> in_use_;  // a bit for each bucket that is not empty
  std::vector<Member> members_;        // by slot
  std::vector<std::uint32_t> free_slots_;
  // For count_fitting, which must look at all: narrow, dense and padded with ranks that never fit.
  std::vector<std::int32_t> kv_dense_, room_dense_;
  std::int64_t used_ = 0;
};

}  // namespace trimtab::policy
