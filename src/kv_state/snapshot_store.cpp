#include "kv_state/snapshot_store.h"

#include <fmt/format.h>

#include <cstring>
#include <list>
#include <mutex>
#include <new>
#include <unordered_map>

#include "base/check.h"

namespace trimtab::kv_state {

struct SnapshotStore::Content {
  SnapshotName name;
  std::unique_ptr<std::byte[]> memory;
  std::size_t size = 0;
  std::uint64_t checksum = 0;
  std::uint32_t pins = 0;  // under the lock, like `held`
  bool held = false;       // under its name; else only references keep it

  std::span<const std::byte> bytes() const { return {memory.get(), size}; }
};

struct SnapshotStore::State {
  using Order = std::list<std::shared_ptr<Content>>;

  State(base::Bytes budget_bytes, HostId machine, std::uint64_t epoch)
      : budget(static_cast<std::size_t>(budget_bytes.value)), journal(machine, epoch) {}

  std::mutex mutex;
  const std::size_t budget;
  std::size_t used = 0, pinned = 0;  // bytes
  Order order;                       // oldest first
  std::unordered_map<SnapshotName, Order::iterator> places;
  kv::SnapshotJournal journal;
  SnapshotStats counts;

  // All of these are called with the lock held.

  bool renew(const SnapshotName& name) {
    const auto found = places.find(name);
    if (found == places.end()) return false;
    order.splice(order.end(), order, found->second);
    return true;
  }
  /// Room for `size` bytes, set aside as pinned; false, and nothing evicted, when references leave too
  /// little. `memory` becomes that of an evicted snapshot of the same size, if there is one: fresh pages cost
  /// more than what is copied into them.
  bool reserve(std::size_t size, std::unique_ptr<std::byte[]>& memory) {
    if (pinned + size > budget) return false;
    for (auto at = order.begin(); used + size > budget;) {
      TRIMTAB_CHECK(at != order.end(), "bytes are accounted that no snapshot has");
      const std::shared_ptr<Content> content = *at++;
      if (content->pins > 0) continue;
      drop(content->name);
      ++counts.evicted;
      if (content->size == size) memory = std::move(content->memory);
    }
    used += size;
    pinned += size;
    return true;
  }
  void drop(const SnapshotName& name) {
    const auto found = places.find(name);
    const std::shared_ptr<Content> content = *found->second;
    order.erase(found->second);
    places.erase(found);
    journal.remove(name);
    content->held = false;
    if (content->pins == 0) used -= content->size;
  }
  void pin(Content& content) {
    if (content.pins++ == 0) pinned += content.size;
  }
  void unpin(Content& content) {
    if (--content.pins > 0) return;
    pinned -= content.size;
    if (!content.held) used -= content.size;
  }
};

SnapshotStore::Lease::~Lease() {
  if (!content_) return;
  const std::lock_guard lock(state_->mutex);
  state_->unpin(*content_);
}
std::span<const std::byte> SnapshotStore::Lease::bytes() const { return content_->bytes(); }
std::uint64_t SnapshotStore::Lease::checksum() const { return content_->checksum; }
const SnapshotName& SnapshotStore::Lease::name() const { return content_->name; }

SnapshotStore::SnapshotStore(base::Bytes budget, HostId machine, std::uint64_t epoch)
    : state_(std::make_shared<State>(budget, machine, epoch)) {
  TRIMTAB_CHECK(budget.value >= 0 && epoch > 0);
}

base::Status SnapshotStore::put(const SnapshotName& name, std::span<const std::byte> content) {
  State& state = *state_;
  TRIMTAB_CHECK(!content.empty(), "a snapshot has content");
  auto fresh = std::make_shared<Content>();
  fresh->name = name;
  fresh->size = content.size();
  {
    const std::lock_guard lock(state.mutex);
    if (state.renew(name)) {
      ++state.counts.puts_present;
      return {};
    }
    if (!state.reserve(content.size(), fresh->memory)) {
      ++state.counts.puts_refused;
      const bool never = content.size() > state.budget;
      return base::fail(never ? base::Code::kTooLarge : base::Code::kResourceExhausted,
                        fmt::format("a snapshot of {} bytes does not fit into a budget of {} bytes, of which "
                                    "{} are referenced: raise the budget for window state",
                                    content.size(), state.budget, state.pinned),
                        "kv_state");
    }
  }
  if (!fresh->memory) fresh->memory.reset(new (std::nothrow) std::byte[content.size()]);
  if (fresh->memory) {
    std::memcpy(fresh->memory.get(), content.data(), content.size());
    fresh->checksum = kv::snapshot_checksum(name, content);
  }
  const std::lock_guard lock(state.mutex);
  state.pinned -= fresh->size;
  if (!fresh->memory || state.renew(name)) {  // another thread was faster
    state.used -= fresh->size;
    if (!fresh->memory)
      return base::fail(base::Code::kResourceExhausted, "the machine is out of memory", "kv_state");
    ++state.counts.puts_present;
    return {};
  }
  fresh->held = true;
  state.places[name] = state.order.insert(state.order.end(), fresh);
  state.journal.add(name);
  ++state.counts.puts;
  return {};
}

std::optional<SnapshotStore::Lease> SnapshotStore::find(const SnapshotName& name) {
  State& state = *state_;
  std::shared_ptr<Content> content;
  {
    const std::lock_guard lock(state.mutex);
    if (!state.renew(name)) {
      ++state.counts.not_found;
      return {};
    }
    content = state.order.back();
    state.pin(*content);
  }
  Lease lease(state_, content);
  const bool sound = kv::snapshot_checksum(name, content->bytes()) == content->checksum;
  const std::lock_guard lock(state.mutex);
  if (sound) {
    ++state.counts.found;
    return lease;
  }
  if (content->held) {
    state.drop(name);
    ++state.counts.corrupt;
  }
  ++state.counts.not_found;
  return {};
}

bool SnapshotStore::erase(const SnapshotName& name) {
  const std::lock_guard lock(state_->mutex);
  if (!state_->places.contains(name)) return false;
  state_->drop(name);
  return true;
}

std::optional<kv::SnapshotDelta> SnapshotStore::changes_since(std::uint64_t sequence) const {
  const std::lock_guard lock(state_->mutex);
  return state_->journal.since(sequence);
}
kv::SnapshotList SnapshotStore::list(std::uint64_t ticket) const {
  const std::lock_guard lock(state_->mutex);
  return state_->journal.list(ticket);
}
HostId SnapshotStore::machine() const { return state_->journal.machine(); }
std::uint64_t SnapshotStore::epoch() const { return state_->journal.epoch(); }

SnapshotStats SnapshotStore::stats() const {
  const std::lock_guard lock(state_->mutex);
  SnapshotStats stats = state_->counts;
  stats.snapshots = state_->places.size();
  stats.used_bytes = base::Bytes{static_cast<std::int64_t>(state_->used)};
  stats.pinned_bytes = base::Bytes{static_cast<std::int64_t>(state_->pinned)};
  return stats;
}

}  // namespace trimtab::kv_state
