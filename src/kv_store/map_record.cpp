#include "kv_store/map_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/codec.h"
#include "base/hash.h"

namespace trimtab::kv_store {

namespace {

constexpr std::uint32_t kMagic = 0x4d564b54;  // "TKVM"
constexpr std::uint32_t kFormat = 1;

struct Framed {
  std::uint32_t magic = kMagic, format = kFormat;
  TargetId self = 0;
  MapRecord record;
  template <class A>
  void visit(A& a) {
    a(magic, format, self, record);
  }
};

std::uint64_t checksum_of(const PlaceMap& map) {
  const placement::StripeMap& stripes = map.stripes();
  std::uint64_t sum = base::mix(stripes.nodes, stripes.groups.size());
  for (const Places& group : stripes.groups) sum = base::checksum_of(std::span<const TargetId>(group), sum);
  return sum;
}

base::Result<PlaceMap> apply(const PlaceMap* before, const MapStep& step, std::uint32_t members) {
  switch (step.kind) {
    case MapStep::Kind::kMake:
      return PlaceMap::over(step.targets, members, step.racks);
    case MapStep::Kind::kWiden:
      return before->wider(static_cast<std::uint32_t>(step.targets.size()), step.racks);
    case MapStep::Kind::kDrain:
      return before->drained(step.targets);
    case MapStep::Kind::kGiveUp:
      break;
  }
  auto without = before->without(step.targets);
  if (!without) return tl::unexpected<base::Error>(without.error());
  return std::move(without->map);
}

tl::unexpected<base::Error> damaged(std::string why) {
  return base::fail(base::Code::kDataLoss, "the pool's map " + std::move(why), "kv_store");
}

}  // namespace

base::Result<MapRecord> MapRecord::first(std::span<const std::string> places,
                                         std::span<const std::uint32_t> racks) {
  MapRecord record;
  MapStep step;
  step.racks.assign(racks.begin(), racks.end());
  std::vector<std::string> sorted(places.begin(), places.end());
  std::ranges::sort(sorted);
  record.pool = places.size();
  for (const std::string& place : sorted) record.pool = base::checksum(place, record.pool);
  for (const std::string& place : places) {
    step.targets.push_back(static_cast<TargetId>(record.members.size()));
    record.members.push_back({place, MapMember::State::kIn, 0});
  }
  auto map = PlaceMap::make(static_cast<std::uint32_t>(places.size()), racks);
  if (!map) return tl::unexpected<base::Error>(map.error());
  record.steps.push_back(std::move(step));
  record.map_checksum = checksum_of(*map);
  return record;
}

base::Result<PlaceMap> MapRecord::map() const {
  if (steps.empty() || steps.front().kind != MapStep::Kind::kMake) return damaged("has no first step");
  // Steps before it knew fewer members.
  auto known = static_cast<std::uint32_t>(members.size());
  for (const MapStep& step : steps) {
    if (step.kind == MapStep::Kind::kWiden)
      known -= std::min(known, static_cast<std::uint32_t>(step.targets.size()));
    for (const TargetId id : step.targets)
      if (id >= members.size()) return damaged(fmt::format("names target {} of {}", id, members.size()));
  }
  const auto racked = [&](const MapStep& step) {
    return step.racks.empty() ||
           step.racks.size() == (step.kind == MapStep::Kind::kMake ? known : step.targets.size());
  };
  base::Result<PlaceMap> map = damaged("has no steps");
  for (const MapStep& step : steps) {
    if (!racked(step)) return damaged("has racks for some targets only");
    map = apply(map ? &*map : nullptr, step, known);
    if (!map) return map;
  }
  if (map->stripes().nodes != members.size() || checksum_of(*map) != map_checksum)
    return damaged(fmt::format(
        "at version {} comes out otherwise in this build than in the one that wrote it", version));
  return map;
}

void MapRecord::changed(MapStep step, const PlaceMap& map) {
  steps.push_back(std::move(step));
  map_checksum = checksum_of(map);
  ++version;
}

base::Result<MapRecord> MapRecord::anew() const {
  MapRecord record = *this;
  MapStep step;
  for (TargetId id = 0; id < members.size(); ++id)
    if (members[id].state == MapMember::State::kIn) step.targets.push_back(id);
  for (const MapStep& earlier : steps) {
    if (earlier.kind == MapStep::Kind::kMake) step.racks = earlier.racks;
    if (earlier.kind == MapStep::Kind::kWiden)
      step.racks.insert(step.racks.end(), earlier.racks.begin(), earlier.racks.end());
  }
  const auto all = static_cast<std::uint32_t>(members.size());
  auto map = PlaceMap::over(step.targets, all, step.racks);
  // What grew or shrank may stand in racks for which no map is made anew: it opens all the same.
  if (!map && !std::exchange(step.racks, {}).empty()) map = PlaceMap::over(step.targets, all);
  if (!map) return tl::unexpected<base::Error>(map.error());
  record.steps.clear();
  record.changed(std::move(step), *map);
  return record;
}

std::uint64_t MapRecord::checksum() const { return base::checksum(base::encode(*this)); }

bool MapRecord::newer_than(const MapRecord& other) const {
  return std::tuple(version, checksum()) > std::tuple(other.version, other.checksum());
}

std::uint32_t MapRecord::voters() const {
  return static_cast<std::uint32_t>(std::ranges::count_if(
      members, [](const MapMember& member) { return member.state != MapMember::State::kGone; }));
}

std::vector<std::byte> MapRecord::written(TargetId self) const {
  base::Writer writer;
  Framed framed;
  framed.self = self;
  framed.record = *this;
  writer(framed);
  std::vector<std::byte> bytes = writer.take();
  base::Writer end;
  end(base::checksum(bytes));
  const std::vector<std::byte> sum = end.take();
  bytes.insert(bytes.end(), sum.begin(), sum.end());
  return bytes;
}

base::Result<MapRecord::Written> MapRecord::read(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(std::uint64_t)) return damaged("is cut short");
  const auto body = bytes.first(bytes.size() - sizeof(std::uint64_t));
  const auto sum = base::decode<std::uint64_t>(bytes.subspan(body.size()));
  if (!sum || *sum != base::checksum(body)) return damaged("does not match its checksum");
  auto framed = base::decode<Framed>(body);
  if (!framed || framed->magic != kMagic) return damaged("is something else");
  if (framed->format != kFormat)
    return damaged(fmt::format("has format {}; this build reads {}", framed->format, kFormat));
  if (framed->self >= framed->record.members.size()) return damaged("names a target that it does not have");
  return Written{framed->self, std::move(framed->record)};
}

}  // namespace trimtab::kv_store
