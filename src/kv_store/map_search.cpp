#include "kv_store/map_search.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <utility>

#include "kv_store/absent_target.h"

namespace trimtab::kv_store {

namespace {

using Kind = MapFound::Kind;
using State = MapMember::State;

tl::unexpected<base::Error> refuse(std::string message) {
  return base::fail(base::Code::kInvalidArgument, std::move(message), "pool.targets");
}

/// The newest of the pool that most targets belong to; null: nobody keeps one.
const MapRecord* newest(std::span<const MapFound> found) {
  const auto of_pool = [&](std::uint64_t pool) {
    return std::ranges::count_if(found, [pool](const MapFound& one) {
      return one.kind == Kind::kRecord && one.written.record.pool == pool;
    });
  };
  const MapRecord* best = nullptr;
  for (const MapFound& one : found) {
    if (one.kind != Kind::kRecord) continue;
    const MapRecord& record = one.written.record;
    if (best != nullptr && record.pool != best->pool) {
      if (of_pool(record.pool) > of_pool(best->pool)) best = &record;
    } else if (best == nullptr || record.newer_than(*best)) {
      best = &record;
    }
  }
  return best;
}

class Arranging {
 public:
  Arranging(std::span<const std::string> places, std::span<const MapFound> found, const MapRecord& record)
      : places_(places), found_(found), taken_(places.size(), false) {
    out_.record = record;
    out_.place_of.resize(record.members.size());
  }

  base::Result<MapArrangement> run() {
    TRIMTAB_TRY(by_number());
    for (std::size_t i = 0; i < places_.size(); ++i)
      if (const auto id = named(i); !taken_[i] && id) take(i, *id);
    TRIMTAB_TRY(the_others());
    return everybody_needed();
  }

 private:
  void take(std::size_t place, TargetId id) {
    out_.place_of[id] = place;
    taken_[place] = true;
  }
  const MapMember& member(TargetId id) const { return out_.record.members[id]; }

  void replace(std::size_t i) {
    const auto id = static_cast<TargetId>(i);
    MapMember& it = out_.record.members[id];
    ++it.life;
    it.place = places_[i];
    take(i, id);
    ++replaced_;
  }

  base::Status by_number() {
    for (std::size_t i = 0; i < places_.size(); ++i) {
      if (found_[i].kind != Kind::kRecord) continue;
      const MapRecord::Written& written = found_[i].written;
      if (written.record.pool != out_.record.pool)
        return refuse(
            fmt::format("{} belongs to another pool (of {} and {} more): name that pool's targets, or "
                        "empty this one first",
                        places_[i], written.record.members.front().place, written.record.members.size() - 1));
      if (written.self >= out_.record.members.size()) continue;
      if (const auto other = out_.place_of[written.self])
        return refuse(
            fmt::format("{} and {} are both target {} of the pool: one target that is named twice, or a "
                        "copy of one; name it once",
                        places_[*other], places_[i], written.self));
      take(i, written.self);
      if (member(written.self).state == State::kGone)
        out_.note =
            fmt::format("{} left the pool and gets no shards; emptied, it would join anew", places_[i]);
    }
    return {};
  }

  /// A blank one in the place of one that left joins anew.
  std::optional<TargetId> named(std::size_t i) const {
    for (TargetId id = 0; id < out_.record.members.size(); ++id) {
      const bool may = member(id).state != State::kGone || found_[i].kind == Kind::kUnreachable;
      if (!out_.place_of[id] && member(id).place == places_[i] && may) return id;
    }
    return std::nullopt;
  }

  /// Neither a number nor a name that is known.
  base::Status the_others() {
    for (std::size_t i = 0; i < places_.size(); ++i) {
      if (taken_[i]) continue;
      // In the place of the list that a known one had, and is not named any more: that one under another name
      // if it is down, a new one for it if it is blank.
      const bool fits = i < out_.record.members.size() && !out_.place_of[i] &&
                        member(static_cast<TargetId>(i)).state != State::kGone;
      if (found_[i].kind != Kind::kUnreachable) {
        fits ? replace(i) : out_.newcomers.push_back(i);
        continue;
      }
      if (!fits)
        return refuse(
            fmt::format("{} cannot be reached and is not in the pool's map: start it, or take it out of "
                        "the list until it runs",
                        places_[i]));
      take(i, static_cast<TargetId>(i));
    }
    return {};
  }

