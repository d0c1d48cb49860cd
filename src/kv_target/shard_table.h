#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "kv_target/change_feed.h"

namespace trimtab::kv_target {

/// Values by shard, looked up only. Open addressing, at most half of the places used, one a cache line, so
/// that a look-up waits for one line, which `prefetch` asks for ahead. Not thread-safe.
template <class Value>
class ShardTable {
 public:
  ShardTable() : places_(kLeast) {}

  std::size_t size() const { return size_; }
  void prefetch(const ShardName& name) const { __builtin_prefetch(&places_[home(name)]); }

  /// Null when it is not there. Valid until something is added or erased.
  Value* find(const ShardName& name) {
    Place& place = places_[place_of(name)];
    return place.used ? &place.value : nullptr;
  }

  /// It is there afterwards: with what it had, or anew.
  Value& add(const ShardName& name) {
    if (2 * (size_ + 1) > places_.size()) grow();
    Place& place = places_[place_of(name)];
    if (!place.used) {
      place.name = name;
      place.used = true;
      ++size_;
    }
    return place.value;
  }

  bool erase(const ShardName& name) {
    std::size_t hole = place_of(name);
    if (!places_[hole].used) return false;
    --size_;
    // Those behind that a look-up would not find across the hole move into it.
    for (std::size_t next = after(hole); places_[next].used; next = after(next)) {
      const std::size_t wanted = home(places_[next].name);
      const bool reaches = ((next - wanted) & mask()) >= ((next - hole) & mask());
      if (!reaches) continue;
      places_[hole] = std::move(places_[next]);
      hole = next;
    }
    places_[hole] = Place{};
    return true;
  }

 private:
  static constexpr std::size_t kLeast = 64;
  struct alignas(64) Place {
    ShardName name;
    bool used = false;
    Value value{};
  };

  std::size_t mask() const { return places_.size() - 1; }
  std::size_t after(std::size_t place) const { return (place + 1) & mask(); }
  std::size_t home(const ShardName& name) const {
    return (ShardHash{}(name)*0x9e3779b97f4a7c15ULL) >> (64 - std::countr_zero(places_.size()));
  }
  /// Where it is, or would be.
  std::size_t place_of(const ShardName& name) const {
    std::size_t at = home(name);
    while (places_[at].used && places_[at].name != name) at = after(at);
    return at;
  }
  void grow() {
    std::vector<Place> old(places_.size() * 2);
    old.swap(places_);
    for (Place& place : old)
      if (place.used) places_[place_of(place.name)] = std::move(place);
  }

  std::vector<Place> places_;  // a power of two of them
  std::size_t size_ = 0;
};

}  // namespace trimtab::kv_target
