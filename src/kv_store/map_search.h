#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "kv_store/striped_store.h"

namespace trimtab::kv_store {

/// What a target keeps of the map.
struct MapFound {
  enum class Kind : std::uint8_t {
    kUnreachable,
    kBlank,  // nothing, or something damaged
    kRecord,
  } kind = Kind::kUnreachable;
  MapRecord::Written written{};
};

/// Which of the places that a configuration names is which target of the pool.
struct MapArrangement {
  MapRecord record;
  std::vector<std::optional<std::size_t>> place_of;  // by TargetId; nullopt: left the pool and is not named
  std::vector<std::size_t> newcomers;                // places that are to join
  std::string note;                                  // what an operator should know; usually empty
};

/// The newest record decides; it says its number to each target, so that places may be named in another order
/// or by other names. A blank target under a known name, or in the place of the list that a
/// target had which is named no more, stands in that one's place and is filled again; elsewhere it joins.
/// Where nobody keeps a record, the places make a new pool in their order. Pure.
///
/// Errors, each with the place and the cure: a target that the map counts on is not named; one of another
/// pool is; one that is neither known nor reachable; a target that is named twice.
base::Result<MapArrangement> arrange_places(std::span<const std::string> places,
                                            std::span<const MapFound> found,
                                            std::span<const std::uint32_t> racks = {});

/// What one target keeps. Its late answer would land nowhere: the target must end, or answer, before `memory`
/// does.
MapFound look_at(kv_target::Target& target, std::shared_ptr<void>& memory, const base::Clock& clock,
                 base::Nanos patience);

struct OpenedPool {
  std::unique_ptr<StripedStore> store;
  MapRecord record;                // by which it was opened, before newcomers joined
  std::vector<std::string> names;  // of its members: the places of the list, else those of the record
  std::vector<std::string> notes;  // what an operator should know
};
/// What opening a pool may do to its map.
enum class MapUse : std::uint8_t {
  kJoin,  // newcomers join, and blank targets stand in for those that are named no more
  kKeep,  // it is kept, and written where it lacks; a list that would change it is refused
  kLook,  // the same, and nothing is written
};
/// Asks all targets for the pool's map (those silent for `patience` count as unreachable), arranges them by
/// it and opens a store that keeps it. Newcomers join at once.
base::Result<OpenedPool> open_pool(std::vector<std::unique_ptr<kv_target::Target>> targets,
                                   std::span<const std::string> places, StoreOptions options,
                                   const base::Clock& clock,
                                   base::Nanos patience = base::Nanos{2'000'000'000},
                                   MapUse use = MapUse::kJoin);

}  // namespace trimtab::kv_store
