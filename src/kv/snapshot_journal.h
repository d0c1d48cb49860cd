#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "base/ring.h"
#include "kv/snapshot_name.h"

namespace trimtab::kv {

/// A machine: its engines share the host memory that snapshots lie in.
using HostId = base::Id<struct HostTag>;

/// One snapshot more or less on a machine.
struct SnapshotChange {
  bool added = false;
  SnapshotName name;

  bool operator==(const SnapshotChange&) const = default;
  template <class A>
  void visit(A& a) {
    a(added, name);
  }
};

/// Changes of one machine in order. Every change has its own number, from 1 in each epoch, so that deltas may
/// be cut anywhere, repeated and overlap.
struct SnapshotDelta {
  HostId machine;
  std::uint64_t epoch = 0;
  std::uint64_t first = 0;  // number of the first change
  std::vector<SnapshotChange> changes;

  template <class A>
  void visit(A& a) {
    a(machine, epoch, first, changes);
  }
};

/// All snapshots of a machine after change `sequence`.
struct SnapshotList {
  HostId machine;
  std::uint64_t epoch = 0;
  std::uint64_t sequence = 0;
  std::uint64_t ticket = 0;  // of the question that this answers
  std::vector<SnapshotName> names;

  template <class A>
  void visit(A& a) {
    a(machine, epoch, sequence, ticket, names);
  }
};

/// The machine's side of the directory: what it holds, and its latest changes.
///
/// An epoch is one life of the process that holds the snapshots; it must be larger than those of the lives
/// before it (a counter kept on disk, say), since host memory does not survive a restart.
class SnapshotJournal {
 public:
  SnapshotJournal(HostId machine, std::uint64_t epoch, std::size_t recent_max = 4096)
      : machine_(machine), epoch_(epoch), recent_(recent_max) {}

  /// False, and no change, when it is held (or not held) already.
  bool add(const SnapshotName& name);
  bool remove(const SnapshotName& name);

  /// The changes after `sequence`, at most `changes_max`; nothing when some of them are too long ago (or have
  /// not happened: another epoch's number), so that only the list helps.
  std::optional<SnapshotDelta> since(std::uint64_t sequence, std::size_t changes_max = SIZE_MAX) const;
  SnapshotList list(std::uint64_t ticket) const;

  HostId machine() const { return machine_; }
  std::uint64_t epoch() const { return epoch_; }
  std::uint64_t sequence() const { return sequence_; }

 private:
  void note(bool added, const SnapshotName& name);

  HostId machine_;
  std::uint64_t epoch_;
  std::uint64_t sequence_ = 0;
  std::set<SnapshotName> held_;
  base::Ring<SnapshotChange> recent_;
};

}  // namespace trimtab::kv
