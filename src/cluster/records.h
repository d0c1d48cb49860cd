#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/codec.h"
#include "cluster/events.h"

/// The decision log: every decision with the numbers it saw and its reason in words. One record is one moment
/// of one request's journey (request 0: of the cluster). All are codec structs, so a log file is a row of
/// encoded records.
namespace trimtab::cluster {

struct SubmittedRecord {
  TokenCount prompt, output_limit;
  std::uint32_t images = 0;
  std::int64_t patches = 0;
  template <class A>
  void visit(A& a) {
    a(prompt, output_limit, images, patches);
  }
};

struct AdmissionRecord {
  bool admitted = false;
  Nanos queued_quota;    // predicted quota ahead of the request, all tiers and engines
  Nanos predicted_ttft;  // from it
  Nanos limit;           // what the prediction was held against
  std::optional<Nanos> retry_after;
  std::string reason;
  template <class A>
  void visit(A& a) {
    a(admitted, queued_quota, predicted_ttft, limit, retry_after, reason);
  }
};

struct MatchRecord {
  TokenCount tokens, hit;  // prompt + generated so far, and what the pool has of it
  Nanos quota;             // predicted for the rest
  std::uint32_t images_to_encode = 0;
  template <class A>
  void visit(A& a) {
    a(tokens, hit, quota, images_to_encode);
  }
};

struct QueueRecord {
  model::TierId tier;
  TokenCount context;
  Nanos quota;
  Nanos waiting_since;  // its aging clock; older than `at` for work that came back
  std::uint32_t depth = 0;
  std::string reason;
  template <class A>
  void visit(A& a) {
    a(tier, context, quota, waiting_since, depth, reason);
  }
};

/// An engine's pull was served.
struct LeaseRecord {
  RankId rank;
  model::TierId tier;
  bool aged = false;
  Nanos queue_time;
  Nanos engine_quota_left;       // of the puller, all ranks, before this request
  std::vector<Nanos> rank_left;  // per rank, before
  Nanos quota, batch_cap, lease_until;
  std::string reason;
  template <class A>
  void visit(A& a) {
    a(rank, tier, aged, queue_time, engine_quota_left, rank_left, quota, batch_cap, lease_until, reason);
  }
};

struct VisionRecord {
  std::uint32_t image = 0;
  std::int64_t patches = 0;
  EncoderId encoder;
  std::uint32_t machines = 0;             // to draw from
  std::vector<std::int64_t> patches_now;  // in flight on the drawn machine's encoders
  std::string reason;
  template <class A>
  void visit(A& a) {
    a(image, patches, encoder, machines, patches_now, reason);
  }
};

struct EncodedRecord {
  std::uint32_t image = 0;
  EncoderId encoder;
  bool ok = true;
  Nanos actual;
  std::string reason;
  template <class A>
  void visit(A& a) {
    a(image, encoder, ok, actual, reason);
  }
};

/// What a decode choice saw of one rank: both dimensions.
struct RankLoad {
  RankId rank;
  std::int64_t running = 0;
  TokenCount kv;
  template <class A>
  void visit(A& a) {
    a(rank, running, kv);
  }
};

struct DecodeRecord {
  std::optional<RankLoad> winner;  // none: the request is held
  std::optional<RankLoad> runner_up;
  std::string policy;
  TokenCount request_kv, reserve;
  TokenCount waterline, mean, ceiling;  // thresholds on KV; 0: none
  std::uint32_t candidates = 0;
  std::string reason;
  template <class A>
  void visit(A& a) {
    a(winner, runner_up, policy, request_kv, reserve, waterline, mean, ceiling, candidates, reason);
  }
};

struct ReservedRecord {
  RankId rank;
  bool granted = false;
  std::int64_t blocks_free = 0;
  template <class A>
  void visit(A& a) {
    a(rank, granted, blocks_free);
  }
};

struct ChunkRecord {
  RankId rank;
  std::uint64_t step = 0;
  TokenCount tokens, computed;
  Nanos predicted;               // of this request's part
  Nanos vote, budget;            // the rank's vote, the MIN over the group
  Nanos step_predicted, actual;  // of the whole step
  template <class A>
  void visit(A& a) {
    a(rank, step, tokens, computed, predicted, vote, budget, step_predicted, actual);
  }
};

struct PrefillDoneRecord {
  RankId rank;
  TokenCount hit, computed;
  bool handed = false;
  Nanos quota_predicted, quota_spent;  // of the cost model, and its share of the steps' actual time
  template <class A>
  void visit(A& a) {
    a(rank, hit, computed, handed, quota_predicted, quota_spent);
  }
};

struct DecodeStartRecord {
  RankId rank;
  TokenCount kv, output_left;
  template <class A>
  void visit(A& a) {
    a(rank, kv, output_left);
  }
};

/// The request goes back to its queue with what it generated: preempted, its rank lost, its lease expired.
struct RequeueRecord {
  Place from;
  TokenCount generated;
  std::uint32_t redos = 0;  // that count against the limit
  std::string reason;
  template <class A>
  void visit(A& a) {
    a(from, generated, redos, reason);
  }
};

struct FinishedRecord {
  model::FinishReason finish = model::FinishReason::kStop;
  TokenCount prompt, hit, computed, output;
  template <class A>
  void visit(A& a) {
    a(finish, prompt, hit, computed, output);
  }
};

struct FailedRecord {
  base::Code code = base::Code::kInternal;
  std::string message;
  std::optional<Nanos> retry_after;
  template <class A>
  void visit(A& a) {
    a(code, message, retry_after);
  }
};

struct CancelledRecord {
  std::string stage;
  TokenCount output;
  template <class A>
  void visit(A& a) {
    a(stage, output);
  }
};

/// One engine's tier range from the last allocation round on.
struct AllocationRecord {
  EngineId engine;
  model::TierId tier_first, tier_last;
  std::vector<Nanos> demand;  // per tier, of the last round
  std::string reason;
  template <class A>
  void visit(A& a) {
    a(engine, tier_first, tier_last, demand, reason);
  }
};

/// A rank joined or was lost, a group went in or out of service, a drain began.
struct MembershipRecord {
  Place place;
  bool serving = false;  // the whole group, afterwards
  std::string reason;
  template <class A>
  void visit(A& a) {
    a(place, serving, reason);
  }
};

using RecordBody = std::variant<SubmittedRecord, AdmissionRecord, MatchRecord, QueueRecord, LeaseRecord,
                                VisionRecord, EncodedRecord, DecodeRecord, ReservedRecord, ChunkRecord,
                                PrefillDoneRecord, DecodeStartRecord, RequeueRecord, FinishedRecord,
                                FailedRecord, CancelledRecord, AllocationRecord, MembershipRecord>;

/// The form of variants in the codec: the index of the alternative (a byte), then its fields.
template <class Variant, class A>
void visit_variant(Variant& value, A& archive) {
  auto index = static_cast<std::uint8_t>(value.index());
  archive(index);
  if constexpr (std::is_same_v<A, base::Reader>) {
    if (index >= std::variant_size_v<Variant>) archive.reject();
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      ((index == I ? static_cast<void>(value.template emplace<I>()) : static_cast<void>(0)), ...);
    }
    (std::make_index_sequence<std::variant_size_v<Variant>>{});
  }
  std::visit([&archive](auto& body) { body.visit(archive); }, value);
}

struct Record {
  RequestId request;
  Nanos at;
  RecordBody body;
  template <class A>
  void visit(A& a) {
    a(request, at);
    visit_variant(body, a);
  }
};

/// "decode", "lease", ...: for filters and JSON.
std::string_view kind(const Record& record);

}  // namespace trimtab::cluster
