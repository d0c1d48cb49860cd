#pragma once

#include <cstdint>
#include <vector>

#include "cluster/events.h"
#include "model/cluster_config.h"

namespace trimtab::cluster {

/// Who is there. The ranks of one engine step together (every layer is a global synchronisation; system
/// facts, section 7), so a rank that dies stops its whole group: the group is out until each of its ranks has
/// joined again, in whatever order the losses of the old ones and the joins of the new ones arrive. Encoders
/// stand alone.
class Membership {
 public:
  explicit Membership(const model::ClusterConfig& config);

  /// In the configuration at all.
  bool known(Place place) const;
  /// A new incarnation. True when the group (or the encoder) serves from now on.
  bool join(Place place, std::int64_t blocks_total);
  /// True when this ended the service of its group (then everything its ranks held is gone) or of its
  /// encoder.
  bool lose(Place place);
  void drain(model::Role role, EngineId engine, bool on);

  /// Every rank of the group is there, all of one formation; for vision: any encoder of the machine.
  bool serving(model::Role role, EngineId engine) const;
  /// Serving and not draining: may be given new work.
  bool open(model::Role role, EngineId engine) const;
  bool draining(model::Role role, EngineId engine) const;
  /// This very rank or encoder may be given new work.
  bool open(Place place) const;
  /// What this place says counts: it is there, and its group has not been broken since it joined.
  bool heard(Place place) const;
  std::int64_t blocks_total(Place place) const;

  /// Of a place that is known, in the order of Place: tables by place are vectors.
  std::size_t index(Place place) const;
  std::size_t places() const { return begins_.back(); }
  /// Those of this role; its first index is where the role before it ends.
  std::size_t places(model::Role role) const;

  std::uint32_t engines(model::Role role) const;
  std::uint32_t ranks(model::Role role) const;  // per engine; encoders per machine
  /// Every engine, group and encoder of the configuration serves.
  bool complete() const;

 private:
  // kOld: still connected, but of a formation that a loss has broken.
  enum class Presence : std::uint8_t { kAbsent, kOld, kJoined };
  struct Member {
    Presence presence = Presence::kAbsent;
    std::int64_t blocks_total = 0;
  };
  struct Group {
    std::vector<Member> members;
    bool draining = false;
  };
  const std::vector<Group>& groups(model::Role role) const { return roles_[static_cast<std::size_t>(role)]; }
  const Group* group(model::Role role, EngineId engine) const;
  const Member* member(Place place) const;

  std::vector<std::vector<Group>> roles_;  // by Role, then engine
  std::vector<std::size_t> begins_;        // of the indices of each role, and the end
  std::vector<std::size_t> widths_;        // members of a group
};

}  // namespace trimtab::cluster
