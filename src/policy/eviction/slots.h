#pragma once

#include <cstddef>
#include <vector>

#include "policy/eviction/policy.h"

namespace trimtab::eviction {

/// A store's slots and whose they are: small dense numbers, the one given back last is taken next.
template <class Key>
class Slots {
 public:
  Slot take(const Key& key) {
    if (free_.empty()) {
      key_of_.push_back(key);
      return static_cast<Slot>(key_of_.size() - 1);
    }
    const Slot slot = free_.back();
    free_.pop_back();
    key_of_[slot] = key;
    return slot;
  }
  void give_back(Slot slot) { free_.push_back(slot); }
  const Key& key_of(Slot slot) const { return key_of_[slot]; }
  void clear() {
    key_of_.clear();
    free_.clear();
  }
  std::size_t memory_bytes() const {
    return key_of_.capacity() * sizeof(Key) + free_.capacity() * sizeof(Slot);
  }

 private:
  std::vector<Key> key_of_;
  std::vector<Slot> free_;
};

}  // namespace trimtab::eviction
