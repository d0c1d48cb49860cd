#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kv_pool/pool_report.h"
#include "kv_pool/pool_stats.h"
#include "wire/messages.h"

/// What the loader and its users say over the pool's socket. A user asks one question at a time; a question
/// that is given up closes the connection, and the loader then takes back all that the connection held. Fetch
/// plans are told without an answer: what becomes of their blocks stands in the connection's progress ring.
/// Bulk data lies in the arena, whose descriptor comes with `Welcome`.
namespace trimtab::kv_pool::protocol {

using model::BlockKey;

inline constexpr std::uint32_t kVersion = 5;

constexpr wire::Type kv_type(int offset) {
  return static_cast<wire::Type>(static_cast<int>(wire::Type::kKvFirst) + offset);
}

/// User -> loader, first. `block_bytes` 0: any.
struct Hello {
  static constexpr wire::Type kType = kv_type(0);
  std::uint32_t version = kVersion;
  std::uint64_t block_bytes = 0;
  template <class A>
  void visit(A& a) {
    a(version, block_bytes);
  }
};

/// With it come two descriptors: the arena, whose slot i begins at byte i * slot_stride, and the connection's
/// progress ring. A refusal comes without them.
struct Welcome {
  static constexpr wire::Type kType = kv_type(1);
  std::string refusal;  // not empty: why the loader does not serve this user
  std::uint32_t slots = 0;
  std::uint64_t slot_stride = 0, block_bytes = 0;
  std::uint32_t layers = 1;     // of a block
  std::uint32_t held_most = 0;  // blocks of fetch plans that one user may hold at a time
  template <class A>
  void visit(A& a) {
    a(refusal, slots, slot_stride, block_bytes, layers, held_most);
  }
};

struct Match {
  static constexpr wire::Type kType = kv_type(2);
  std::uint8_t counted = 1;
  std::uint32_t prompt_blocks =
      0;  // of the prompt, the last one that is not full among them; 0: as many as keys
  std::vector<BlockKey> keys;
  template <class A>
  void visit(A& a) {
    a(counted, prompt_blocks, keys);
  }
};
struct Matched {
  static constexpr wire::Type kType = kv_type(3);
  std::uint32_t blocks = 0;
  std::uint64_t epoch = 0;
  std::uint64_t request = 0;  // the name of a counted one in `Answered`
  template <class A>
  void visit(A& a) {
    a(blocks, epoch, request);
  }
};

/// Answered by `Got` once the block lies in memory; it is then pinned until `Unpin`.
struct Get {
  static constexpr wire::Type kType = kv_type(4);
  BlockKey key;
  template <class A>
  void visit(A& a) {
    a(key);
  }
};
enum class GetOutcome : std::uint8_t { kPinned, kMissing, kCorrupt, kRefused };
struct Got {
  static constexpr wire::Type kType = kv_type(5);
  GetOutcome outcome = GetOutcome::kMissing;
  std::uint32_t slot = 0;
  std::uint64_t checksum = 0;
  template <class A>
  void visit(A& a) {
    a(outcome, slot, checksum);
  }
};
/// No answer. `corrupt`: the content did not match; the entry is withdrawn.
struct Unpin {
  static constexpr wire::Type kType = kv_type(6);
  std::uint32_t slot = 0;
  std::uint8_t corrupt = 0;
  template <class A>
  void visit(A& a) {
    a(slot, corrupt);
  }
};

struct Put {
  static constexpr wire::Type kType = kv_type(7);
  BlockKey key;
  std::uint8_t has_parent = 0;
  BlockKey parent;
  template <class A>
  void visit(A& a) {
    a(key, has_parent, parent);
  }
};
enum class PutOutcome : std::uint8_t { kGranted, kPresent, kRefused };
struct PutSlot {
  static constexpr wire::Type kType = kv_type(8);
  PutOutcome outcome = PutOutcome::kRefused;
  std::uint32_t slot = 0;
  template <class A>
  void visit(A& a) {
    a(outcome, slot);
  }
};
/// The granted slot is filled: make it visible. Answered by `Committed`.
struct Commit {
  static constexpr wire::Type kType = kv_type(9);
  std::uint32_t slot = 0;
  std::uint64_t checksum = 0;
  template <class A>
  void visit(A& a) {
    a(slot, checksum);
  }
};
struct Committed {
  static constexpr wire::Type kType = kv_type(10);
  template <class A>
  void visit(A&) {}
};

/// Answered by `Flushed` when everything committed before is durable, or cannot become so.
struct Flush {
  static constexpr wire::Type kType = kv_type(11);
  template <class A>
  void visit(A&) {}
};
struct Flushed {
  static constexpr wire::Type kType = kv_type(12);
  std::uint8_t durable = 0;
  template <class A>
  void visit(A& a) {
    a(durable);
  }
};

struct AskStats {
  static constexpr wire::Type kType = kv_type(13);
  template <class A>
  void visit(A&) {}
};
struct Stats {
  static constexpr wire::Type kType = kv_type(14);
  PoolStats stats;
  template <class A>
  void visit(A& a) {
    a(stats);
  }
};

/// A plan: the user wants these blocks, in this order. Its number is new on this connection. A block is given
/// a slot when one is free and the user holds fewer than `held_most`; it keeps it until released.
struct Fetch {
  static constexpr wire::Type kType = kv_type(15);
  std::uint64_t plan = 0;
  std::vector<BlockKey> keys;
  std::int64_t deadline_ns = INT64_MAX;  // an instant of the machine's steady clock
  std::int32_t priority = 0;             // higher first
  template <class A>
  void visit(A& a) {
    a(plan, keys, deadline_ns, priority);
  }
};
/// Ends the plan and releases whatever it holds.
struct CancelFetch {
  static constexpr wire::Type kType = kv_type(16);
  std::uint64_t plan = 0;
  template <class A>
  void visit(A& a) {
    a(plan);
  }
};
/// These blocks of a plan, each once it was given a slot. `corrupt`: their content did not match.
struct Release {
  static constexpr wire::Type kType = kv_type(17);
  std::uint64_t plan = 0;
  std::vector<std::uint32_t> blocks;
  std::uint8_t corrupt = 0;
  template <class A>
  void visit(A& a) {
    a(plan, blocks, corrupt);
  }
};

/// An operator's change of the pool's targets, which are named by place or number. Answered by `Managed`.
struct Manage {
  static constexpr wire::Type kType = kv_type(18);
  enum class Change : std::uint8_t { kGiveUp, kDrain, kExpand, kReplace };
  Change change = Change::kExpand;
  std::string target;                // all but kExpand
  std::vector<std::string> places;   // kExpand: the new ones; kReplace: the one that stands in
  std::vector<std::uint32_t> racks;  // kExpand: of each, where the pool's map has racks
  template <class A>
  void visit(A& a) {
    a(change, target, places, racks);
  }
};
/// It has begun, and goes on in the background (`Pool` says how far), or it was refused.
struct Managed {
  static constexpr wire::Type kType = kv_type(19);
  std::string refusal;
  template <class A>
  void visit(A& a) {
    a(refusal);
  }
};

struct AskPool {
  static constexpr wire::Type kType = kv_type(20);
  template <class A>
  void visit(A&) {}
};
struct Pool {
  static constexpr wire::Type kType = kv_type(21);
  std::string refusal;  // not empty: it has no targets
  PoolReport report;
  template <class A>
  void visit(A& a) {
    a(refusal, report);
  }
};

/// The answer to a request is whole, and has so many tokens: who leaves the pool goes by that. No answer; of
/// a request that is not known (any more) it is without effect.
struct Answered {
  static constexpr wire::Type kType = kv_type(22);
  std::uint64_t request = 0;
  std::uint32_t tokens = 0;
  template <class A>
  void visit(A& a) {
    a(request, tokens);
  }
};

}  // namespace trimtab::kv_pool::protocol
