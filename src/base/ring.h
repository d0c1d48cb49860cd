#pragma once

#include <cstddef>
#include <vector>

#include "base/check.h"

namespace trimtab::base {

/// A FIFO of fixed capacity. `push` on a full ring returns false: a limit that is reached is an explicit
/// outcome.
template <class T>
class Ring {
 public:
  explicit Ring(std::size_t capacity) : slots_(capacity) { TRIMTAB_CHECK(capacity > 0); }

  bool push(T value) {
    if (size_ == slots_.size()) return false;
    slots_[(head_ + size_) % slots_.size()] = std::move(value);
    ++size_;
    return true;
  }
  /// Pushes; when full, drops the oldest first.
  void push_dropping(T value) {
    if (size_ == slots_.size()) pop();
    push(std::move(value));
  }
  T pop() {
    TRIMTAB_CHECK(size_ > 0);
    T value = std::move(slots_[head_]);
    head_ = (head_ + 1) % slots_.size();
    --size_;
    return value;
  }
  /// 0 is the oldest.
  const T& operator[](std::size_t i) const {
    TRIMTAB_CHECK(i < size_);
    return slots_[(head_ + i) % slots_.size()];
  }
  std::size_t size() const { return size_; }
  std::size_t capacity() const { return slots_.size(); }
  bool empty() const { return size_ == 0; }
  bool full() const { return size_ == slots_.size(); }
  void clear() {
    while (!empty()) pop();
    head_ = 0;
  }

 private:
  std::vector<T> slots_;
  std::size_t head_ = 0;
  std::size_t size_ = 0;
};

}  // namespace trimtab::base
