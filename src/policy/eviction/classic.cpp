#include <algorithm>
#include <deque>
#include <memory>
#include <unordered_set>
#include <vector>

#include "policy/eviction/order.h"
#include "policy/eviction/policies.h"

namespace trimtab::eviction {
namespace {

class Lru final : public Policy {
 private:
  // A request's blocks come from its begin, and its end must be the older: each goes in behind the block
  // before it. So the oldest is always the end of a chain.
  void place(Slot slot, const Access& access) {
    const Slot parent = entry(slot).parent;
    if (slot >= last_.size()) last_.resize(std::size_t{slot} + 1);
    last_[slot] = access.now;
    if (parent != kNoSlot && last_[parent] == access.now) {
      order_.push_behind(parent, slot);
    } else {
      order_.push(slot);
    }
  }
  void on_stored(Slot slot, const Block& /*block*/, const Access& access) override { place(slot, access); }
  void on_used(Slot slot, const Access& access) override {
    order_.remove(slot);
    place(slot, access);
  }
  void on_gone(Slot slot, bool /*evicted*/) override { order_.remove(slot); }
  Slot candidate(Nanos /*now*/) override { return order_.oldest(); }
  void postpone(Slot slot) override { order_.touch(slot); }
  std::size_t order_bytes() const override {
    return order_.memory_bytes() + last_.capacity() * sizeof(Nanos);
  }

  Order order_;
  std::vector<Nanos> last_;
};

class Fifo final : public Policy {
 private:
  void on_stored(Slot slot, const Block& /*block*/, const Access& /*access*/) override { order_.push(slot); }
  void on_used(Slot /*slot*/, const Access& /*access*/) override {}
  void on_gone(Slot slot, bool /*evicted*/) override { order_.remove(slot); }
  Slot candidate(Nanos /*now*/) override { return order_.oldest(); }
  void postpone(Slot slot) override { order_.touch(slot); }
  std::size_t order_bytes() const override { return order_.memory_bytes(); }

  Order order_;
};

class S3Fifo final : public Policy {
 public:
  explicit S3Fifo(std::int64_t capacity_blocks)
      : small_most_(std::max<std::int64_t>(capacity_blocks / 10, 1)), ghosts_most_(capacity_blocks) {}

 private:
  struct State {
    std::uint64_t key = 0;
    std::uint8_t uses = 0;  // since it was stored or went round, at most 3
    bool in_main = false;
  };
  void on_stored(Slot slot, const Block& block, const Access& /*access*/) override {
    if (slot >= states_.size()) states_.resize(std::size_t{slot} + 1);
    states_[slot] = {block.key, 0, ghosts_.erase(block.key) > 0};
    queue_of(slot).push(slot);
  }
  void on_used(Slot slot, const Access& /*access*/) override {
    states_[slot].uses = static_cast<std::uint8_t>(std::min(states_[slot].uses + 1, 3));
  }
  void on_gone(Slot slot, bool evicted) override {
    queue_of(slot).remove(slot);
    if (evicted && !states_[slot].in_main) remember(states_[slot].key);
  }
  Slot candidate(Nanos /*now*/) override {
    while (small_.count() + main_.count() > 0) {
      const bool from_small = main_.count() == 0 || small_.count() > small_most_;
      const Slot slot = (from_small ? small_ : main_).oldest();
      State& state = states_[slot];
      if (state.uses == 0) return slot;
      if (from_small) {
        state.uses = 0;
        state.in_main = true;
        small_.remove(slot);
        main_.push(slot);
      } else {
        --state.uses;
        main_.touch(slot);
      }
    }
    return kNoSlot;
  }
  // Over to the other queue: so that both come round when one holds nothing but what is read.
  void postpone(Slot slot) override {
    queue_of(slot).remove(slot);
    states_[slot].in_main = !states_[slot].in_main;
    queue_of(slot).push(slot);
  }
  std::size_t order_bytes() const override {
    return small_.memory_bytes() + main_.memory_bytes() + states_.capacity() * sizeof(State) +
           ghosts_.size() * 32 + ghost_order_.size() * 8;
  }
  Order& queue_of(Slot slot) { return states_[slot].in_main ? main_ : small_; }
  void remember(std::uint64_t key) {
    if (ghosts_.insert(key).second) ghost_order_.push_back(key);
    // Keys that came back are in the order still, so the bound is one of the order.
    while (static_cast<std::int64_t>(ghost_order_.size()) > ghosts_most_) {
      ghosts_.erase(ghost_order_.front());
      ghost_order_.pop_front();
    }
  }

  std::int64_t small_most_, ghosts_most_;
  Order small_, main_;
  std::vector<State> states_;
  std::unordered_set<std::uint64_t> ghosts_;  // looked up, never iterated
  std::deque<std::uint64_t> ghost_order_;
};

}  // namespace

std::unique_ptr<Policy> make_lru(const Settings& /*settings*/) { return std::make_unique<Lru>(); }
std::unique_ptr<Policy> make_fifo(const Settings& /*settings*/) { return std::make_unique<Fifo>(); }
std::unique_ptr<Policy> make_s3_fifo(const Settings& settings) {
  return std::make_unique<S3Fifo>(settings.capacity_blocks);
}

}  // namespace trimtab::eviction
