// Changes of the pool: an operator's, and those of other processes.
#include <fmt/format.h>

#include <algorithm>

#include "kv_pool/store_report.h"
#include "kv_pool/store_tier.h"
#include "kv_pool/target_list.h"
#include "kv_store/absent_target.h"

namespace trimtab::kv_pool {

using kv_store::MapFound;
using kv_store::MapMember;
using kv_store::TargetId;

namespace {

constexpr base::Nanos kSecond{1'000'000'000};

tl::unexpected<base::Error> refuse(std::string message) {
  return base::fail(base::Code::kInvalidArgument, std::move(message), "pool");
}

}  // namespace

void StoreTier::follow_map(base::Nanos now) {
  // A pool that is full of blocks makes room for its map.
  if (store_->map_keeper()->full() && now - made_map_room_at_ >= kSecond) {
    made_map_room_at_ = now;
    make_room(now);
  }
  if (store_->newer_map() == nullptr || now < adopt_at_) return;
  adopt_at_ = now + kSecond;
  const auto adopted = adopt_newer(now);
  map_trouble_ = adopted ? "" : adopted.error().message;
}

base::Status StoreTier::adopt_newer(base::Nanos now) {
  const kv_store::MapRecord newer = *store_->newer_map();
  const kv_store::MapRecord& ours = store_->map_keeper()->record();
  if (newer.members.size() < ours.members.size() || newer.pool != ours.pool)
    return refuse("a target keeps the map of another pool");
  std::vector<std::unique_ptr<kv_target::Target>> more;
  std::vector<std::pair<TargetId, std::unique_ptr<kv_target::Target>>> replaced;
  for (TargetId id = 0; id < newer.members.size(); ++id) {
    const MapMember& member = newer.members[id];
    const bool known = id < ours.members.size();
    if (known && ours.members[id].life == member.life) continue;
    base::Result<std::unique_ptr<kv_target::Target>> target = std::make_unique<kv_store::AbsentTarget>();
    if (member.state != MapMember::State::kGone) target = open_target_(member.place);
    if (!target)
      return refuse(fmt::format("{} is in the pool's newer map and cannot be opened here: {}", member.place,
                                target.error().message));
    if (known)
      replaced.emplace_back(id, std::move(*target));
    else
      more.push_back(std::move(*target));
  }
  for (const auto& [id, target] : replaced)
    if (id < names_.size()) names_[id] = newer.members[id].place;
  return store_->adopt(newer, std::move(more), std::move(replaced), now);
}

PoolReport StoreTier::report(base::Nanos now) {
  PoolReport report = report_on(*store_, opened_by_, names_, block_bytes_, now);
  report.map_trouble = map_trouble_;
  return report;
}

const std::string& StoreTier::name_of(TargetId id) const {
  return id < names_.size() ? names_[id] : store_->map_keeper()->record().members[id].place;
}

base::Result<TargetId> StoreTier::find_target(const std::string& target) const {
  if (store_->map_keeper() == nullptr) return refuse("this pool has no targets: it is in memory only");
  const auto& members = store_->map_keeper()->record().members;
  std::vector<std::string> names;
  for (TargetId id = 0; id < members.size(); ++id) {
    if (members[id].state == MapMember::State::kGone) continue;
    if (name_of(id) == target || std::to_string(id) == target) return id;
    names.push_back(name_of(id));
  }
  return refuse(
      fmt::format("'{}' is no target of this pool, whose targets are: {}", target, fmt::join(names, ", ")));
}

base::Status StoreTier::manage(const protocol::Manage& asked, base::Nanos now) {
  using Change = protocol::Manage::Change;
  switch (asked.change) {
    case Change::kGiveUp:
      return give_up(asked.target, now);
    case Change::kDrain:
      return drain(asked.target, now);
    case Change::kExpand:
      return expand(asked.places, asked.racks, now);
    case Change::kReplace:
      if (asked.places.size() == 1) return replace(asked.target, asked.places.front(), now);
      break;
  }
  return refuse("no such change of a pool: is the command of another build?");
}

base::Status StoreTier::give_up(const std::string& target, base::Nanos now) {
  const auto id = find_target(target);
  if (!id) return tl::unexpected(id.error());
  if (store_->channels().usable(*id))
    return refuse(
        fmt::format("{} answers: `trimtab pool drain {}` empties it without any block being less than "
                    "whole; give-up is for targets that are lost",
                    target, target));
  if (auto done = store_->give_up(std::span(&*id, 1), now); !done)
    return refuse(fmt::format("{} cannot be given up: {}", target, done.error().message));
  return {};
}

base::Status StoreTier::drain(const std::string& target, base::Nanos now) {
  const auto id = find_target(target);
  if (!id) return tl::unexpected(id.error());
  if (store_->map_keeper()->record().members[*id].state == MapMember::State::kLeaving)
    return refuse(fmt::format("{} is being drained already: `trimtab pool status` shows how far", target));
  if (auto done = store_->drain(std::span(&*id, 1), now); !done)
    return refuse(fmt::format("{} cannot be drained: {}", target, done.error().message));
  return {};
}

/// A target that nobody uses yet.
base::Result<std::unique_ptr<kv_target::Target>> StoreTier::open_blank(const std::string& spec) {
  const std::string place = place_of(spec);
  const auto& members = store_->map_keeper()->record().members;
  for (TargetId id = 0; id < members.size(); ++id)
    if ((members[id].place == place || name_of(id) == place) && members[id].state != MapMember::State::kGone)
      return refuse(fmt::format("{} is a target of this pool already", place));
  auto target = open_target_(spec);
  if (!target) return target;
  std::shared_ptr<void> memory;
  const MapFound found = kv_store::look_at(**target, memory, *clock_, kSecond);
  if (found.kind == MapFound::Kind::kUnreachable) {
    target->reset();  // lets go of the memory
    return refuse(fmt::format("{} cannot be reached: start it, then ask again", place));
  }
  const TargetId self = found.written.self;
  if (found.kind == MapFound::Kind::kRecord &&
      found.written.record.pool == store_->map_keeper()->record().pool && self < members.size() &&
      members[self].state != MapMember::State::kGone)
    return refuse(fmt::format("{} is target {} of this pool already, as {}", place, self, name_of(self)));
  if (found.kind == MapFound::Kind::kRecord)
    return refuse(fmt::format("{} belongs to a pool (of {} and {} more): empty it first", place,
                              found.written.record.members.front().place,
                              found.written.record.members.size() - 1));
  if (const auto space = (*target)->space(); space && space->shards > 0)
    return refuse(
        fmt::format("{} holds {} shards or other things already: empty it first", place, space->shards));
  return target;
}

base::Status StoreTier::expand(std::span<const std::string> specs, std::span<const std::uint32_t> racks,
                               base::Nanos now) {
  if (store_->map_keeper() == nullptr) return refuse("this pool has no targets: it is in memory only");
  if (specs.empty()) return refuse("expand by which places? name one or more");
  std::vector<std::unique_ptr<kv_target::Target>> more;
  std::vector<std::string> places;  // without passwords: they are written down
  for (const std::string& spec : specs) {
    if (std::ranges::find(places, place_of(spec)) != places.end())
      return refuse(fmt::format("{} is named twice", place_of(spec)));
    auto target = open_blank(spec);
    if (!target) return tl::unexpected(target.error());
    more.push_back(std::move(*target));
    places.push_back(place_of(spec));
  }
  return store_->expand(std::move(more), racks, now, places);
}

/// Without this target, and those that do not answer, every block can still be read.
base::Status StoreTier::may_lose(TargetId lost) const {
  std::uint32_t dead = 0;
  const auto& members = store_->map_keeper()->record().members;
  for (TargetId id = 0; id < members.size(); ++id)
    if (id != lost && members[id].state != MapMember::State::kGone && !store_->channels().usable(id)) ++dead;
  if (dead + 1 > store_->map().losses())
    return refuse(
        fmt::format("{} other targets do not answer, and with {} replaced too blocks would be lost "
                    "({} may be): bring one of those back first",
                    dead, members[lost].place, store_->map().losses()));
  if (!store_->channels().usable(lost)) return {};
  const auto tally = store_->index().tally(store_->map());
  if (tally.degraded > 0)
    return refuse(
        fmt::format("{} answers, and {} blocks are less than whole, which may need its shards: "
                    "wait until `trimtab pool status` says that every block is whole",
                    members[lost].place, tally.degraded));
  return {};
}

base::Status StoreTier::replace(const std::string& target, const std::string& spec, base::Nanos now) {
  const std::string place = place_of(spec);
  const auto id = find_target(target);
  if (!id) return tl::unexpected(id.error());
  const MapMember& member = store_->map_keeper()->record().members[*id];
  if (member.place == place || name_of(*id) == place)
    return refuse(
        fmt::format("{} stands in its own place: once it answers, empty or not, what it lacks is "
                    "written to it by itself",
                    place));
  if (member.state == MapMember::State::kLeaving)
    return refuse(fmt::format("{} is being drained: `trimtab pool expand {}` adds another", target, place));
  TRIMTAB_TRY(may_lose(*id));
  auto fresh = open_blank(spec);
  if (!fresh) return tl::unexpected(fresh.error());
  store_->replace(*id, std::move(*fresh), now, place);
  if (*id < names_.size()) names_[*id] = place;
  return {};
}

}  // namespace trimtab::kv_pool
