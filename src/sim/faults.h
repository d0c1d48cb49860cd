#pragma once

#include <cstdint>
#include <vector>

#include "base/error.h"
#include "base/prng.h"
#include "model/scenario.h"
#include "sim/event_queue.h"

namespace trimtab::sim {

/// One fault at one target.
struct Strike {
  static constexpr std::uint32_t kAllRanks = UINT32_MAX;
  model::FaultKind kind = model::FaultKind::kEngine;
  model::Role role = model::Role::kPrefill;
  std::uint32_t target = 0;
  std::uint32_t rank = kAllRanks;
  bool loses_content = false;
  Nanos start_up;
};

/// When a fault plan strikes what. Every target of a random fault draws its gaps (exponential) from a stream
/// of its own, so a plan is the same whatever else a run does. Events are of the kind kFault, with the number
/// of the strike as `a` and a phase as `b`.
class FaultSchedule {
 public:
  enum Phase : std::uint64_t {
    kBegins = 0,
    kEnds = 1,
    kEmpty = 2
  };  // kEmpty: has a draining engine emptied?

  /// Errors: targets and ranks that the scenario does not have, by the plan's line.
  static base::Status check(const model::Scenario& scenario);
  explicit FaultSchedule(const model::Scenario& scenario);

  void start(EventQueue& queue);
  /// Engines that are not there at first.
  std::vector<Strike> absent() const;
  /// It strikes now; its end is scheduled.
  Strike begin(std::uint32_t number, EventQueue& queue);
  /// It is over; a random one is scheduled again.
  Strike end(std::uint32_t number, EventQueue& queue);
  const Strike& strike(std::uint32_t number) const { return entries_[number].strike; }

  /// Begins and ends still to come of faults with a given time: what stands still may go on then.
  std::uint64_t expected() const { return expected_; }
  /// The longest that a fault and the start after it last; for good does not count.
  Nanos longest() const { return longest_; }

 private:
  struct Entry {
    Strike strike;
    Nanos at, span, until;
    double gap_mean_s = 0;  // 0: it comes once, `at`
    bool draws_rank = false;
    std::uint32_t ranks = 1;
    base::Prng prng;
  };
  void add(const model::Fault& fault, std::uint32_t target, std::uint32_t rank, std::uint32_t ranks);
  void schedule(std::uint32_t number, EventQueue& queue);

  std::uint64_t seed_;
  std::vector<Entry> entries_;
  std::uint64_t expected_ = 0;
  Nanos longest_;
};

}  // namespace trimtab::sim
