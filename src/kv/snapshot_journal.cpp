#include "kv/snapshot_journal.h"

#include <algorithm>

namespace trimtab::kv {

void SnapshotJournal::note(bool added, const SnapshotName& name) {
  ++sequence_;
  recent_.push_dropping({added, name});
}

bool SnapshotJournal::add(const SnapshotName& name) {
  if (!held_.insert(name).second) return false;
  note(true, name);
  return true;
}

bool SnapshotJournal::remove(const SnapshotName& name) {
  if (held_.erase(name) == 0) return false;
  note(false, name);
  return true;
}

std::optional<SnapshotDelta> SnapshotJournal::since(std::uint64_t sequence, std::size_t changes_max) const {
  if (sequence > sequence_ || sequence_ - sequence > recent_.size()) return {};
  SnapshotDelta delta{machine_, epoch_, sequence + 1, {}};
  const auto behind = static_cast<std::size_t>(sequence_ - sequence);
  const std::size_t from = recent_.size() - behind;
  for (std::size_t i = 0; i < std::min(behind, changes_max); ++i) delta.changes.push_back(recent_[from + i]);
  return delta;
}

SnapshotList SnapshotJournal::list(std::uint64_t ticket) const {
  return {machine_, epoch_, sequence_, ticket, {held_.begin(), held_.end()}};
}

}  // namespace trimtab::kv
