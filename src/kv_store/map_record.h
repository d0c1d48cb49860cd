#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "kv_store/places.h"
#include "kv_target/target.h"

namespace trimtab::kv_store {

/// The object under which every target of a pool keeps the pool's map; no block has this key.
inline constexpr kv_target::ShardName kMapName{{UINT64_MAX, UINT64_MAX - 1}, 254};
/// Of that object, at most.
inline constexpr std::size_t kMapBytesMost = 64U << 10;

struct MapMember {
  enum class State : std::uint8_t {
    kIn,
    kLeaving,  // the map gives it nothing, but what is moving away is still read there
    kGone,     // emptied, or lost and given up
  };
  std::string place;  // as it was named when it joined
  State state = State::kIn;
  std::uint32_t life = 0;  // how often another target was put in its place

  constexpr bool operator==(const MapMember&) const = default;
  template <class A>
  void visit(A& a) {
    a(place, state, life);
  }
};

/// One change of the map.
struct MapStep {
  enum class Kind : std::uint8_t { kMake, kWiden, kGiveUp, kDrain } kind = Kind::kMake;
  std::vector<TargetId> targets;     // kMake: those that hold; kWiden: the new ones
  std::vector<std::uint32_t> racks;  // kMake: of all members; kWiden: of the new ones; may be empty

  bool operator==(const MapStep&) const = default;
  template <class A>
  void visit(A& a) {
    a(kind, targets, racks);
  }
};

/// A pool's placement map as it is written down: who its targets are, and the steps that make the map, which
/// are some hundred bytes where the map itself would be some hundred thousand. The same steps give the same
/// map everywhere (policy/placement); a checksum of the outcome finds the build for which that is not so.
///
/// Any record of a pool is safe to use: shards are found by what targets say they hold, and the map says only
/// where they should be. So what targets and loaders must agree on, in the end, is which record is newest:
/// the higher version, of equal ones (two loaders that changed the map at once) the higher checksum.
class MapRecord {
 public:
  /// Of a new pool. Machines that begin it at the same time make the same record.
  static base::Result<MapRecord> first(std::span<const std::string> places,
                                       std::span<const std::uint32_t> racks = {});

  std::uint64_t pool = 0;
  std::uint32_t version = 1;
  std::vector<MapMember> members;  // by TargetId
  std::vector<MapStep> steps;
  std::uint64_t map_checksum = 0;

  /// kDataLoss: the steps do not give the map that they gave when they were written.
  base::Result<PlaceMap> map() const;
  /// A new version. `map` is the outcome.
  void changed(MapStep step, const PlaceMap& map);
  /// Made anew over the members that are in: another build's steps give another map here.
  base::Result<MapRecord> anew() const;

  std::uint64_t checksum() const;
  bool newer_than(const MapRecord& other) const;
  /// Targets whose word counts: all that did not leave.
  std::uint32_t voters() const;
  bool operator==(const MapRecord&) const = default;

  /// As target `self` keeps it: magic, format, `self`, the record, XXH3-64 of all that.
  std::vector<std::byte> written(TargetId self) const;
  struct Written;
  /// kDataLoss: it is not one, or damaged.
  static base::Result<Written> read(std::span<const std::byte> bytes);

  template <class A>
  void visit(A& a) {
    a(pool, version, members, steps, map_checksum);
  }
};

struct MapRecord::Written {
  TargetId self = kNowhere;
  MapRecord record;
};

}  // namespace trimtab::kv_store
