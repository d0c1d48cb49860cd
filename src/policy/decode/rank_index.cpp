#include "policy/decode/rank_index.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <tuple>

#include "base/check.h"

namespace trimtab::policy {
namespace {

constexpr std::size_t kLanes = 16;  // count_fitting looks at so many ranks at once
constexpr std::int32_t kNever = std::numeric_limits<std::int32_t>::max();

std::uint64_t order_of(RankId id) { return std::uint64_t{id.engine.value} << 32 | id.rank; }
RankId id_of(std::uint64_t order) {
  return {model::EngineId{static_cast<std::uint32_t>(order >> 32)}, static_cast<std::uint32_t>(order)};
}
std::int32_t narrow(std::int64_t value) {
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(value, -kNever, kNever));
}

using Lanes4 = std::int32_t __attribute__((vector_size(16)));
using Lanes8 = std::int32_t __attribute__((vector_size(32)));

/// Compiled once for any processor and once for AVX2; integers, so both give the same count.
template <class Lanes>
[[gnu::always_inline]] inline std::int64_t count_both(const std::vector<std::int32_t>& kv,
                                                      const std::vector<std::int32_t>& room,
                                                      std::int32_t kv_max, std::int32_t room_min) {
  constexpr std::size_t kWidth = sizeof(Lanes) / sizeof(std::int32_t);
  static_assert(kLanes % kWidth == 0);
  Lanes negative = {};  // a lane that fits is -1
  for (std::size_t begin = 0; begin < kv.size(); begin += kWidth) {
    Lanes kv_lanes, room_lanes;
    std::memcpy(&kv_lanes, kv.data() + begin, sizeof kv_lanes);
    std::memcpy(&room_lanes, room.data() + begin, sizeof room_lanes);
    negative += (kv_lanes <= kv_max) & (room_lanes >= room_min);
  }
  std::int64_t count = 0;
  for (std::size_t lane = 0; lane < kWidth; ++lane) count -= negative[lane];
  return count;
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) std::int64_t count_avx2(const std::vector<std::int32_t>& kv,
                                                        const std::vector<std::int32_t>& room,
                                                        std::int32_t kv_max, std::int32_t room_min) {
  return count_both<Lanes8>(kv, room, kv_max, room_min);
}
const bool kHasAvx2 = __builtin_cpu_supports("avx2") != 0;
#endif

}  // namespace

RankIndex::RankIndex(DecodeCapacity capacity, std::int64_t headroom_tokens)
    : capacity_(capacity),
      headroom_(headroom_tokens),
      buckets_(static_cast<std::size_t>(capacity.max_running) + 1),
      in_use_(static_cast<std::size_t>(capacity.max_running) / 64 + 1) {}

std::int64_t RankIndex::room_kv_max(std::uint32_t running, std::int64_t tokens) const {
  return capacity_.kv.value - headroom_ * (std::int64_t{running} + 1) - tokens;
}

RankIndex::Pick RankIndex::pick(const Entry& entry) const {
  return {{id_of(entry.order), members_[entry.slot].running, TokenCount{entry.kv}}, entry.slot};
}

void RankIndex::place(Heap& heap, std::uint32_t position, const Entry& entry) {
  heap[position] = entry;
  members_[entry.slot].position = position;
}

void RankIndex::sift_up(Heap& heap, std::uint32_t position, const Entry& entry) {
  while (position > 0) {
    const std::uint32_t parent = (position - 1) / 2;
    if (!(entry < heap[parent])) break;
    place(heap, position, heap[parent]);
    position = parent;
  }
  place(heap, position, entry);
}

void RankIndex::sift_down(Heap& heap, std::uint32_t position, const Entry& entry) {
  const auto size = static_cast<std::uint32_t>(heap.size());
  while (2 * position + 1 < size) {
    std::uint32_t child = 2 * position + 1;
    if (child + 1 < size && heap[child + 1] < heap[child]) ++child;
    if (!(heap[child] < entry)) break;
    place(heap, position, heap[child]);
    position = child;
  }
  place(heap, position, entry);
}

void RankIndex::insert(std::uint32_t slot, const Entry& entry) {
  Heap& heap = buckets_[members_[slot].bucket];
  heap.push_back(entry);
  sift_up(heap, static_cast<std::uint32_t>(heap.size() - 1), entry);
  in_use_[members_[slot].bucket / 64] |= std::uint64_t{1} << members_[slot].bucket % 64;
}

void RankIndex::erase(std::uint32_t slot) {
  const std::uint32_t bucket = members_[slot].bucket, position = members_[slot].position;
  Heap& heap = buckets_[bucket];
  const Entry last = heap.back();
  heap.pop_back();
  if (heap.empty()) in_use_[bucket / 64] &= ~(std::uint64_t{1} << bucket % 64);
  if (last.slot == slot) return;
  if (position > 0 && last < heap[(position - 1) / 2]) {
    sift_up(heap, position, last);
  } else {
    sift_down(heap, position, last);
  }
}

void RankIndex::mirror(std::uint32_t slot, std::int64_t kv) {
  const Member& member = members_[slot];
  const bool full = member.running >= capacity_.max_running;
  kv_dense_[slot] = full ? kNever : narrow(kv);
  room_dense_[slot] = full ? -1 : narrow(room_kv_max(member.bucket, 0) - kv);
}

