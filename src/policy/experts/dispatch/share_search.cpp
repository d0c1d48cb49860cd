// The searches of ShareFlow: paths from ranks with too much to ranks with room.
#include <algorithm>
#include <limits>

#include "policy/experts/dispatch/share_flow.h"

namespace trimtab::experts {
namespace {

// Stamp of a rank that no search need visit again.
constexpr std::int32_t kStuck = std::numeric_limits<std::int32_t>::max();

std::size_t index(std::int32_t value) { return static_cast<std::size_t>(value); }

}  // namespace

std::int64_t ShareFlow::level(std::int64_t enough, std::int64_t hopeless) {
  pushes_ = 0;
  tight_.clear();
  bound_ = (total_ + shape_.ranks - 1) / shape_.ranks;
  std::int64_t threshold = std::max(bound_, enough);
  while (true) {
    const auto busiest = std::ranges::max_element(rank_units_);
    if (*busiest <= threshold || bound_ >= hopeless) return *busiest;
    const auto from = static_cast<std::int32_t>(busiest - rank_units_.begin());
    while (rank_units_[index(from)] > threshold) {
      const std::int32_t to = find_path(from, threshold);
      if (to >= 0) {
        push_path(from, to, threshold);
        continue;
      }
      // All that the reached ranks carry is trapped among them.
      std::int64_t trapped = 0;
      for (std::int32_t i = 0; i < reached_; ++i) trapped += rank_units_[index(queue_[index(i)])];
      bound_ = (trapped + reached_ - 1) / reached_;
      threshold = std::max(threshold, bound_);
      tight_.assign(queue_.begin(), queue_.begin() + reached_);
      if (bound_ >= hopeless) break;
    }
  }
}

// Breadth first, so paths are shortest; the first rank found below the threshold, or -1.
std::int32_t ShareFlow::find_path(std::int32_t from, std::int64_t threshold) {
  if (++stamp_ == kStuck) {
    for (std::int32_t& stamp : rank_stamp_) stamp = stamp == kStuck ? kStuck : 0;
    std::ranges::fill(expert_stamp_, 0);
    stamp_ = 1;
  }
  queue_[0] = from;
  reached_ = 1;
  rank_stamp_[index(from)] = stamp_;
  for (std::int32_t head = 0; head < reached_; ++head) {
    const std::int32_t rank = queue_[index(head)];
    const std::int32_t base = rank * shape_.slots_per_rank();
    for (std::int32_t i = 0; i < link_count_[index(rank)]; ++i) {
      const std::int32_t slot = links_[index(base + i)];
      std::int32_t& expert_stamp = expert_stamp_[index(map_[index(slot)])];
      // One copy with load reaches every other of its expert: a second need not be followed.
      if (slot_units_[index(slot)] == 0 || expert_stamp == stamp_) continue;
      expert_stamp = stamp_;
      for (std::int32_t next = next_slot_[index(slot)]; next != slot; next = next_slot_[index(next)]) {
        const std::int32_t to = rank_of_slot_[index(next)];
        if (rank_stamp_[index(to)] >= stamp_) {
          if (rank_stamp_[index(to)] == kStuck) touched_.push_back(knots_[index(to)]);
          continue;
        }
        rank_stamp_[index(to)] = stamp_;
        left_[index(to)] = slot;
        entered_[index(to)] = next;
        if (rank_units_[index(to)] < threshold) return to;
        queue_[index(reached_++)] = to;
      }
    }
  }
  return -1;
}

std::int64_t ShareFlow::drain(std::int64_t capacity) {
  pushes_ = 0;
  std::ranges::fill(knots_, -1);
  std::int64_t overload = 0;
  for (std::int32_t from = 0; from < shape_.ranks; ++from) {
    while (rank_units_[index(from)] > capacity && knots_[index(from)] < 0) {
      touched_.clear();
      const std::int32_t to = find_path(from, capacity);
      if (to >= 0) {
        push_path(from, to, capacity);
      } else {
        tie_knot(from);
      }
    }
    overload += std::max<std::int64_t>(0, rank_units_[index(from)] - capacity);
  }
  for (std::int32_t& stamp : rank_stamp_) stamp = stamp == kStuck ? 0 : stamp;
  return overload;
}

// The ranks that the failed search reached, and the knots that it ran into, are one from now on. They have no
// way to a rank with room, and no later push can give them one: none passes through them.
void ShareFlow::tie_knot(std::int32_t from) {
  for (std::int32_t i = 0; i < reached_; ++i) {
    knots_[index(queue_[index(i)])] = from;
    rank_stamp_[index(queue_[index(i)])] = kStuck;
  }
  if (touched_.empty()) return;
  for (std::int32_t& knot : knots_) {
    if (knot >= 0 && std::ranges::find(touched_, knot) != touched_.end()) knot = from;
  }
}

void ShareFlow::push_path(std::int32_t from, std::int32_t to, std::int64_t threshold) {
  std::int64_t units = std::min(rank_units_[index(from)] - threshold, threshold - rank_units_[index(to)]);
  for (std::int32_t rank = to; rank != from; rank = rank_of_slot_[index(left_[index(rank)])]) {
    units = std::min(units, slot_units_[index(left_[index(rank)])]);
  }
  for (std::int32_t rank = to; rank != from; rank = rank_of_slot_[index(left_[index(rank)])]) {
    slot_units_[index(left_[index(rank)])] -= units;
    slot_units_[index(entered_[index(rank)])] += units;
  }
  rank_units_[index(from)] -= units;
  rank_units_[index(to)] += units;
  ++pushes_;
}

}  // namespace trimtab::experts
