#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/units.h"

namespace trimtab::eviction {

/// What is remembered of blocks that have left: the latest of them, at most so many. Constant time.
class Ghosts {
 public:
  struct Ghost {
    base::Nanos last;
    std::uint8_t uses = 0;
    std::uint8_t pace = 0, answer = 0;
  };
  explicit Ghosts(std::size_t most) : most_(most) {}

  void remember(std::uint64_t key, const Ghost& ghost) {
    known_[key] = {ghost, ++number_};
    order_.emplace_back(key, number_);
    // Keys that came back are in the order still, so the bound is one of the order.
    while (order_.size() > most_) {
      const auto found = known_.find(order_.front().first);
      if (found != known_.end() && found->second.second == order_.front().second) known_.erase(found);
      order_.pop_front();
    }
  }
  bool knows(std::uint64_t key) const { return known_.contains(key); }
  std::optional<Ghost> take(std::uint64_t key) {
    const auto found = known_.find(key);
    if (found == known_.end()) return std::nullopt;
    const Ghost ghost = found->second.first;
    known_.erase(found);
    return ghost;
  }
  std::size_t memory_bytes() const { return known_.size() * 64 + order_.size() * 16; }

 private:
  std::size_t most_;
  std::unordered_map<std::uint64_t, std::pair<Ghost, std::uint64_t>> known_;  // looked up, never iterated
  std::deque<std::pair<std::uint64_t, std::uint64_t>> order_;                 // key, its number then
  std::uint64_t number_ = 0;
};

}  // namespace trimtab::eviction