  base::Result<MapArrangement> everybody_needed() {
    for (TargetId id = 0; id < out_.record.members.size(); ++id) {
      if (out_.place_of[id] || member(id).state == State::kGone) continue;
      const std::string& place = member(id).place;
      if (member(id).state == State::kLeaving)
        return refuse(
            fmt::format("{} (target {}) is being emptied and still holds shards: keep it among the "
                        "targets until it has none",
                        place, id));
      return refuse(
          fmt::format("{} (target {}) keeps shards by the pool's map, version {}, and is not among the "
                      "targets: put it back, or put an empty target in its place of the list, on which "
                      "its shards are then rebuilt",
                      place, id, out_.record.version));
    }
    if (replaced_ == 0) return std::move(out_);
    const auto map = out_.record.map();
    if (map && replaced_ > map->losses())
      return refuse(
          fmt::format("{} targets are replaced by blank ones at once, and {} may be lost: replace fewer, "
                      "and the next when `trimtab pool status` says that every block is whole",
                      replaced_, map->losses()));
    ++out_.record.version;
    return std::move(out_);
  }

  std::span<const std::string> places_;
  std::span<const MapFound> found_;
  std::vector<bool> taken_;
  std::uint32_t replaced_ = 0;
  MapArrangement out_;
};

/// Numbers far beyond those that a store gives its requests: a late answer finds nobody there.
std::uint64_t tag_of(std::size_t target) { return UINT64_MAX - target; }

struct Search {
  std::vector<MapFound> found;
  std::shared_ptr<std::vector<std::vector<std::byte>>> buffers;
};

void note(MapFound& found, const kv_target::Completion& done, std::span<const std::byte> buffer) {
  using kv_target::Outcome;
  const bool answered = done.outcome == Outcome::kDone || done.outcome == Outcome::kMissing ||
                        done.outcome == Outcome::kDamaged;
  if (!answered) return;
  found.kind = Kind::kBlank;
  if (done.outcome != Outcome::kDone) return;
  auto written = MapRecord::read(buffer.first(done.bytes));
  if (!written) return;
  found.kind = Kind::kRecord;
  found.written = std::move(*written);
}

Search search(std::span<kv_target::Target* const> targets, const base::Clock& clock, base::Nanos patience) {
  Search search{std::vector<MapFound>(targets.size()),
                std::make_shared<std::vector<std::vector<std::byte>>>(targets.size())};
  for (std::size_t i = 0; i < targets.size(); ++i) {
    std::vector<std::byte>& buffer = (*search.buffers)[i];
    buffer.resize(std::min<std::uint64_t>(kMapBytesMost, targets[i]->limits().shard_bytes));
    kv_target::Request request;
    request.name = kMapName;
    request.buffer = buffer;
    request.tag = tag_of(i);
    targets[i]->submit({&request, 1});
  }
  std::vector<bool> done(targets.size(), false);
  std::vector<kv_target::Completion> completed;
  const base::Nanos end = clock.now() + patience;
  while (std::ranges::find(done, false) != done.end() && clock.now() < end) {
    std::vector<pollfd> fds;
    for (std::size_t i = 0; i < targets.size(); ++i) {
      if (done[i]) continue;
      completed.clear();
      targets[i]->poll(completed);
      for (const kv_target::Completion& one : completed) {
        if (one.tag != tag_of(i)) continue;
        done[i] = true;
        note(search.found[i], one, (*search.buffers)[i]);
      }
      if (!done[i]) fds.push_back({targets[i]->wake_fd(), POLLIN, 0});
    }
    if (!fds.empty()) ::poll(fds.data(), fds.size(), 10);
  }
  return search;
}

}  // namespace

MapFound look_at(kv_target::Target& target, std::shared_ptr<void>& memory, const base::Clock& clock,
                 base::Nanos patience) {
  kv_target::Target* const one[] = {&target};
  Search found = search(one, clock, patience);
  memory = std::move(found.buffers);
  return std::move(found.found.front());
}

base::Result<MapArrangement> arrange_places(std::span<const std::string> places,
                                            std::span<const MapFound> found,
                                            std::span<const std::uint32_t> racks) {
  for (std::size_t i = 0; i < places.size(); ++i)
    if (std::ranges::find(places.subspan(i + 1), places[i]) != places.end())
      return refuse(fmt::format("{} is named twice: name every target once", places[i]));
  const MapRecord* record = newest(found);
  if (record == nullptr) {
    auto made = MapRecord::first(places, racks);
    if (!made) return tl::unexpected<base::Error>(made.error());
    MapArrangement out;
    out.record = std::move(*made);
    for (std::size_t i = 0; i < places.size(); ++i) out.place_of.emplace_back(i);
    return out;
  }
  auto out = Arranging(places, found, *record).run();
  if (!out) return out;
  if (const auto map = out->record.map(); !map) {
    auto anew = out->record.anew();
    if (!anew) return tl::unexpected<base::Error>(anew.error());
    out->note =
        fmt::format("{}; it was made anew, and shards move to where it has them now", map.error().message);
    out->record = std::move(*anew);
  }
  return out;
}

namespace {

/// Whoever only looks, or mends, must not change the pool by a list that is not quite the pool's.
base::Status unchanged(const MapArrangement& arranged, std::span<const MapFound> found,
                       std::span<const std::string> places) {
  const MapRecord* kept = newest(found);
  if (kept == nullptr) return {};
  std::vector<std::string> strangers;
  for (const std::size_t i : arranged.newcomers) strangers.push_back(places[i]);
  for (TargetId id = 0; id < kept->members.size(); ++id)
    if (arranged.record.members[id].life != kept->members[id].life)
      strangers.push_back(arranged.record.members[id].place);
  if (strangers.empty()) return {};
  return refuse(
      fmt::format("{} is blank and not in the pool's map: leave it out; `trimtab pool expand` or "
                  "`replace` brings it in",
                  fmt::join(strangers, ", ")));
}

}  // namespace

base::Result<OpenedPool> open_pool(std::vector<std::unique_ptr<kv_target::Target>> targets,
                                   std::span<const std::string> places, StoreOptions options,
                                   const base::Clock& clock, base::Nanos patience, MapUse use) {
  std::vector<kv_target::Target*> asked;
  for (const auto& target : targets) asked.push_back(target.get());
  Search found = search(asked, clock, patience);
  auto owned = std::move(targets);  // ends before the memory that late answers land in
  auto arranged = arrange_places(places, found.found, options.racks);
  if (!arranged) return tl::unexpected<base::Error>(arranged.error());
  if (use != MapUse::kJoin) TRIMTAB_TRY(unchanged(*arranged, found.found, places));
  OpenedPool pool;
  if (!arranged->note.empty()) pool.notes.push_back(arranged->note);
  for (std::size_t i = 0; i < places.size(); ++i)
    if (found.found[i].kind == Kind::kUnreachable)
      pool.notes.push_back(
          fmt::format("{} does not answer: the pool goes on without it until it does", places[i]));
  std::vector<std::unique_ptr<kv_target::Target>> in_order, more;
  for (TargetId id = 0; id < arranged->place_of.size(); ++id) {
    const std::optional<std::size_t> place = arranged->place_of[id];
    pool.names.push_back(place ? places[*place] : arranged->record.members[id].place);
    if (place)
      in_order.push_back(std::move(owned[*place]));
    else
      in_order.push_back(std::make_unique<AbsentTarget>());
  }
  std::vector<std::string> names;
  std::vector<std::uint32_t> racks;
  for (const std::size_t i : arranged->newcomers) {
    more.push_back(std::move(owned[i]));
    names.push_back(places[i]);
    if (!options.racks.empty()) racks.push_back(options.racks[i]);
  }
  pool.record = arranged->record;
  options.record = std::move(arranged->record);
  options.keeps_record = use != MapUse::kLook;
  options.kept = std::move(found.buffers);
  const bool racks_said = !std::exchange(options.racks, {}).empty();
  auto store = StripedStore::open(std::move(in_order), std::move(options), clock.now());
  if (!store) return tl::unexpected<base::Error>(store.error());
  pool.store = std::move(*store);
  if (racks_said && pool.store->map().stripes().racks.empty()) {
    pool.notes.emplace_back(
        "the pool was made without racks, and goes on without: they are said when a pool is made");
    racks.clear();
  }
  if (!more.empty()) {
    TRIMTAB_TRY(pool.store->expand(std::move(more), racks, clock.now(), names));
    pool.notes.push_back(
        fmt::format("{} joined the pool; its share of the shards moves there", fmt::join(names, ", ")));
  }
  return pool;
}

}  // namespace trimtab::kv_store
