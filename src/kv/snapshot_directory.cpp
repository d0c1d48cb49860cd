#include "kv/snapshot_directory.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace trimtab::kv {

std::string_view to_string(Applied applied) {
  switch (applied) {
    case Applied::kApplied:
      return "applied";
    case Applied::kRepeated:
      return "repeated";
    case Applied::kGap:
      return "gap";
    case Applied::kDead:
      return "dead";
    case Applied::kOld:
      return "old";
    case Applied::kRefused:
      return "refused";
  }
  return "unknown";
}

SnapshotDirectory::Machine* SnapshotDirectory::find_or_make(HostId id) {
  const auto found = machines_.find(id);
  if (found != machines_.end()) return &found->second;
  if (machines_.size() >= limits_.machines) {
    if (dead_.empty()) return nullptr;
    machines_.erase(dead_.front());
    dead_.pop_front();
  }
  return &machines_[id];
}

void SnapshotDirectory::drop_entries(HostId id, Machine& machine) {
  while (!machine.held.empty()) {
    const SnapshotName name = machine.held.begin()->first;
    hide(id, machine, name);
  }
}

void SnapshotDirectory::restart(HostId id, Machine& machine, std::uint64_t epoch) {
  drop_entries(id, machine);
  if (machine.dead) std::erase(dead_, id);
  if (machine.epoch != 0) ++counts_.restarts;
  // A question under way stays: whatever life answers it, the answer was made after the question.
  const std::uint64_t ticket = machine.ticket;
  machine = Machine{};
  machine.epoch = epoch;
  machine.ticket = ticket;
}

void SnapshotDirectory::show(HostId id, Machine& machine, const SnapshotName& name, std::uint64_t sequence) {
  if (entries_ >= limits_.entries && !machine.held.contains(name)) {
    ++counts_.entries_refused;
    return;
  }
  const auto [at, fresh] = machine.held.insert_or_assign(name, sequence);
  if (!fresh) return;
  ++entries_;
  std::vector<HostId>& holders = holders_[name];
  holders.insert(std::lower_bound(holders.begin(), holders.end(), id), id);
}

void SnapshotDirectory::hide(HostId id, Machine& machine, const SnapshotName& name) {
  if (machine.held.erase(name) == 0) return;
  --entries_;
  const auto found = holders_.find(name);
  std::erase(found->second, id);
  if (found->second.empty()) holders_.erase(found);
}

void SnapshotDirectory::take_news(HostId id, Machine& machine, const SnapshotDelta& delta) {
  for (std::uint64_t i = machine.sequence + 1 - delta.first; i < delta.changes.size(); ++i) {
    const SnapshotChange& change = delta.changes[i];
    ++machine.sequence;
    if (change.added) {
      show(id, machine, change.name, machine.sequence);
    } else {
      hide(id, machine, change.name);
    }
  }
}

// What waited and has its turn now, or was told by others meanwhile.
void SnapshotDirectory::take_waiting(HostId id, Machine& machine) {
  while (!machine.waiting.empty() && machine.waiting.begin()->first <= machine.sequence + 1) {
    const auto node = machine.waiting.extract(machine.waiting.begin());
    machine.waiting_changes -= node.mapped().changes.size();
    take_news(id, machine, node.mapped());
  }
  if (machine.waiting.empty()) machine.ticket = 0;  // nothing is missing any more
}

Applied SnapshotDirectory::wait(Machine& machine, const SnapshotDelta& delta) {
  const auto same = machine.waiting.find(delta.first);
  std::size_t changes = delta.changes.size();
  if (same != machine.waiting.end()) {
    if (same->second.changes.size() >= changes) return Applied::kRepeated;
    changes -= same->second.changes.size();
  }
  // Beyond the limit it is lost, which the list will make good; that something is missing must be remembered,
  // so the first one always stays.
  if (machine.waiting_changes + changes > limits_.waiting_changes && !machine.waiting.empty())
    return Applied::kGap;
  machine.waiting[delta.first] = delta;
  machine.waiting_changes += changes;
  return Applied::kGap;
}

Applied SnapshotDirectory::apply(const SnapshotDelta& delta) {
  const std::uint64_t count = delta.changes.size();
  if (delta.epoch == 0 || delta.first == 0 || delta.first > UINT64_MAX - count - 1) return Applied::kRefused;
  if (count > limits_.waiting_changes) return Applied::kRefused;
  Machine* machine = find_or_make(delta.machine);
  if (machine == nullptr) return Applied::kRefused;
  if (delta.epoch < machine->epoch) return Applied::kOld;
  if (delta.epoch > machine->epoch) restart(delta.machine, *machine, delta.epoch);
  if (machine->dead) {
    machine->speaks_though_dead = true;
    return Applied::kDead;
  }
  if (delta.first + count <= machine->sequence + 1) return Applied::kRepeated;
  if (delta.first > machine->sequence + 1) return wait(*machine, delta);
  take_news(delta.machine, *machine, delta);
  take_waiting(delta.machine, *machine);
  return Applied::kApplied;
}

