#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kv_store/store_parts.h"

// Changes of a store's map, and keeping it at the targets.
namespace trimtab::kv_store {

namespace {
constexpr base::Nanos kLookAgain{5'000'000'000};
}

/// The record of one target, read or written.
class StripedStore::MapOp final : public Op {
 public:
  MapOp(StripedStore& store, TargetId of) : target(of), store_(store) {}
  void answered(const Answer& answer, base::Nanos now) override {
    store_.map_answered(*this, answer, now);
    store_.ops_.end(id);
  }
  void time(base::Nanos) override {}

  TargetId target;
  std::uint64_t checksum = 0;  // of the record that is written
  std::shared_ptr<std::vector<std::byte>> bytes;

 private:
  StripedStore& store_;
};

void StripedStore::keep_map(base::Nanos now) {
  for (TargetId id = 0; id < channels_.count(); ++id) {
    if (!channels_.usable(id) || !index_.alive(id)) continue;
    const MapKeeper::Ask ask = keeper_->next(id, now);
    if (ask == MapKeeper::Ask::kNothing) continue;
    MapOp& op = ops_.add(std::make_unique<MapOp>(*this, id));
    Channels::Outgoing out;
    out.request.name = kMapName;
    if (ask == MapKeeper::Ask::kWrite) {
      op.checksum = keeper_->record().checksum();
      op.bytes = std::make_shared<std::vector<std::byte>>(keeper_->record().written(id));
      out.request.verb = kv_target::Verb::kWrite;
      out.request.content = *op.bytes;
    } else {
      op.bytes = std::make_shared<std::vector<std::byte>>(
          std::min<std::uint64_t>(kMapBytesMost, channels_.target(id).limits().shard_bytes));
      out.request.buffer = *op.bytes;
    }
    out.memory = op.bytes;
    out.ticket = {op.id, 0, 0};
    channels_.send(id, out, now);
  }
  // A scrub that was asked for ends first; a rebuild that was begun since will do.
  const bool walking = walk_ && !walk_->done();
  if (walk_due_ && keeper_->settled() && !(walking && walk_->cursor().kind == WalkKind::kScrub)) {
    walk_due_ = false;
    if (!walking) start_walk(WalkKind::kRebuild, now);
  }
  end_drains(now);
  retire_when_confirmed(now);
}

void StripedStore::map_answered(const MapOp& op, const Answer& answer, base::Nanos now) {
  using kv_target::Outcome;
  if (answer.verb == kv_target::Verb::kWrite) {
    if (answer.outcome == Outcome::kDone) return keeper_->wrote(op.target, op.checksum);
    return keeper_->failed(op.target, answer.outcome == Outcome::kFull, now);
  }
  if (answer.outcome == Outcome::kMissing || answer.outcome == Outcome::kDamaged)
    return keeper_->has(op.target, nullptr);
  if (answer.outcome != Outcome::kDone) return keeper_->failed(op.target, false, now);
  const auto found = MapRecord::read(std::span<const std::byte>(*op.bytes).first(answer.bytes));
  keeper_->has(op.target, found && found->self == op.target ? &found->record : nullptr);
}

void StripedStore::map_changed(PlaceMap map, base::Nanos now) {
  map_ = std::move(map);
  fresh_ = true;
  confirming_ = false;
  drain_look_at_ = base::Nanos{0};
  if (!keeper_) return start_walk(WalkKind::kRebuild, now);
  walk_.reset();
  walk_due_ = true;  // whoever finds a moved shard can then find the map that moved it
}

/// The record must be something that every target takes.
base::Status StripedStore::fits(const MapRecord& record) {
  const std::size_t bytes = record.written(0).size();
  for (TargetId id = 0; id < channels_.count(); ++id) {
    const std::uint64_t most =
        std::min<std::uint64_t>(kMapBytesMost, channels_.target(id).limits().shard_bytes);
    if (bytes > most)
      return base::fail(
          base::Code::kTooLarge,
          fmt::format("the changed map has {} bytes and {} takes objects of {}: start it with a "
                      "larger --shard-bytes",
                      bytes,
                      keeper_->record()
                          .members[std::min<std::size_t>(id, keeper_->record().members.size() - 1)]
                          .place,
                      most),
          "kv_store");
  }
  return {};
}

/// Another target under the number, of which nothing is known yet.
void StripedStore::seat(TargetId id, std::unique_ptr<kv_target::Target> target, base::Nanos now) {
  channels_.replace(id, std::move(target), answers_);
  index_.forget(id);
  cursors_[id] = {};
  index_.set_alive(id, true);
  if (!follow(id, now)) channels_.failed(id, now, answers_, turns_);
}

void StripedStore::replace(TargetId id, std::unique_ptr<kv_target::Target> target, base::Nanos now,
                           const std::string& place) {
  seat(id, std::move(target), now);
  if (!keeper_) return start_walk(WalkKind::kRebuild, now);
  MapRecord record = keeper_->record();
  ++record.version;
  ++record.members[id].life;
  if (!place.empty()) record.members[id].place = place;
  keeper_->change(std::move(record), channels_.count());
  keeper_->doubt(id);
  map_changed(map_, now);
}

base::Status StripedStore::give_up(std::span<const TargetId> dead, base::Nanos now) {
  auto without = map_.without(dead);
  if (!without) return tl::unexpected<base::Error>(without.error());
  if (keeper_) {
    MapRecord record = keeper_->record();
    record.changed({MapStep::Kind::kGiveUp, {dead.begin(), dead.end()}, {}}, without->map);
    for (const TargetId id : dead) record.members[id].state = MapMember::State::kGone;
    TRIMTAB_TRY(fits(record));
    keeper_->change(std::move(record), channels_.count());
  }
  skipped_.assign(without->map.stripes().groups.size(), UINT8_MAX);
  for (const placement::GroupRebuild& group : without->plan.groups)
    if (group.skipped) skipped_[group.group] = *group.skipped;
  for (const TargetId id : dead) {
    index_.set_alive(id, false);
    while (channels_.usable(id)) channels_.failed(id, now, answers_, turns_);
  }
  map_changed(std::move(without->map), now);
  return {};
}

void StripedStore::join(std::unique_ptr<kv_target::Target> target, base::Nanos now) {
  channels_.add(std::move(target));
  cursors_.emplace_back();
  index_.add_target();
  const auto id = static_cast<TargetId>(channels_.count() - 1);
  if (!follow(id, now)) channels_.failed(id, now, answers_, turns_);
}

base::Status StripedStore::expand(std::vector<std::unique_ptr<kv_target::Target>> more,
                                  std::span<const std::uint32_t> racks, base::Nanos now,
                                  std::span<const std::string> places) {
  auto map = map_.wider(static_cast<std::uint32_t>(more.size()), racks);
  if (!map) return tl::unexpected<base::Error>(map.error());
  std::optional<MapRecord> record;
  if (keeper_) {
    TRIMTAB_CHECK(places.size() == more.size());
    record = keeper_->record();
    MapStep step{MapStep::Kind::kWiden, {}, {racks.begin(), racks.end()}};
    for (const std::string& place : places) {
      step.targets.push_back(static_cast<TargetId>(record->members.size()));
      record->members.push_back({place, MapMember::State::kIn, 0});
    }
    record->changed(std::move(step), *map);
    TRIMTAB_TRY(fits(*record));
  }
  skipped_.clear();
  map_ = *map;  // before their shards are followed
  if (record)
    keeper_->change(std::move(*record), channels_.count() + static_cast<std::uint32_t>(more.size()));
  for (auto& target : more) join(std::move(target), now);
  map_changed(std::move(*map), now);
  return {};
}

base::Status StripedStore::drain(std::span<const TargetId> leaving, base::Nanos now) {
  auto map = map_.drained(leaving);
  if (!map) return tl::unexpected<base::Error>(map.error());
  if (keeper_) {
    MapRecord record = keeper_->record();
    record.changed({MapStep::Kind::kDrain, {leaving.begin(), leaving.end()}, {}}, *map);
    for (const TargetId id : leaving) record.members[id].state = MapMember::State::kLeaving;
    TRIMTAB_TRY(fits(record));
    keeper_->change(std::move(record), channels_.count());
  }
  skipped_.clear();
  map_changed(std::move(*map), now);
  return {};
}

base::Status StripedStore::adopt(
    const MapRecord& newer, std::vector<std::unique_ptr<kv_target::Target>> more,
    std::vector<std::pair<TargetId, std::unique_ptr<kv_target::Target>>> replaced, base::Nanos now) {
  TRIMTAB_CHECK(keeper_.has_value());
  if (newer.members.size() != channels_.count() + more.size())
    return base::fail(base::Code::kInvalidArgument,
                      fmt::format("the newer map has {} targets; {} are open", newer.members.size(),
                                  channels_.count() + more.size()),
                      "kv_store");
  auto map = newer.map();
  if (!map) return tl::unexpected<base::Error>(map.error());
  skipped_.clear();
  map_ = *map;
  const MapRecord record = newer;  // `newer` may be the keeper's own
  keeper_->change(record, static_cast<std::uint32_t>(record.members.size()));
  for (auto& target : more) join(std::move(target), now);
  for (auto& [id, target] : replaced) {
    keeper_->doubt(id);
    seat(id, std::move(target), now);
  }
  map_changed(std::move(*map), now);
  return {};
}

/// A leaving target that holds no block's shard any more has left.
void StripedStore::end_drains(base::Nanos now) {
  const auto leaving = [](const MapMember& member) { return member.state == MapMember::State::kLeaving; };
  if (now < drain_look_at_ || walk_due_ || !keeper_->settled() || (walk_ && !walk_->done()) ||
      std::ranges::none_of(keeper_->record().members, leaving))
    return;
  MapRecord record = keeper_->record();
  std::vector<std::uint64_t> shards(record.members.size(), 0);
  index_.count_shards(shards);
  bool any = false, left = false;
  for (TargetId id = 0; id < record.members.size(); ++id) {
    if (!leaving(record.members[id])) continue;
    (shards[id] == 0 ? any : left) = true;
    if (shards[id] == 0) record.members[id].state = MapMember::State::kGone;
  }
  if (any) {
    ++record.version;
    keeper_->change(std::move(record), channels_.count());
  }
  if (!left) return;
  // Some could not be moved, for want of room or of their block's other shards.
  drain_look_at_ = now + kLookAgain;
  start_walk(WalkKind::kRebuild, now);
}

/// A second copy of a shard, of which the other one counts.
void StripedStore::surplus(BlockKey key, std::uint8_t shard, TargetId target, base::Nanos now) {
  old_copies_.push_back({key, shard, target});
  old_copies_until_ = now + options_.old_copy_grace;
  confirming_ = false;
}

/// Old copies stay while somebody with an older map may still read or move them. A store whose own map is the
/// old one would take the new copies for old: before it erases anything it asks the targets again, and more
/// than half of them must keep the map by which it judges. A map moves no shard before more than half of the
/// targets have it, so that a store which sees a moved shard then finds the map that moved it.
void StripedStore::retire_when_confirmed(base::Nanos now) {
  if (old_copies_.empty() || now < old_copies_until_ || walk_due_ || !keeper_->settled() ||
      (walk_ && !walk_->done()))
    return;
  if (!confirming_) {
    confirming_ = true;
    for (TargetId id = 0; id < channels_.count(); ++id) keeper_->doubt(id);
    return;  // not settled until enough of them have answered
  }
  confirming_ = false;
  retire_old_copies(now);
}

void StripedStore::retire_old_copies(base::Nanos now) {
  for (const OldCopy& old : old_copies_) {
    if (map_.of(old.key)[old.shard] == old.target) continue;  // the map came back to it
    const auto at = index_.find(old.key);
    if (at) {
      const TargetId counts = (*at)[old.shard];
      // The new one was lost since: this one counts, or would.
      if (counts == old.target || counts == kNowhere || !index_.alive(counts)) continue;
    }
    Places places;
    places.fill(kNowhere);
    places[old.shard] = old.target;
    submit_erases(old.key, places, static_cast<ShardSet>(1U << old.shard), now);
  }
  old_copies_.clear();
}

}  // namespace trimtab::kv_store
