#include "cluster/journey.h"

#include <fmt/format.h>

namespace trimtab::cluster {
namespace {

/// Folds the body of one record; passes begin with a match.
class Folder {
 public:
  Folder(Journey& journey, Nanos at) : journey_(journey), at_(at) {}

  void operator()(const SubmittedRecord& r) {
    journey_.submitted = r;
    journey_.submitted_at = at_;
  }
  void operator()(const AdmissionRecord& r) { journey_.admission = r; }
  void operator()(const MatchRecord& r) {
    JourneyPass next;
    next.match = r;
    next.matched_at = at_;
    journey_.passes.push_back(std::move(next));
  }
  void operator()(const QueueRecord& r) {
    pass().queue = r;
    pass().queued_at = at_;
  }
  void operator()(const LeaseRecord& r) {
    pass().lease = r;
    pass().leased_at = at_;
  }
  void operator()(const VisionRecord& r) { pass().images.push_back({r, at_, std::nullopt, Nanos{}}); }
  void operator()(const EncodedRecord& r) {
    for (auto image = pass().images.rbegin(); image != pass().images.rend(); ++image) {
      if (image->choice.image != r.image || image->result) continue;
      image->result = r;
      image->answered_at = at_;
      return;
    }
  }
  void operator()(const DecodeRecord& r) {
    pass().choices.push_back(r);
    pass().chosen_at.push_back(at_);
  }
  void operator()(const ReservedRecord& r) {
    pass().reservations.push_back(r);
    pass().reserved_at.push_back(at_);
  }
  void operator()(const ChunkRecord& r) {
    pass().chunks.push_back(r);
    pass().chunks_at.push_back(at_);
  }
  void operator()(const PrefillDoneRecord& r) {
    pass().prefill = r;
    pass().prefilled_at = at_;
    if (!journey_.first_token_at) journey_.first_token_at = at_;
  }
  void operator()(const DecodeStartRecord& r) {
    pass().decode = r;
    pass().decode_at = at_;
  }
  void operator()(const RequeueRecord& r) {
    pass().requeue = r;
    pass().requeued_at = at_;
  }
  void operator()(const FinishedRecord& r) { end(journey_.finished, r); }
  void operator()(const FailedRecord& r) { end(journey_.failed, r); }
  void operator()(const CancelledRecord& r) { end(journey_.cancelled, r); }
  void operator()(const AllocationRecord&) {}
  void operator()(const MembershipRecord&) {}

 private:
  template <class T>
  void end(std::optional<T>& slot, const T& record) {
    slot = record;
    journey_.ended_at = at_;
  }
  // A log may have lost its oldest records; what is left is still told.
  JourneyPass& pass() {
    if (journey_.passes.empty()) journey_.passes.emplace_back();
    return journey_.passes.back();
  }

  Journey& journey_;
  Nanos at_;
};

}  // namespace

void observe(Journey& journey, const Record& record) {
  if (record.request == journey.id) std::visit(Folder(journey, record.at), record.body);
}

Journey assemble(RequestId id, const std::vector<Record>& log) {
  Journey journey;
  journey.id = id;
  for (const Record& record : log) observe(journey, record);
  return journey;
}

Nanos Journey::queue_time() const {
  Nanos sum;
  for (const JourneyPass& pass : passes) {
    if (pass.lease) sum += pass.lease->queue_time;
  }
  return sum;
}

Nanos Journey::quota_predicted() const {
  Nanos sum;
  for (const JourneyPass& pass : passes) sum += pass.match.quota;
  return sum;
}

Nanos Journey::quota_spent() const {
  Nanos sum;
  for (const JourneyPass& pass : passes) {
    if (pass.prefill) sum += pass.prefill->quota_spent;
  }
  return sum;
}

}  // namespace trimtab::cluster
