#include "kv_pool/store_report.h"

namespace trimtab::kv_pool {

using kv_store::MapMember;
using kv_store::TargetId;
using Role = PoolReport::Role;

namespace {

Role role_of(const MapMember& member) {
  if (member.state == MapMember::State::kGone) return Role::kGone;
  return member.state == MapMember::State::kLeaving ? Role::kLeaving : Role::kIn;
}

}  // namespace

PoolReport report_on(kv_store::StripedStore& store, const kv_store::MapRecord& opened_by,
                     std::span<const std::string> names, std::uint64_t block_bytes, base::Nanos now) {
  const kv_store::MapRecord& record =
      store.map_keeper() != nullptr ? store.map_keeper()->record() : opened_by;
  PoolReport report;
  report.block_bytes = block_bytes;
  const kv_store::StoreIndex::Tally tally = store.index().tally(store.map());
  report.blocks = tally.blocks;
  report.whole = tally.whole;
  report.degraded = tally.degraded;
  report.unreadable = tally.unreadable;
  report.strangers = store.index().strangers();
  report.may_lose = store.map().losses();
  report.map_version = record.version;
  report.map_settled = store.map_settled() ? 1 : 0;
  for (TargetId id = 0; id < store.channels().count(); ++id) {
    PoolReport::Target& target = report.targets.emplace_back();
    if (id < record.members.size()) {
      target.place = record.members[id].place;
      target.role = role_of(record.members[id]);
    }
    if (id < names.size()) target.place = names[id];
    if (target.role == Role::kGone) continue;
    const bool answers = store.channels().usable(id) && store.index().alive(id);
    target.health = answers ? name(store.channels().health(id)) : "dead";
    target.shards = tally.shards[id];
    if (answers) {
      if (const auto space = store.space(id)) {
        target.used_bytes = space->used_bytes;
        target.capacity_bytes = space->capacity_bytes;
      }
    }
    target.trouble = store.trouble(id);  // last: a server told it with the room
  }
  report.repairs_waiting = store.repairs_waiting();
  report.old_copies = store.old_copies();
  if (!store.map_settled()) report.moving = 1;
  if (!store.walk() || store.walk()->done()) return report;
  report.moving = 1;
  const kv_store::Walk::Progress progress = store.walk()->progress(now);
  report.done_ratio = progress.done_ratio;
  report.left_ns = progress.left.value;
  return report;
}

}  // namespace trimtab::kv_pool
