#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cluster/testing/virtual_time.h"

namespace trimtab::cluster::testing {

/// What the model engines need of the world around them.
class Surroundings {
 public:
  virtual ~Surroundings() = default;
  virtual Loop& loop() = 0;
  virtual base::Prng& prng() = 0;
  /// Over the place's link. `positions`: where in its sequence each reported token stands.
  virtual void tell(Place from, Event event, std::map<RequestId, std::int64_t> positions = {}) = 0;
  virtual Link& link(Place place) = 0;
  virtual void violation(std::string what) = 0;
  /// How many tokens the request's answer has before it stops by itself.
  virtual std::int64_t stops_after(RequestId id) = 0;
  virtual TokenCount prompt(RequestId id) = 0;
  /// A prefill rank writes KV into a decode rank's reserved blocks.
  virtual void hand_over(RankId decode, std::uint64_t generation, RequestId id) = 0;
  virtual void granted(RequestId id, std::uint64_t decode_generation) = 0;
  virtual double hand_over_failures() = 0;
};

/// A group of ranks that step together: messages are read between steps, a lost rank stops them all, and a
/// restart brings every rank back by itself, in any order.
class VirtualGroup {
 public:
  VirtualGroup(model::Role role, EngineId engine, std::uint32_t ranks, std::int64_t blocks,
               Surroundings& world)
      : role_(role), engine_(engine), blocks_(blocks), world_(world), alive_(ranks, false) {}
  virtual ~VirtualGroup() = default;

  Place place(std::uint32_t rank) const { return {role_, engine_, rank}; }
  std::uint32_t ranks() const { return static_cast<std::uint32_t>(alive_.size()); }
  std::uint64_t generation() const { return generation_; }
  bool whole() const { return whole_; }

  void join_all() {
    for (std::uint32_t r = 0; r < ranks(); ++r) join(r);
  }

  /// A message for a rank; read when the step under way is over.
  void deliver(std::function<void()> message) {
    if (stepping_ || hung_ || !whole_) {
      inbox_.push_back(std::move(message));
    } else {
      message();
      kick();
    }
  }

  /// One rank dies. The others are stuck in their collective until the supervisor has ended them too.
  void lose(std::uint32_t rank) {
    if (!whole_) return;
    whole_ = false;
    base::Prng& prng = world_.prng();
    for (std::uint32_t r = 0; r < ranks(); ++r) {
      const Nanos dies = r == rank ? Nanos{0} : Nanos{static_cast<std::int64_t>(prng.below(30'000'000))};
      const Nanos back = dies + Nanos{1'000'000 + static_cast<std::int64_t>(prng.below(60'000'000))};
      world_.loop().after(dies, [this, r] {
        alive_[r] = false;
        world_.link(place(r)).cut();
        world_.tell(place(r), Lost{place(r)});
      });
      world_.loop().after(back, [this, r] { join(r); });
    }
  }

  /// Silent for a while, then answers late: what a lease is for.
  void hang(Nanos span) {
    if (!whole_ || hung_) return;
    hung_ = true;
    world_.loop().after(span, [this, generation = generation_] {
      if (generation != generation_) return;
      hung_ = false;
      drain_inbox();
    });
  }

 protected:
  virtual void clear() = 0;
  /// Starts a step if there is work: returns its duration, 0 without work.
  virtual Nanos begin_step() = 0;
  /// `reported`: the group is whole. Otherwise only what ranks still alive do to others' memory happens.
  virtual void end_step(bool reported) = 0;

  void kick() {
    if (stepping_ || hung_ || !whole_) return;
    const Nanos span = begin_step();
    if (span.value == 0) return;
    stepping_ = true;
    world_.loop().after(span, [this, generation = generation_] { step_over(generation); });
  }

  model::Role role_;
  EngineId engine_;
  std::int64_t blocks_;
  Surroundings& world_;
  std::vector<bool> alive_;

 private:
  void join(std::uint32_t rank) {
    // Only a whole new formation starts to work; its ranks may have joined long before one another.
    alive_[rank] = true;
    world_.tell(place(rank), Joined{place(rank), blocks_});
    fresh_ += 1;
    if (fresh_ < ranks()) return;
    fresh_ = 0;
    ++generation_;
    stepping_ = hung_ = false;
    clear();
    whole_ = true;
    inbox_.clear();  // sent to the formation before: those connections are gone
  }
  void step_over(std::uint64_t generation) {
    if (generation != generation_) return;
    stepping_ = false;
    end_step(whole_);
    if (!hung_) drain_inbox();
  }
  void drain_inbox() {
    if (!whole_) return;
    while (!inbox_.empty() && !stepping_ && !hung_) {
      auto message = std::move(inbox_.front());
      inbox_.pop_front();
      message();
    }
    kick();
  }

  bool whole_ = false, stepping_ = false, hung_ = false;
  std::uint32_t fresh_ = 0;
  std::uint64_t generation_ = 0;
  std::deque<std::function<void()>> inbox_;
};

}  // namespace trimtab::cluster::testing
