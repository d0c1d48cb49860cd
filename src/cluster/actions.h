#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "cluster/events.h"
#include "cluster/records.h"

/// What the cluster machine asks of the host, to be done in the order given. After Finish, Fail or the host's
/// own Cancelled the host may forget the request; only Abort and DropEmbeddings still name it then.
namespace trimtab::cluster {

/// Compute the block keys of prompt + generated, ask the pool, apply the hit rule; answer by Matched.
struct Match {
  RequestId id;
  template <class A>
  void visit(A& a) {
    a(id);
  }
};

/// Once a request, after its first match: Sink::on_accepted.
struct Accept {
  RequestId id;
  TokenCount prompt, hit;
  template <class A>
  void visit(A& a) {
    a(id, prompt, hit);
  }
};

/// A pull was served: this rank will get the request, `quota` and `blocks` of its offer are spent. Nothing to
/// send yet: StartPrefill follows, at once or when the request's decode place is in sight; or Revoke.
struct Grant {
  RequestId id;
  RankId rank;
  TokenCount tokens, hit;
  Nanos quota;  // predicted, for the whole rest
  std::int64_t blocks = 0;
  template <class A>
  void visit(A& a) {
    a(id, rank, tokens, hit, quota, blocks);
  }
};

/// A granted request that was not started will not come.
struct Revoke {
  RequestId id;
  RankId rank;
  template <class A>
  void visit(A& a) {
    a(id, rank);
  }
};

/// wire::PrefillStart to this rank: tokens = prompt + generated so far, of which `hit` come from the pool.
struct StartPrefill {
  RequestId id;
  RankId rank;
  TokenCount tokens, hit;
  Nanos quota;      // predicted, for the whole rest
  Nanos batch_cap;  // the tier's cap on one batch's quota
  /// True: the rank keeps the finished KV until SendTarget (or Abort) comes. False: the first token is all
  /// that is wanted, PrefillDone follows at once.
  bool hand_over = true;
  template <class A>
  void visit(A& a) {
    a(id, rank, tokens, hit, quota, batch_cap, hand_over);
  }
};

/// wire::Encode to this encoder.
struct StartEncode {
  RequestId id;
  std::uint32_t image = 0;
  EncoderId encoder;
  template <class A>
  void visit(A& a) {
    a(id, image, encoder);
  }
};

/// wire::Embeddings to the prefill rank, with the segment of the Encoded message. Always after StartPrefill.
struct SendEmbeddings {
  RequestId id;
  std::uint32_t image = 0;
  RankId rank;
  template <class A>
  void visit(A& a) {
    a(id, image, rank);
  }
};

/// The embeddings of an Encoded message are not wanted (any more): unlink their segment.
struct DropEmbeddings {
  RequestId id;
  std::uint32_t image = 0;
  template <class A>
  void visit(A& a) {
    a(id, image);
  }
};

/// wire::DecodeReserve to this decode rank; answer by Reserved.
struct Reserve {
  RequestId id;
  RankId rank;
  TokenCount tokens;  // KV room, headroom for growth included
  template <class A>
  void visit(A& a) {
    a(id, rank, tokens);
  }
};

/// wire::DecodeTarget to the prefill rank, with the blocks that the decode rank reserved.
struct SendTarget {
  RequestId id;
  RankId prefill, decode;
  template <class A>
  void visit(A& a) {
    a(id, prefill, decode);
  }
};

/// wire::DecodeStart: the KV is in place.
struct StartDecode {
  RequestId id;
  RankId rank;
  TokenCount output_left;
  template <class A>
  void visit(A& a) {
    a(id, rank, output_left);
  }
};

/// wire::Abort. The place answers each Abort by exactly one Released, even when it does not know the request
/// (any more).
struct Abort {
  RequestId id;
  Place place;
  template <class A>
  void visit(A& a) {
    a(id, place);
  }
};

/// The first `count` tokens that the event just stepped (PrefillDone or DecodeStepped) reports for this
/// request go to its client and are kept as generated. Reported tokens without a Deliver are stale, and those
/// beyond its count are over the request's limit: drop them.
struct Deliver {
  RequestId id;
  std::uint32_t count = 1;
  template <class A>
  void visit(A& a) {
    a(id, count);
  }
};

struct Finish {
  RequestId id;
  model::FinishReason reason = model::FinishReason::kStop;
  TokenCount prompt, hit, computed, output;
  template <class A>
  void visit(A& a) {
    a(id, reason, prompt, hit, computed, output);
  }
};

struct Fail {
  RequestId id;
  base::Code code = base::Code::kInternal;
  std::string message;
  std::optional<Nanos> retry_after;  // set when waiting helps
  template <class A>
  void visit(A& a) {
    a(id, code, message, retry_after);
  }
};

/// Append to the decision log.
struct Log {
  Record record;
  template <class A>
  void visit(A& a) {
    a(record);
  }
};

/// Deliver Timer at (or soon after) this instant; replaces the one before.
struct SetTimer {
  Nanos at;
  template <class A>
  void visit(A& a) {
    a(at);
  }
};

using Action =
    std::variant<Match, Accept, Grant, Revoke, StartPrefill, StartEncode, SendEmbeddings, DropEmbeddings,
                 Reserve, SendTarget, StartDecode, Abort, Deliver, Finish, Fail, Log, SetTimer>;

}  // namespace trimtab::cluster
