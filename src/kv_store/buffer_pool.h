#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"

namespace trimtab::kv_store {

/// Buffers of one size, each held by as many as need it: the read or write it belongs to, and every request
/// under way on it. The last one out gives it back, so that a late answer lands in memory that is still its
/// own. The one given back last is taken next, while caches hold it. Memory is taken when first needed, many
/// buffers at a time, and never for more than `count`. Each begins at a multiple of `unit` bytes and has room
/// for a multiple of it: what the targets read best (`Limits::read_unit_bytes`, a power of two).
///
/// Operations take buffers bit by bit, so each is promised all that it may need before it begins: one that is
/// under way never finds that others took the rest.
class BufferPool {
 public:
  using Id = std::uint32_t;
  static constexpr Id kNone = UINT32_MAX;

  BufferPool(std::size_t bytes, std::uint32_t count, std::size_t unit = 1)
      : bytes_(bytes), unit_(std::max(unit, kAlign)), stride_(padded(bytes, unit_)), count_(count) {}
  /// Memory of one buffer.
  static std::size_t padded(std::size_t bytes, std::size_t unit) {
    unit = std::max(unit, kAlign);
    return (bytes + unit - 1) / unit * unit;
  }

  /// Before the first is taken: has the memory of so many ready, so that nobody meets its page faults later.
  void prepare(std::uint32_t count) {
    TRIMTAB_CHECK(slabs_.empty());
    if (count == 0) return;
    grow(count);
    for (std::size_t at = 0; at < unborn_ * stride_; at += kPage) next_[at] = std::byte{0};
  }

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
      if (unborn_ == 0) grow(static_cast<std::uint32_t>(kSlabBytes / stride_));
      --unborn_;
      free_.push_back(static_cast<Id>(buffers_.size()));
      buffers_.push_back({std::exchange(next_, next_ + stride_), 0});
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
  std::span<std::byte> operator[](Id id) { return {buffers_[id].memory, bytes_}; }
  /// With what follows it up to a whole unit.
  std::span<std::byte> whole(Id id) { return {buffers_[id].memory, stride_}; }
  std::uint32_t count() const { return count_; }

 private:
  static constexpr std::size_t kAlign = 64, kPage = 4'096, kSlabBytes = 2U << 20;
  struct Buffer {
    std::byte* memory = nullptr;
    std::uint32_t holders = 0;
  };
  struct Free {
    std::size_t align = kAlign;
    void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t{align}); }
  };
  /// Memory for about so many more, at least one.
  void grow(std::uint32_t wanted) {
    const auto used = static_cast<std::uint32_t>(buffers_.size());
    unborn_ = std::clamp<std::uint32_t>(wanted, 1, count_ - used);
    slabs_.emplace_back(static_cast<std::byte*>(::operator new[](unborn_* stride_, std::align_val_t{unit_})),
                        Free{unit_});
    next_ = slabs_.back().get();
  }
  std::uint32_t unused() const {
    return count_ - static_cast<std::uint32_t>(buffers_.size()) + static_cast<std::uint32_t>(free_.size());
  }

  std::size_t bytes_, unit_, stride_;
  std::uint32_t count_, promised_ = 0;
  std::vector<std::unique_ptr<std::byte[], Free>> slabs_;
  std::byte* next_ = nullptr;  // of the newest slab, which has room for `unborn_` more
  std::uint32_t unborn_ = 0;
  std::vector<Buffer> buffers_;
  std::vector<Id> free_;
};

}  // namespace trimtab::kv_store
