#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "kv_store/map_search.h"

namespace trimtab::kv_store {
namespace {

std::vector<std::string> places_of(std::size_t count) {
  std::vector<std::string> places;
  for (std::size_t i = 0; i < count; ++i) places.push_back("tcp://10.0.0." + std::to_string(i + 1) + ":7701");
  return places;
}

MapRecord record_of(std::size_t targets) { return *MapRecord::first(places_of(targets)); }

MapFound kept(const MapRecord& record, TargetId self) { return {MapFound::Kind::kRecord, {self, record}}; }
MapFound blank() { return {MapFound::Kind::kBlank, {}}; }
MapFound silent() { return {MapFound::Kind::kUnreachable, {}}; }

std::vector<MapFound> all_keep(const MapRecord& record) {
  std::vector<MapFound> found;
  for (TargetId id = 0; id < record.members.size(); ++id) found.push_back(kept(record, id));
  return found;
}

MapRecord drained(MapRecord record, TargetId id, MapMember::State state) {
  const auto map = record.map()->drained(std::vector<TargetId>{id});
  record.changed({MapStep::Kind::kDrain, {id}, {}}, *map);
  record.members[id].state = state;
  return record;
}

std::string refusal(std::span<const std::string> places, std::span<const MapFound> found) {
  const auto out = arrange_places(places, found);
  return out ? "" : out.error().message;
}

TEST(MapRecordTest, StepsGiveTheSameMapAgainAndComeBackFromTheirBytes) {
  MapRecord record = record_of(14);
  PlaceMap map = *record.map();
  const auto wide = map.wider(2);
  for (const std::string place : {"tcp://x:1", "tcp://y:1"})
    record.members.push_back({place, MapMember::State::kIn, 0});
  record.changed({MapStep::Kind::kWiden, {14, 15}, {}}, *wide);
  const std::vector<TargetId> lost{3};
  const auto without = wide->without(lost);
  record.changed({MapStep::Kind::kGiveUp, lost, {}}, without->map);
  record.members[3].state = MapMember::State::kGone;
  record = drained(record, 9, MapMember::State::kLeaving);
  EXPECT_EQ(record.version, 4U);
  const auto read = MapRecord::read(record.written(7));
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->self, 7U);
  EXPECT_EQ(read->record, record);
  const auto again = read->record.map();
  ASSERT_TRUE(again) << again.error().message;
  const auto holders = again->holders();
  EXPECT_EQ(holders.size(), 14U);
  EXPECT_EQ(std::ranges::count(holders, 3), 0);
  EXPECT_EQ(std::ranges::count(holders, 9), 0);
  MapRecord other_build = record;
  other_build.map_checksum ^= 1;
  EXPECT_EQ(other_build.map().error().code, base::Code::kDataLoss);
  const auto anew = other_build.anew();
  ASSERT_TRUE(anew && anew->map());
  EXPECT_EQ(anew->map()->holders(), holders);
  EXPECT_TRUE(anew->newer_than(other_build));
}

RC_GTEST_PROP(MapRecordProperty, DamagedBytesAreNoRecord, ()) {
  std::vector<std::byte> bytes = record_of(13).written(4);
  const auto at = *rc::gen::inRange<std::size_t>(0, bytes.size());
  if (*rc::gen::arbitrary<bool>())
    bytes[at] ^= static_cast<std::byte>(*rc::gen::inRange(1, 256));
  else
    bytes.resize(at);
  RC_ASSERT(!MapRecord::read(bytes).has_value());
}

TEST(MapRecordTest, MachinesThatBeginAPoolAtTheSameTimeMakeTheSameRecord) {
  EXPECT_EQ(record_of(13), record_of(13));
  EXPECT_NE(record_of(13).pool, record_of(12).pool);
}

TEST(MapArrangementTest, ThePlacesMakeANewPoolInTheirOrder) {
  const auto places = places_of(3);
  const auto out = arrange_places(places, std::vector{blank(), silent(), blank()});
  ASSERT_TRUE(out);
  EXPECT_EQ(out->record, record_of(3));
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(out->place_of[i], i);
}

TEST(MapArrangementTest, TargetsKeepTheirNumbersInAnyOrderAndUnderOtherNames) {
  const MapRecord record = record_of(13);
  auto places = places_of(13);
  auto found = all_keep(record);
  std::ranges::reverse(places);
  std::ranges::reverse(found);
  places[0] = "/mnt/where/it/moved";
  const auto out = arrange_places(places, found);
  ASSERT_TRUE(out) << out.error().message;
  for (std::size_t id = 0; id < 13; ++id) EXPECT_EQ(out->place_of[id], 12 - id);
  EXPECT_TRUE(out->newcomers.empty());
}

TEST(MapArrangementTest, TheHighestVersionWinsHoweverFewKeepIt) {
  const MapRecord old = record_of(14), newer = drained(old, 5, MapMember::State::kLeaving);
  auto found = all_keep(old);
  found[8] = kept(newer, 8);
  found[2] = silent();
  found[3] = blank();
  const auto out = arrange_places(places_of(14), found);
  ASSERT_TRUE(out) << out.error().message;
  EXPECT_EQ(out->record, newer);
  EXPECT_EQ(out->place_of[2], 2U) << "down: known by its name";
  EXPECT_EQ(out->place_of[3], 3U) << "emptied: filled again in its place";
}

TEST(MapArrangementTest, NewPlacesJoinAndMissingOnesAreRefusedWithTheCure) {
  const MapRecord record = record_of(13);
  auto places = places_of(13);
  auto found = all_keep(record);
  places.push_back("tcp://new:1");
  found.push_back(blank());
  const auto wider = arrange_places(places, found);
  ASSERT_TRUE(wider);
  EXPECT_EQ(wider->newcomers, std::vector<std::size_t>{13});
  auto replaced_places = places_of(13);
  auto replaced = all_keep(record);
  for (const std::size_t i : {6U, 9U}) {
    replaced_places[i] = "tcp://fresh:" + std::to_string(i);
    replaced[i] = blank();
  }
  const auto in_place = arrange_places(replaced_places, replaced);
  ASSERT_TRUE(in_place) << in_place.error().message;
  EXPECT_TRUE(in_place->newcomers.empty());
  EXPECT_EQ(in_place->record.version, 2U);
  EXPECT_EQ(in_place->record.members[9].place, "tcp://fresh:9");
  EXPECT_EQ(in_place->record.members[9].life, 1U);
  replaced_places[2] = "tcp://fresh:2";
  replaced[2] = blank();
  EXPECT_NE(refusal(replaced_places, replaced).find("3 targets are replaced"), std::string::npos)
      << "three shards of a block at once";
  places.erase(places.begin() + 6);
  found.erase(found.begin() + 6);
  const std::string said = refusal(places, found);
  EXPECT_NE(said.find("tcp://10.0.0.7:7701 (target 6) keeps shards"), std::string::npos) << said;
  EXPECT_NE(said.find("put it back"), std::string::npos) << said;
}

TEST(MapArrangementTest, ADrainedTargetMayGoOnceItHasLeft) {
  auto places = places_of(13);
  places.erase(places.begin() + 6);
  for (const auto state : {MapMember::State::kLeaving, MapMember::State::kGone}) {
    const MapRecord record = drained(record_of(13), 6, state);
    auto found = all_keep(record);
    found.erase(found.begin() + 6);
    const auto out = arrange_places(places, found);
    EXPECT_EQ(out.has_value(), state == MapMember::State::kGone);
    if (out)
      EXPECT_EQ(out->place_of[6], std::nullopt);
    else
      EXPECT_NE(out.error().message.find("is being emptied"), std::string::npos);
  }
}

TEST(MapArrangementTest, MistakesAreNamed) {
  const MapRecord record = record_of(13);
  const auto places = places_of(13);
  auto found = all_keep(record);
  found[4] = kept(record, 3);
  EXPECT_NE(refusal(places, found).find("are both target 3"), std::string::npos);
  found = all_keep(record);
  found[4] = kept(record_of(12), 4);
  EXPECT_NE(refusal(places, found).find("tcp://10.0.0.5:7701 belongs to another pool"), std::string::npos);
  auto twice = places;
  twice[4] = twice[3];
  EXPECT_NE(refusal(twice, all_keep(record)).find("named twice"), std::string::npos);
  auto more = places;
  more.push_back("tcp://new:1");
  found = all_keep(record);
  found.push_back(silent());
  EXPECT_NE(refusal(more, found).find("tcp://new:1 cannot be reached and is not in the pool's map"),
            std::string::npos);
}

/// Keepers of several processes over the same targets, in any order of their steps and with failures.
RC_GTEST_PROP(MapKeeperProperty, AllComeToTheNewestRecord, ()) {
  constexpr std::uint32_t kTargets = 13, kKeepers = 3;
  const MapRecord first = record_of(kTargets);
  std::vector<std::optional<MapRecord>> stored(kTargets);
  std::vector<MapKeeper> keepers(kKeepers, MapKeeper(first, kTargets));
  base::Nanos now{0};
  const auto step = [&](MapKeeper& keeper, TargetId id, bool fails) {
    const MapKeeper::Ask ask = keeper.next(id, now);
    if (ask == MapKeeper::Ask::kNothing) return;
    if (ask == MapKeeper::Ask::kRead) {
      fails ? keeper.failed(id, false, now) : keeper.has(id, stored[id] ? &*stored[id] : nullptr);
    } else {
      const MapRecord written = keeper.record();
      if (!fails || *rc::gen::arbitrary<bool>()) {  // a write that failed may have happened
        stored[id] = written;
        for (MapKeeper& any : keepers)
          if (&any != &keeper) any.doubt(id);  // the change feed
      }
      fails ? keeper.failed(id, false, now) : keeper.wrote(id, written.checksum());
    }
    if (keeper.newer()) keeper.change(MapRecord(*keeper.newer()), kTargets);
  };
  const auto steps = *rc::gen::inRange(0, 200);
  std::uint32_t changes = 0;
  for (int i = 0; i < steps; ++i) {
    now += base::Nanos{100'000'000};
    MapKeeper& keeper = keepers[*rc::gen::inRange<std::size_t>(0, kKeepers)];
    if (*rc::gen::inRange(0, 20) == 0 && changes < 4) {
      ++changes;
      MapRecord next = keeper.record();
      ++next.version;
      next.members[*rc::gen::inRange<std::size_t>(0, kTargets)].life +=
          *rc::gen::inRange<std::uint32_t>(1, 9);
      keeper.change(std::move(next), kTargets);
    } else {
      step(keeper, static_cast<TargetId>(*rc::gen::inRange<std::uint32_t>(0, kTargets)),
           *rc::gen::inRange(0, 4) == 0);
    }
  }
  for (int round = 0; round < 8; ++round)
    for (MapKeeper& keeper : keepers)
      for (TargetId id = 0; id < kTargets; ++id) {
        now += base::Nanos{100'000'000};
        step(keeper, id, false);
      }
  for (const MapKeeper& keeper : keepers) {
    RC_ASSERT(keeper.record() == keepers[0].record());
    RC_ASSERT(keeper.settled() && keeper.copies() == kTargets);
  }
  for (const auto& record : stored) RC_ASSERT(record && *record == keepers[0].record());
}

}  // namespace
}  // namespace trimtab::kv_store
