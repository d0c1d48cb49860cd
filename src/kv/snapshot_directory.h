#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kv/snapshot_journal.h"

namespace trimtab::kv {

/// What became of a message of a machine.
enum class Applied : std::uint8_t {
  kApplied,   // its news are in the directory
  kRepeated,  // it had no news
  kGap,       // changes before it are missing: it waits for them; ask for the list if they do not come
  kDead,      // its machine was removed: only a list asked for since then brings it back
  kOld,       // of an earlier life of the machine, or a list that nobody asked for
  kRefused,   // a limit was reached, or the message makes no sense
};
std::string_view to_string(Applied applied);

/// The entrypoint's knowledge of which machine holds which snapshot (system facts, section 10). Pure: the
/// host brings messages, in any order, some lost or twice, and says when a machine is dead.
///
/// What it shows of a living machine is exactly what that machine held after change `Holder::sequence` of
/// its present life, less what was withdrawn: an old truth, never a mixture. Messages that come too early
/// wait (bounded); a list closes any gap; a new epoch drops everything of the old one, since host memory
/// does not survive a restart; a machine that dies goes at once and cannot be brought back by messages that
/// were under way. Weakness: a change that is on its way is not known yet, so a fetch may miss. That costs
/// one block in `approximate` mode, and `withdraw` keeps it from happening twice.
///
/// Cost: one hash lookup per name asked for; a machine's removal takes as long as it has entries.
class SnapshotDirectory {
 public:
  struct Limits {
    std::size_t machines = 4096;            // dead ones are forgotten first, then new ones are refused
    std::size_t entries = 1 << 20;          // (machine, name); those beyond it are not shown
    std::size_t waiting_changes = 1 << 14;  // of one machine, behind a gap
  };
  struct Holder {
    HostId machine;
    std::uint64_t epoch = 0;
    std::uint64_t sequence = 0;

    bool operator==(const Holder&) const = default;
  };
  struct Counts {
    std::uint64_t lists_applied = 0, restarts = 0, deaths = 0;
    std::uint64_t entries_refused = 0;  // the directory was full
    std::uint64_t withdrawn = 0;
  };

  explicit SnapshotDirectory(Limits limits) : limits_(limits) {}
  SnapshotDirectory() : SnapshotDirectory(Limits{}) {}

  Applied apply(const SnapshotDelta& delta);
  Applied apply(const SnapshotList& list);
  /// The ticket to ask this machine for its list with; the same until a list came or the machine died or
  /// closed the gap itself. Nothing when the table of machines is full.
  std::optional<std::uint64_t> ask(HostId machine);
  /// True while the machine's changes have a gap, or it speaks although it was removed.
  bool needs_list(HostId machine) const;
  /// All that the machine holds is gone, at once.
  void remove_machine(HostId machine);
  /// A fetch found nothing: the entry goes, unless it was added after what `seen` knew.
  bool withdraw(const SnapshotName& name, const Holder& seen);

  /// By machine; empty when nobody holds it.
  std::vector<Holder> holders(const SnapshotName& name) const;
  /// The block counts, at most keys.size(), at whose end somebody holds the state: sorted, for
  /// `HitQuery::snapshots`. Only the last `look_back` blocks are asked for (more than the hit rule would go
  /// back: window x layers tokens).
  std::vector<std::uint32_t> endpoints(std::span<const BlockKey> keys, BlockKey layout,
                                       std::uint32_t look_back) const;
  /// Where the directory stands with a machine: nothing when it is unknown or dead.
  std::optional<Holder> machine(HostId machine) const;
  /// What a machine is shown to hold, sorted.
  std::vector<SnapshotName> names_of(HostId machine) const;

  std::size_t entries() const { return entries_; }
  std::size_t machines() const { return machines_.size(); }
  const Counts& counts() const { return counts_; }

 private:
  struct Machine {
    std::uint64_t epoch = 0, sequence = 0;
    bool dead = false, speaks_though_dead = false;
    std::uint64_t ticket = 0;                        // of the question under way; 0: none
    std::map<SnapshotName, std::uint64_t> held;      // and the number of the change that said so
    std::map<std::uint64_t, SnapshotDelta> waiting;  // behind a gap, by first change
    std::size_t waiting_changes = 0;
  };

  Machine* find_or_make(HostId id);
  void restart(HostId id, Machine& machine, std::uint64_t epoch);
  void drop_entries(HostId id, Machine& machine);
  void show(HostId id, Machine& machine, const SnapshotName& name, std::uint64_t sequence);
  void hide(HostId id, Machine& machine, const SnapshotName& name);
  void take_news(HostId id, Machine& machine, const SnapshotDelta& delta);
  void take_waiting(HostId id, Machine& machine);
  Applied wait(Machine& machine, const SnapshotDelta& delta);

  Limits limits_;
  std::map<HostId, Machine> machines_;
  std::deque<HostId> dead_;                                        // in order of death, to be forgotten first
  std::unordered_map<SnapshotName, std::vector<HostId>> holders_;  // each sorted
  std::size_t entries_ = 0;
  std::uint64_t last_ticket_ = 0;
  Counts counts_;
};

/// Where to fetch from: the own machine if it holds the state, else the one from which the fewest fetches are
/// under way (as far as the caller knows), the lowest number first. `holders` must not be empty.
SnapshotDirectory::Holder choose_holder(std::span<const SnapshotDirectory::Holder> holders, HostId own,
                                        const std::map<HostId, std::uint32_t>& fetches_under_way);

}  // namespace trimtab::kv
