#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/units.h"
#include "kv_store/map_record.h"

namespace trimtab::kv_store {

/// Keeps the same map record at every target of a pool. Pure: its owner carries out what it asks for.
///
/// A target is asked what it keeps when it joins, returns, or tells that its record changed. An older record
/// or none is written anew; a newer one is somebody else's change, which the owner takes over. A target keeps
/// the old record or the new one whatever is interrupted (kv_target/target.h), so the pool does too: what was
/// not written everywhere is written by whoever finds it next.
class MapKeeper {
 public:
  MapKeeper(MapRecord record, std::uint32_t targets);

  const MapRecord& record() const { return record_; }
  /// Ours from now on: a change, or the newer one that was found.
  void change(MapRecord next, std::uint32_t targets);
  /// What this target keeps is not known (any more).
  void doubt(TargetId id);

  enum class Ask : std::uint8_t { kNothing, kRead, kWrite };
  /// What is to be asked of the target now; it is under way then until one of the answers.
  Ask next(TargetId id, base::Nanos now);
  /// Null: it keeps none, or one that is damaged.
  void has(TargetId id, const MapRecord* found);
  /// `checksum`: of the record that was written.
  void wrote(TargetId id, std::uint64_t checksum);
  void failed(TargetId id, bool full, base::Nanos now);

  /// A record that was found and is newer than ours.
  const std::optional<MapRecord>& newer() const { return newer_; }
  /// Targets known to keep our record; more than half of those that did not leave: no start that reaches half
  /// of the pool misses it.
  std::uint32_t copies() const;
  bool settled() const { return !newer_ && copies() * 2 > record_.voters(); }
  /// A target had no room for it.
  bool full() const;
  base::Nanos wake(base::Nanos now) const;

 private:
  struct Seat {
    enum class State : std::uint8_t { kUnknown, kAsked, kKnown } state = State::kUnknown;
    std::uint64_t keeps = 0;  // kKnown: the record's checksum; 0: none
    base::Nanos not_before{0};
    bool doubted = false;  // while asked: the answer may be out of date
    bool full = false;
  };

  MapRecord record_;
  std::uint64_t checksum_ = 0;
  std::optional<MapRecord> newer_;
  std::vector<Seat> seats_;
};

}  // namespace trimtab::kv_store
