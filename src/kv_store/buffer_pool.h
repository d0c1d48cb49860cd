#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/check.h"

namespace trimtab::kv_store {

/// Buffers of one size, each held by as many as need it: the read or write it belongs to, and every request
/// under way on it. The last one out gives it back, so that a late answer lands in memory that is still its
/// own. The one given back last is taken next, while caches hold it. Memory is taken when first needed and
/// never more than `count` buffers.
///
/// Operations take buffers bit by bit, so each is promised all that it may need before it begins: one that is
/// under way never finds that others took the rest.
class BufferPool {
 public:
  using Id = std::uint32_t;
  static constexpr Id kNone = UINT32_MAX;

  BufferPool(std::size_t bytes, std::uint32_t count) : bytes_(bytes), count_(count) {}

  /// Neither taken nor promised.
  std::uint32_t available() const { return unused() - promised_; }
  /// So many are `available`.
  void promise(std::uint32_t count) {
    TRIMTAB_CHECK(available() >= count);
    promised_ += count;
  }
  void forgo(std::uint32_t count) { promised_ -= count; }
  /// One of those promised, held once.
  Id take() {
    TRIMTAB_CHECK(promised_ > 0);
    --promised_;
    if (free_.empty()) {
      free_.push_back(static_cast<Id>(buffers_.size()));
      buffers_.push_back({std::make_unique_for_overwrite<std::byte[]>(bytes_), 0});
    }
    const Id id = free_.back();
    free_.pop_back();
    buffers_[id].holders = 1;
    return id;
  }
  void hold(Id id) { ++buffers_[id].holders; }
  void release(Id id) {
    TRIMTAB_CHECK(buffers_[id].holders > 0);
    if (--buffers_[id].holders == 0) free_.push_back(id);
  }
  std::span<std::byte> operator[](Id id) { return {buffers_[id].memory.get(), bytes_}; }
  std::uint32_t count() const { return count_; }

 private:
  struct Buffer {
    std::unique_ptr<std::byte[]> memory;
    std::uint32_t holders = 0;
  };
  std::uint32_t unused() const {
    return count_ - static_cast<std::uint32_t>(buffers_.size()) + static_cast<std::uint32_t>(free_.size());
  }

  std::size_t bytes_;
  std::uint32_t count_, promised_ = 0;
  std::vector<Buffer> buffers_;
  std::vector<Id> free_;
};

}  // namespace trimtab::kv_store
