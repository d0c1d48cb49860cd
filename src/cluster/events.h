#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/error.h"
#include "model/ids.h"
#include "model/request.h"

/// What the host tells the cluster machine. The host translates its engines' messages one to one; tokens,
/// bytes and sockets stay with it, the machine holds sizes and states only. Messages of a connection that was
/// reported lost must not be delivered any more.
namespace trimtab::cluster {

using base::Nanos;
using base::TokenCount;
using model::EncoderId;
using model::EngineId;
using model::RankId;
using model::RequestId;

/// Anyone who can hold something of a request: a prefill rank, a decode rank, or an encoder (then `engine` is
/// the vision machine and `rank` the encoder, as in the engines' Hello).
struct Place {
  model::Role role = model::Role::kPrefill;
  EngineId engine;
  std::uint32_t rank = 0;

  constexpr auto operator<=>(const Place&) const = default;
  static constexpr Place of(model::Role role, RankId id) { return {role, id.engine, id.rank}; }
  static constexpr Place of(EncoderId id) {
    return {model::Role::kVision, EngineId{id.machine.value}, id.encoder};
  }
  constexpr RankId rank_id() const { return {engine, rank}; }
  constexpr EncoderId encoder_id() const { return {model::MachineId{engine.value}, rank}; }
  template <class A>
  void visit(A& a) {
    a(role, engine, rank);
  }
};

/// A new request. `id` must not be in use. Answered by Match, or by Fail (queue limits, deadline, too large
/// for any engine).
struct Submitted {
  RequestId id;
  TokenCount prompt;
  TokenCount output_limit;  // > 0
  std::vector<model::ImageSpan> images;
  Nanos timeout = base::kForever;  // span from now until the request fails with kDeadlineExceeded
  template <class A>
  void visit(A& a) {
    a(id, prompt, output_limit, images, timeout);
  }
};

/// Answer to Match: of the request's `tokens` tokens (prompt and what was generated so far) the pool has the
/// leading `hit` (by the hit rule; always less than `tokens`). A pool that fails is a hit of 0.
struct Matched {
  RequestId id;
  TokenCount tokens;
  TokenCount hit;
  template <class A>
  void visit(A& a) {
    a(id, tokens, hit);
  }
};

/// What one prefill rank can still take: predicted quota, and KV blocks not promised to a request yet.
struct RankOffer {
  Nanos quota_left;
  std::int64_t blocks_free = 0;
  template <class A>
  void visit(A& a) {
    a(quota_left, blocks_free);
  }
};

/// A prefill engine asks for work with its own remaining quota, rank by rank. The latest pull of an engine
/// replaces its earlier one; it is remembered and served when work arrives. `PullAgents` (pull_agents.h)
/// makes these events for engines that do not pull by themselves.
struct Pull {
  EngineId engine;
  std::vector<RankOffer> ranks;
  template <class A>
  void visit(A& a) {
    a(engine, ranks);
  }
};

/// A rank or an encoder said Hello. A group serves once all its configured ranks are there.
struct Joined {
  Place place;
  std::int64_t blocks_total = 0;  // usable KV blocks; 0 for encoders
  template <class A>
  void visit(A& a) {
    a(place, blocks_total);
  }
};

/// A connection ended. A lost rank takes its whole group out until every rank of it has joined again.
struct Lost {
  Place place;
  template <class A>
  void visit(A& a) {
    a(place);
  }
};

/// No new work for this engine, group or vision machine; what it has goes on to its end. `on` false takes it
/// back.
struct Drain {
  model::Role role = model::Role::kPrefill;
  EngineId engine;
  bool on = true;
  template <class A>
  void visit(A& a) {
    a(role, engine, on);
  }
};

struct ChunkReport {
  RequestId id;
  TokenCount tokens;    // q: computed in this step
  TokenCount computed;  // c: before it
  Nanos predicted;
  template <class A>
  void visit(A& a) {
    a(id, tokens, computed, predicted);
  }
};

/// wire::PrefillStep.
struct PrefillStepped {
  RankId from;
  std::uint64_t step = 0;
  Nanos vote, budget;  // what the rank voted; the MIN over the group
  Nanos predicted, actual;
  std::vector<ChunkReport> chunks;
  std::uint32_t waiting = 0;
  Nanos waiting_quota;
  std::int64_t blocks_free = 0;
  template <class A>
  void visit(A& a) {
    a(from, step, vote, budget, predicted, actual, chunks, waiting, waiting_quota, blocks_free);
  }
};

/// wire::PrefillDone: one token was drawn. `handed`: the KV lies in the decode target's blocks (handed_blocks
/// > 0). Not handed and not finished: the machine delivers the token and queues the request again as prompt +
/// generated.
struct PrefillDone {
  RankId from;
  RequestId id;
  bool handed = false;
  TokenCount hit, computed;
  model::FinishReason finish = model::FinishReason::kNone;
  template <class A>
  void visit(A& a) {
    a(from, id, handed, hit, computed, finish);
  }
};

struct Encoded {
  EncoderId from;
  RequestId id;
  std::uint32_t image = 0;  // index into Submitted::images
  Nanos actual;
  template <class A>
  void visit(A& a) {
    a(from, id, image, actual);
  }
};

struct EncodeFailed {
  EncoderId from;
  RequestId id;
  std::uint32_t image = 0;
  base::Code code = base::Code::kInternal;
  std::string message;
  template <class A>
  void visit(A& a) {
    a(from, id, image, code, message);
  }
};

/// wire::Reserved: the answer to Reserve. The host keeps the block numbers for SendTarget.
struct Reserved {
  RankId from;
  RequestId id;
  bool granted = false;
  std::int64_t blocks_free = 0;
  template <class A>
  void visit(A& a) {
    a(from, id, granted, blocks_free);
  }
};

struct TokenReport {
  RequestId id;
  model::FinishReason finish = model::FinishReason::kNone;  // with the last of them
  std::uint32_t count = 1;  // tokens since the last report: several with speculative decoding
  template <class A>
  void visit(A& a) {
    a(id, finish, count);
  }
};

/// wire::DecodeStep: the new tokens of each running request, and the rank's load as it was `load_age` ago.
/// `running` -1: tokens only, the load comes apart (or got lost).
struct DecodeStepped {
  RankId from;
  std::uint64_t step = 0;
  Nanos actual;
  std::vector<TokenReport> tokens;
  std::int64_t running = 0;
  TokenCount kv;
  std::int64_t blocks_free = 0;
  Nanos load_age;
  template <class A>
  void visit(A& a) {
    a(from, step, actual, tokens, running, kv, blocks_free, load_age);
  }
};

/// wire::Preempted: a decode rank ran out of memory and let the request go; its full blocks are in the pool.
struct Preempted {
  RankId from;
  RequestId id;
  TokenCount generated;  // since StartDecode; all were reported by DecodeStepped before
  std::string reason;
  template <class A>
  void visit(A& a) {
    a(from, id, generated, reason);
  }
};

/// wire::RequestFailed: the request cannot go on at this place; everything it held there is free.
struct RequestFailed {
  Place from;
  RequestId id;
  base::Code code = base::Code::kInternal;
  std::string message;
  template <class A>
  void visit(A& a) {
    a(from, id, code, message);
  }
};

/// wire::Released: the answer to Abort.
struct Released {
  Place from;
  RequestId id;
  std::int64_t blocks_free = 0;
  template <class A>
  void visit(A& a) {
    a(from, id, blocks_free);
  }
};

/// The client left, or the gateway has what it wanted. No Finish or Fail follows.
struct Cancelled {
  RequestId id;
  template <class A>
  void visit(A& a) {
    a(id);
  }
};

/// An operator asks that this running request decode on that rank, as a planned move does
/// (`decode.moves_per_1000`). Ignored unless it runs, and the rank is open and has room.
struct Move {
  RequestId id;
  RankId to;
  template <class A>
  void visit(A& a) {
    a(id, to);
  }
};

/// The instant of the last SetTimer has come (later is harmless, and so is one too many).
struct Timer {
  template <class A>
  void visit(A&) {}
};

using Event = std::variant<Submitted, Matched, Pull, Joined, Lost, Drain, PrefillStepped, PrefillDone,
                           Encoded, EncodeFailed, Reserved, DecodeStepped, Preempted, RequestFailed, Released,
                           Cancelled, Timer, Move>;

}  // namespace trimtab::cluster
