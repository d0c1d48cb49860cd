#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trimtab::kv_pool {

/// A pool as an operator wants to see it: how whole its blocks are, its targets, and how far a change has
/// come.
struct PoolReport {
  enum class Role : std::uint8_t {
    kIn,
    kLeaving,  // being drained
    kGone,     // its number stays
  };
  struct Target {
    std::string place;
    Role role = Role::kIn;
    std::string health;        // "alive", "dead" ...
    std::uint64_t shards = 0;  // believed to be there
    std::uint64_t used_bytes = 0, capacity_bytes = 0;
    std::string trouble;  // why its requests fail; usually empty
    template <class A>
    void visit(A& a) {
      a(place, role, health, shards, used_bytes, capacity_bytes, trouble);
    }
  };
  std::vector<Target> targets;  // by number

  std::uint64_t block_bytes = 0;
  std::uint64_t blocks = 0, whole = 0, degraded = 0, unreadable = 0;  // StoreIndex::Tally
  std::uint64_t strangers = 0;  // blocks of other models, in none of these four
  std::uint32_t may_lose = 0;   // targets at once, with every whole block still readable

  std::uint32_t map_version = 0;
  std::uint8_t map_settled = 0;  // more than half of the targets keep it
  std::string map_trouble;       // why another process's newer one is not gone by

  // Shards on their way to where the map wants them.
  std::uint8_t moving = 0;
  double done_ratio = 1;
  std::int64_t left_ns = INT64_MAX;  // at the speed so far; INT64_MAX: not known yet
  std::uint64_t repairs_waiting = 0, old_copies = 0;

  template <class A>
  void visit(A& a) {
    a(targets, block_bytes, blocks, whole, degraded, unreadable, strangers, may_lose, map_version,
      map_settled, map_trouble, moving, done_ratio, left_ns, repairs_waiting, old_copies);
  }
};

}  // namespace trimtab::kv_pool
