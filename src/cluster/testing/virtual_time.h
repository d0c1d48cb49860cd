#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "base/units.h"
#include "cluster/events.h"

/// Virtual time for tests of the cluster machine: a loop, and links with latency that keep their order.
namespace trimtab::cluster::testing {

/// What is to happen when; events of one instant in the order they were asked for.
class Loop {
 public:
  Nanos now() const { return now_; }
  void at(Nanos when, std::function<void()> what) {
    queue_.emplace(std::pair{std::max(when, now_), sequence_++}, std::move(what));
  }
  void after(Nanos span, std::function<void()> what) { at(now_ + span, std::move(what)); }
  /// False when nothing is left.
  bool run_one() {
    if (queue_.empty()) return false;
    auto first = queue_.extract(queue_.begin());
    now_ = first.key().first;
    first.mapped()();
    return true;
  }

 private:
  std::map<std::pair<Nanos, std::uint64_t>, std::function<void()>> queue_;
  Nanos now_;
  std::uint64_t sequence_ = 0;
};

/// One connection between the host and a place. Messages keep their order; those of a cut connection are
/// lost.
class Link {
 public:
  Link(Loop& loop, base::Prng& prng) : loop_(loop), prng_(prng) {}

  void to_engine(std::function<void()> deliver) { send(down_, std::move(deliver)); }
  void to_host(std::function<void()> deliver) { send(up_, std::move(deliver)); }
  void cut() { ++epoch_; }

 private:
  void send(Nanos& last, std::function<void()> deliver) {
    const Nanos latency{20'000 + static_cast<std::int64_t>(prng_.below(400'000))};
    last = std::max(last, loop_.now() + latency);
    loop_.at(last, [this, epoch = epoch_, deliver = std::move(deliver)] {
      if (epoch == epoch_) deliver();
    });
  }

  Loop& loop_;
  base::Prng& prng_;
  std::uint64_t epoch_ = 0;
  Nanos down_, up_;
};

/// What went wrong in a run; tests expect none.
using Violations = std::vector<std::string>;

}  // namespace trimtab::cluster::testing
