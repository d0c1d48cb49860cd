#include "sim/eviction.h"

#include <algorithm>
#include <deque>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/check.h"
#include "base/nearest.h"

namespace trimtab::sim {
namespace {

constexpr std::uint32_t kNone = UINT32_MAX;

/// A list through the slots: the newest at the front.
class Order {
 public:
  void push(std::uint32_t slot) {
    if (slot >= links_.size()) links_.resize(slot + 1);
    links_[slot] = {kNone, newest_};
    if (newest_ != kNone) links_[newest_].newer = slot;
    newest_ = slot;
    if (oldest_ == kNone) oldest_ = slot;
    ++count_;
  }
  void remove(std::uint32_t slot) {
    const Link link = links_[slot];
    (link.newer == kNone ? newest_ : links_[link.newer].older) = link.older;
    (link.older == kNone ? oldest_ : links_[link.older].newer) = link.newer;
    --count_;
  }
  void touch(std::uint32_t slot) {
    if (newest_ == slot) return;
    remove(slot);
    push(slot);
  }
  std::uint32_t pop() {
    TRIMTAB_CHECK(oldest_ != kNone, "nothing is stored that could leave");
    const std::uint32_t slot = oldest_;
    remove(slot);
    return slot;
  }
  std::int64_t count() const { return count_; }

 private:
  struct Link {
    std::uint32_t newer = kNone, older = kNone;
  };
  std::vector<Link> links_;
  std::uint32_t newest_ = kNone, oldest_ = kNone;
  std::int64_t count_ = 0;
};

class Lru final : public Eviction {
 public:
  void stored(std::uint32_t slot, std::uint64_t /*id*/) override { order_.push(slot); }
  void used(std::uint32_t slot) override { order_.touch(slot); }
  std::uint32_t leave() override { return order_.pop(); }

 private:
  Order order_;
};

class Fifo final : public Eviction {
 public:
  void stored(std::uint32_t slot, std::uint64_t /*id*/) override { order_.push(slot); }
  void used(std::uint32_t /*slot*/) override {}
  std::uint32_t leave() override { return order_.pop(); }

 private:
  Order order_;
};

class S3Fifo final : public Eviction {
 public:
  explicit S3Fifo(std::int64_t capacity)
      : small_most_(std::max<std::int64_t>(capacity / 10, 1)), ghosts_most_(capacity) {}

  void stored(std::uint32_t slot, std::uint64_t id) override {
    if (slot >= blocks_.size()) blocks_.resize(slot + 1);
    blocks_[slot] = {id, 0};
    (ghosts_.erase(id) > 0 ? main_ : small_).push(slot);
  }
  void used(std::uint32_t slot) override {
    blocks_[slot].uses = static_cast<std::uint8_t>(std::min(blocks_[slot].uses + 1, 3));
  }
  std::uint32_t leave() override {
    while (true) {
      if (main_.count() == 0 || small_.count() > small_most_) {
        const std::uint32_t slot = small_.pop();
        if (blocks_[slot].uses == 0) {
          remember(blocks_[slot].id);
          return slot;
        }
        blocks_[slot].uses = 0;
        main_.push(slot);
      } else {
        const std::uint32_t slot = main_.pop();
        if (blocks_[slot].uses == 0) return slot;
        --blocks_[slot].uses;
        main_.push(slot);
      }
    }
  }

 private:
  struct Block {
    std::uint64_t id = 0;
    std::uint8_t uses = 0;  // since it was stored or went round, at most 3
  };
  void remember(std::uint64_t id) {
    if (ghosts_.insert(id).second) ghost_order_.push_back(id);
    // Ids that came back are in the order still, so the bound is one of the order.
    while (static_cast<std::int64_t>(ghost_order_.size()) > ghosts_most_) {
      ghosts_.erase(ghost_order_.front());
      ghost_order_.pop_front();
    }
  }

  std::int64_t small_most_, ghosts_most_;
  Order small_, main_;
  std::vector<Block> blocks_;
  std::unordered_set<std::uint64_t> ghosts_;  // looked up, never iterated
  std::deque<std::uint64_t> ghost_order_;
};

constexpr std::string_view kNames[] = {"lru", "fifo", "s3_fifo"};

}  // namespace

std::span<const std::string_view> eviction_names() { return kNames; }

base::Result<std::unique_ptr<Eviction>> make_eviction(std::string_view name, std::int64_t capacity_blocks) {
  if (name == "lru") return std::make_unique<Lru>();
  if (name == "fifo") return std::make_unique<Fifo>();
  if (name == "s3_fifo") return std::make_unique<S3Fifo>(capacity_blocks);
  const std::string nearest = base::nearest(std::string(name), kNames);
  return base::fail(base::Code::kInvalidArgument,
                    "there is no eviction order \"" + std::string(name) + "\"" +
                        (nearest.empty() ? "" : "; did you mean \"" + nearest + "\"?") +
                        " Known: lru, fifo, s3_fifo",
                    "simulation.storage.eviction");
}

}  // namespace trimtab::sim
