#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/units.h"
#include "kv_store/places.h"
#include "kv_target/target.h"

namespace trimtab::kv_store {

/// An operation of the store: slot and generation, so that an answer to one that is over finds nobody.
struct OpId {
  std::uint32_t slot = UINT32_MAX, generation = 0;
  constexpr bool operator==(const OpId&) const = default;
};

/// Whose a request is.
struct Ticket {
  OpId op;
  std::uint8_t shard = 0, piece = 0;
};

struct Answer {
  Ticket ticket;
  kv_target::Verb verb = kv_target::Verb::kRead;
  TargetId target = 0;
  kv_target::Outcome outcome = kv_target::Outcome::kDone;
  std::uint64_t bytes = 0;
  kv_target::Loan lent{};
};

class Op {
 public:
  Op() = default;
  Op(const Op&) = delete;
  Op& operator=(const Op&) = delete;
  virtual ~Op() = default;
  virtual void answered(const Answer& answer, base::Nanos now) = 0;
  virtual void time(base::Nanos now) = 0;

  OpId id;
};

/// Those that are not over. An operation may end itself from within `answered` or `time`: it is destroyed by
/// the next `sweep`.
class OpTable {
 public:
  template <class T>
  T& add(std::unique_ptr<T> op) {
    if (free_.empty()) {
      free_.push_back(static_cast<std::uint32_t>(slots_.size()));
      slots_.emplace_back();
    }
    T& made = *op;
    made.id = {free_.back(), ++slots_[free_.back()].generation};
    slots_[free_.back()].op = std::move(op);
    free_.pop_back();
    ++live_;
    return made;
  }
  Op* find(OpId id) const {
    if (id.slot >= slots_.size() || slots_[id.slot].generation != id.generation) return nullptr;
    return slots_[id.slot].op.get();
  }
  void end(OpId id) {
    Slot& slot = slots_[id.slot];
    over_.push_back(std::move(slot.op));
    ++slot.generation;
    free_.push_back(id.slot);
    --live_;
  }
  void sweep() { over_.clear(); }
  std::size_t live() const { return live_; }

 private:
  struct Slot {
    std::unique_ptr<Op> op;
    std::uint32_t generation = 0;
  };
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_;
  std::vector<std::unique_ptr<Op>> over_;
  std::size_t live_ = 0;
};

}  // namespace trimtab::kv_store
