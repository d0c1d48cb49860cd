#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cluster/records.h"

namespace trimtab::cluster {

/// One image's way through an encoder.
struct JourneyImage {
  VisionRecord choice;
  Nanos asked_at;
  std::optional<EncodedRecord> result;
  Nanos answered_at;
};

/// One stay at a prefill rank: a request that was preempted or redone has several.
struct JourneyPass {
  MatchRecord match;
  Nanos matched_at;
  std::optional<QueueRecord> queue;
  Nanos queued_at;
  std::optional<LeaseRecord> lease;
  Nanos leased_at;
  std::vector<ChunkRecord> chunks;
  std::vector<Nanos> chunks_at;  // when each was reported as computed
  std::vector<JourneyImage> images;
  std::vector<DecodeRecord> choices;  // of a decode rank, held and refused ones included
  std::vector<Nanos> chosen_at;
  std::vector<ReservedRecord> reservations;
  std::vector<Nanos> reserved_at;
  std::optional<PrefillDoneRecord> prefill;
  Nanos prefilled_at;
  std::optional<DecodeStartRecord> decode;
  Nanos decode_at;
  std::optional<RequeueRecord> requeue;  // how the pass ended, when it was not the last
  Nanos requeued_at;
};

/// A request's whole way through the system, folded from the decision log.
struct Journey {
  RequestId id;
  Nanos submitted_at;
  std::optional<SubmittedRecord> submitted;
  std::optional<AdmissionRecord> admission;
  std::vector<JourneyPass> passes;
  std::optional<FinishedRecord> finished;
  std::optional<FailedRecord> failed;
  std::optional<CancelledRecord> cancelled;
  Nanos ended_at;
  std::optional<Nanos> first_token_at;  // when its first token was drawn

  bool ended() const { return finished || failed || cancelled; }
  /// Sums over all passes.
  Nanos queue_time() const;
  Nanos quota_predicted() const;
  Nanos quota_spent() const;
};

/// Folds one record in; records of other requests are ignored. Records must come in the order of the log.
void observe(Journey& journey, const Record& record);

Journey assemble(RequestId id, const std::vector<Record>& log);

/// The journey as text for people: one line a moment, times in milliseconds since the submission.
std::string explain(const Journey& journey);

/// One record as one line, without the time.
std::string describe(const Record& record);

}  // namespace trimtab::cluster
