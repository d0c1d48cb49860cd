#pragma once

#include <cstdint>

#include "base/units.h"

namespace trimtab::sim {

/// Steps that were under way when their group died, and how long they had been.
struct LostSteps {
  std::uint64_t count = 0;
  base::Nanos span;
  void add(base::Nanos part) {
    ++count;
    span += part;
  }
};

/// Where the time of steps goes, in nanoseconds (sums of them are exact enough in double). What an even
/// spread over the ranks would take is `ideal`; the rest is lost to one cause each, so the causes add up to
/// the whole.
struct StepTimes {
  double ideal = 0;             // fixed part, mean attention, mean requests: nothing waits, nothing is padded
  double attention_wait = 0;    // for the rank with the most KV (decode) or attention (prefill)
  double batch_wait = 0;        // for the rank with the most requests (decode) or other work (prefill)
  double padding = 0;           // batches padded to a captured graph size
  double expert_imbalance = 0;  // MoE layers wait for the busiest expert rank: what no fresh plan would avoid
  double expert_drift = 0;      // the same: what a plan made from the loads of the moment would avoid
  double expert_moves = 0;      // steps stand still while copies of experts move
  double expert_copies = 0;     // weights of redundant copies are read too

  double sum() const {
    return ideal + attention_wait + batch_wait + padding + expert_imbalance + expert_drift + expert_moves +
           expert_copies;
  }
  base::Nanos whole() const { return base::Nanos{static_cast<std::int64_t>(sum())}; }
  /// Ideal over actual: 1 when nothing is lost, and when there were no steps.
  double share() const { return sum() > 0 ? ideal / sum() : 1.0; }

  StepTimes& add(const StepTimes& other, double times = 1.0) {
    ideal += other.ideal * times;
    attention_wait += other.attention_wait * times;
    batch_wait += other.batch_wait * times;
    padding += other.padding * times;
    expert_imbalance += other.expert_imbalance * times;
    expert_drift += other.expert_drift * times;
    expert_moves += other.expert_moves * times;
    expert_copies += other.expert_copies * times;
    return *this;
  }
};

}  // namespace trimtab::sim