Applied SnapshotDirectory::apply(const SnapshotList& list) {
  const auto found = machines_.find(list.machine);
  if (found == machines_.end() || list.ticket == 0 || found->second.ticket != list.ticket)
    return Applied::kOld;
  Machine& machine = found->second;
  if (list.epoch < machine.epoch || list.epoch == 0) return Applied::kOld;
  machine.ticket = 0;
  if (list.epoch > machine.epoch) restart(list.machine, machine, list.epoch);
  // Deltas may have brought more than the list has, since it was made.
  if (!machine.dead && list.sequence < machine.sequence) return Applied::kRepeated;
  drop_entries(list.machine, machine);
  if (machine.dead) std::erase(dead_, list.machine);
  machine.dead = machine.speaks_though_dead = false;
  machine.sequence = list.sequence;
  for (const SnapshotName& name : list.names) show(list.machine, machine, name, list.sequence);
  take_waiting(list.machine, machine);
  ++counts_.lists_applied;
  return Applied::kApplied;
}

std::optional<std::uint64_t> SnapshotDirectory::ask(HostId id) {
  Machine* machine = find_or_make(id);
  if (machine == nullptr) return {};
  if (machine->ticket == 0) machine->ticket = ++last_ticket_;
  return machine->ticket;
}

bool SnapshotDirectory::needs_list(HostId id) const {
  const auto found = machines_.find(id);
  return found != machines_.end() && (!found->second.waiting.empty() || found->second.speaks_though_dead);
}

void SnapshotDirectory::remove_machine(HostId id) {
  const auto found = machines_.find(id);
  if (found == machines_.end() || found->second.dead) return;
  drop_entries(id, found->second);
  const std::uint64_t epoch = found->second.epoch;
  found->second = Machine{};  // a question under way is void: its answer may be from before the death
  found->second.epoch = epoch;
  found->second.dead = true;
  dead_.push_back(id);
  ++counts_.deaths;
}

bool SnapshotDirectory::withdraw(const SnapshotName& name, const Holder& seen) {
  const auto found = machines_.find(seen.machine);
  if (found == machines_.end() || found->second.epoch != seen.epoch) return false;
  const auto held = found->second.held.find(name);
  if (held == found->second.held.end() || held->second > seen.sequence) return false;
  hide(seen.machine, found->second, name);
  ++counts_.withdrawn;
  return true;
}

std::vector<SnapshotDirectory::Holder> SnapshotDirectory::holders(const SnapshotName& name) const {
  std::vector<Holder> out;
  const auto found = holders_.find(name);
  if (found == holders_.end()) return out;
  for (const HostId id : found->second) {
    const Machine& machine = machines_.at(id);
    out.push_back({id, machine.epoch, machine.sequence});
  }
  return out;
}

std::vector<std::uint32_t> SnapshotDirectory::endpoints(std::span<const BlockKey> keys, BlockKey layout,
                                                        std::uint32_t look_back) const {
  std::vector<std::uint32_t> out;
  const auto end = static_cast<std::uint32_t>(keys.size());
  for (std::uint32_t blocks = end - std::min(end, look_back) + 1; blocks <= end; ++blocks)
    if (holders_.contains(snapshot_name(keys, blocks, layout))) out.push_back(blocks);
  return out;
}

std::optional<SnapshotDirectory::Holder> SnapshotDirectory::machine(HostId id) const {
  const auto found = machines_.find(id);
  if (found == machines_.end() || found->second.dead) return {};
  return Holder{id, found->second.epoch, found->second.sequence};
}

std::vector<SnapshotName> SnapshotDirectory::names_of(HostId id) const {
  std::vector<SnapshotName> names;
  const auto found = machines_.find(id);
  if (found == machines_.end()) return names;
  for (const auto& [name, sequence] : found->second.held) names.push_back(name);
  return names;
}

SnapshotDirectory::Holder choose_holder(std::span<const SnapshotDirectory::Holder> holders, HostId own,
                                        const std::map<HostId, std::uint32_t>& fetches_under_way) {
  TRIMTAB_CHECK(!holders.empty(), "nobody holds the state");
  const auto load = [&](const SnapshotDirectory::Holder& holder) {
    if (holder.machine == own) return std::int64_t{-1};
    const auto found = fetches_under_way.find(holder.machine);
    return found == fetches_under_way.end() ? std::int64_t{0} : std::int64_t{found->second};
  };
  return *std::min_element(holders.begin(), holders.end(), [&](const auto& a, const auto& b) {
    return std::pair(load(a), a.machine) < std::pair(load(b), b.machine);
  });
}

}  // namespace trimtab::kv
