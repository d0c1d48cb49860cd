#pragma once

#include <cstdint>
#include <vector>

#include "base/units.h"
#include "model/ids.h"
#include "model/scenario.h"
#include "sim/outcomes.h"

namespace trimtab::sim {

using base::Nanos;

/// The network of each machine, as one link that pool reads and hand-overs take in turn: a transfer begins
/// when those before it are through, and has all of the bandwidth then. Under equal sharing they would end in
/// the same order and none later than the last does here; how long a link is busy is the same. Both
/// directions together are one link. `machine_ranks` ranks of an engine are one machine.
///
/// Weakness: switches between machines never limit; what storage nodes send is theirs (StorageModel).
class MachineLinks {
 public:
  explicit MachineLinks(const model::Scenario& scenario);

  /// False: networks never limit, and nothing below may be called.
  bool modelled() const { return bytes_per_s_ > 0; }

  struct Transfer {
    Nanos begins, ends;
  };
  /// Into a prefill rank's machine, as hits from the pool.
  Transfer read(model::RankId to, double bytes, Nanos now);
  /// From a prefill rank to a decode rank: both links are busy together.
  Transfer hand_over(model::RankId from, model::RankId to, double bytes, Nanos now);
  /// What went layer by layer while more was computed: it keeps others waiting, and nobody waits for it.
  void sent_earlier(model::RankId from, double bytes, Nanos now);
  void received_earlier(model::RankId to, double bytes, Nanos now);

  /// `span`: of the run.
  NetworkOutcome outcome(Nanos span) const;

 private:
  struct Link {
    Nanos free, busy;
    double bytes = 0;
  };
  Link& prefill(model::RankId rank) {
    return links_[rank.engine.value * prefill_machines_ + rank.rank / ranks_];
  }
  Link& decode(model::RankId rank) {
    return links_[decode_first_ + rank.engine.value * decode_machines_ + rank.rank / ranks_];
  }
  Nanos span_of(double bytes) const { return Nanos{static_cast<std::int64_t>(bytes / bytes_per_s_ * 1e9)}; }
  void take(Link& link, Nanos from, double bytes) const;

  double bytes_per_s_;
  std::uint32_t ranks_, prefill_machines_, decode_machines_;  // machines: of one engine
  std::size_t decode_first_;
  std::vector<Link> links_;
  Distribution wait_;
};

}  // namespace trimtab::sim