std::uint32_t RankIndex::add(RankId rank, std::int64_t running, std::int64_t kv) {
  if (free_slots_.empty()) {
    const std::size_t begin = members_.size();
    members_.resize(begin + kLanes);
    kv_dense_.resize(begin + kLanes, kNever);
    room_dense_.resize(begin + kLanes, -1);
    for (std::size_t i = kLanes; i > 0; --i) free_slots_.push_back(static_cast<std::uint32_t>(begin + i - 1));
  }
  const std::uint32_t slot = free_slots_.back();
  free_slots_.pop_back();
  ++used_;
  members_[slot].running = running;
  members_[slot].bucket = static_cast<std::uint32_t>(std::min(running, capacity_.max_running));
  insert(slot, {kv, order_of(rank), slot});
  mirror(slot, kv);
  return slot;
}

void RankIndex::update(std::uint32_t slot, std::int64_t running, std::int64_t kv) {
  Member& member = members_[slot];
  const auto bucket = static_cast<std::uint32_t>(std::min(running, capacity_.max_running));
  Heap& heap = buckets_[member.bucket];
  Entry entry = heap[member.position];
  const bool grew = kv >= entry.kv;
  entry.kv = kv;
  member.running = running;
  if (bucket != member.bucket) {
    erase(slot);
    member.bucket = bucket;
    insert(slot, entry);
  } else if (grew) {
    sift_down(heap, member.position, entry);
  } else {
    sift_up(heap, member.position, entry);
  }
  mirror(slot, kv);
}

void RankIndex::remove(std::uint32_t slot) {
  erase(slot);
  kv_dense_[slot] = kNever;
  room_dense_[slot] = -1;
  free_slots_.push_back(slot);
  --used_;
}

/// Buckets below `max_running` that hold ranks, fewest running first, until `visit` returns false.
template <class Visit>
void RankIndex::for_each_open_bucket(Visit&& visit) const {
  for (std::size_t word = 0; word < in_use_.size(); ++word) {
    for (std::uint64_t bits = in_use_[word]; bits != 0; bits &= bits - 1) {
      const auto bucket =
          static_cast<std::uint32_t>(word * 64 + static_cast<std::size_t>(std::countr_zero(bits)));
      if (bucket >= capacity_.max_running || !visit(bucket, buckets_[bucket])) return;
    }
  }
}

RankIndex::Best RankIndex::fewest(std::int64_t tokens, std::int64_t kv_max) const {
  Best best;
  for_each_open_bucket([&](std::uint32_t bucket, const Heap& heap) {
    const std::int64_t limit = std::min(kv_max, room_kv_max(bucket, tokens));
    if (heap.front().kv > limit) return true;
    if (best.winner) {
      best.runner_up = pick(heap.front());
      return false;
    }
    best.winner = pick(heap.front());
    if (heap.size() == 1) return true;
    const Entry& second = heap.size() > 2 && heap[2] < heap[1] ? heap[2] : heap[1];
    if (second.kv > limit) return true;
    best.runner_up = pick(second);
    return false;
  });
  return best;
}

RankIndex::Best RankIndex::least_kv(std::int64_t tokens) const {
  struct Candidate {
    const Entry* entry = nullptr;
    std::uint32_t bucket = 0;
    bool before(const Candidate& other) const {
      if (other.entry == nullptr) return true;
      return std::tuple(entry->kv, bucket, entry->order) <
             std::tuple(other.entry->kv, other.bucket, other.entry->order);
    }
  };
  Candidate first, second;
  const auto offer = [&](const Candidate& candidate) {
    if (candidate.before(first)) {
      second = first;
      first = candidate;
    } else if (candidate.before(second)) {
      second = candidate;
    }
  };
  for_each_open_bucket([&](std::uint32_t bucket, const Heap& heap) {
    const std::int64_t limit = room_kv_max(bucket, tokens);
    if (heap.front().kv > limit) return true;
    offer({heap.data(), bucket});
    if (heap.size() > 1) {
      const Entry& next = heap.size() > 2 && heap[2] < heap[1] ? heap[2] : heap[1];
      if (next.kv <= limit) offer({&next, bucket});
    }
    return true;
  });
  Best best;
  if (first.entry != nullptr) best.winner = pick(*first.entry);
  if (second.entry != nullptr) best.runner_up = pick(*second.entry);
  return best;
}

std::int64_t RankIndex::count_fitting(std::int64_t tokens, std::int64_t kv_max) const {
  if (tokens >= kNever || kv_max < 0) return 0;
  const std::int32_t kv_limit = narrow(std::min<std::int64_t>(kv_max, kNever - 1));
  const std::int32_t room_needed = narrow(tokens);
#if defined(__x86_64__)
  if (kHasAvx2) return count_avx2(kv_dense_, room_dense_, kv_limit, room_needed);
#endif
  return count_both<Lanes4>(kv_dense_, room_dense_, kv_limit, room_needed);
}

bool RankIndex::has_room(std::uint32_t slot, std::int64_t tokens) const {
  const Member& member = members_[slot];
  return member.running < capacity_.max_running &&
         buckets_[member.bucket][member.position].kv <= room_kv_max(member.bucket, tokens);
}

}  // namespace trimtab::policy
