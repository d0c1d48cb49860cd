#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "base/error.h"
#include "cluster/records.h"
#include "policy/decode/policy.h"

namespace trimtab::shadow {

/// How even the decode ranks were over time: of the busiest rank over the mean, weighted by how long it stood
/// so.
struct Evenness {
  double kv_peak_over_mean = 1;
  double running_peak_over_mean = 1;
  double seconds = 0;  // with requests running
};

struct DecodeReplayReport {
  std::uint64_t decisions = 0;  // placements in the log
  std::uint64_t changed = 0;    // the other policy would have chosen another rank for
  std::uint64_t held = 0;       // the other policy would have let wait instead
  Evenness recorded, replayed;
  base::Nanos span;
  struct Change {
    cluster::RequestId request;
    base::Nanos at;
    cluster::RankId recorded, replayed;
    std::string reason;
  };
  std::vector<Change> changes;  // the first few
};

/// Decides a recorded run's decode placements again, by another policy. Two accounts go through the log: one
/// follows what was placed, the other what the policy would have placed, each with the same requests, tokens
/// and ends. So the second is a counterfactual of placement alone: that a better balance would have ended
/// requests earlier, or that a held request would have started later, is not in it (trimtab simulate has
/// both). Fed with a log afterwards it is `trimtab replay`, fed while it is written the shadow policy of
/// `trimtab serve`.
class DecodeReplay {
 public:
  /// `capacity`: of a rank; the log does not hold it. Errors: unknown policy.
  static base::Result<DecodeReplay> make(const policy::DecodeConfig& config, policy::DecodeCapacity capacity,
                                         std::size_t changes_max = 10);

  /// Records in the order of the log.
  void record(const cluster::Record& record);
  /// A token went to the client from a decode rank.
  void token(cluster::RequestId id, base::Nanos at);
  DecodeReplayReport report() const;

 private:
  struct Account {
    std::unique_ptr<policy::DecodePolicy> policy;
    double kv_weighted = 0, running_weighted = 0, seconds = 0;
    void pass(double seconds);
    Evenness evenness() const;
  };
  DecodeReplay() = default;
  void know(cluster::RankId rank);
  void member(const cluster::MembershipRecord& member, base::Nanos now);
  void lost(model::EngineId group, base::Nanos now);
  void advance(base::Nanos now);
  void placed(const cluster::Record& record, const cluster::DecodeRecord& decision);
  void ended(cluster::RequestId id, base::Nanos now);

  Account recorded_, replayed_;
  policy::DecodeCapacity capacity_;
  std::size_t changes_max_ = 0;
  std::set<cluster::RankId> joined_, ranks_;  // there; and taking requests, because their group is whole
  std::map<cluster::RequestId, std::pair<cluster::RankId, cluster::RankId>> places_;  // recorded, replayed
  std::optional<base::Nanos> first_;
  base::Nanos now_;
  DecodeReplayReport report_;
};

}  // namespace trimtab::shadow
