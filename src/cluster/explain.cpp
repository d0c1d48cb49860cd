#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cluster/journey.h"

namespace trimtab::cluster {
namespace {

std::string millis(Nanos span) {
  return span == base::kForever ? "no limit" : fmt::format("{:.3f} ms", base::to_millis(span));
}

std::string millis(const std::vector<Nanos>& spans) {
  std::string list;
  for (const Nanos span : spans)
    fmt::format_to(std::back_inserter(list), "{}{}", list.empty() ? "" : ", ", millis(span));
  return list;
}

std::string place(const Place& at) {
  switch (at.role) {
    case model::Role::kPrefill:
      return fmt::format("prefill engine {} rank {}", at.engine.value, at.rank);
    case model::Role::kDecode:
      return fmt::format("decode group {} rank {}", at.engine.value, at.rank);
    case model::Role::kVision:
      break;
  }
  return fmt::format("vision machine {} encoder {}", at.engine.value, at.rank);
}

std::string prefill(RankId id) { return place(Place::of(model::Role::kPrefill, id)); }
std::string decode(RankId id) { return place(Place::of(model::Role::kDecode, id)); }

std::string because(const std::string& reason) { return reason.empty() ? "" : " (" + reason + ")"; }

std::string load(const RankLoad& of) {
  return fmt::format("{} with {} running and {} KV tokens", decode(of.rank), of.running, of.kv.value);
}

struct Line {
  std::string operator()(const SubmittedRecord& r) const {
    return fmt::format("submitted: {} prompt tokens, at most {} of output, {} images of {} patches",
                       r.prompt.value, r.output_limit.value, r.images, r.patches);
  }
  std::string operator()(const AdmissionRecord& r) const {
    std::string line = fmt::format("{}: predicted TTFT {} from {} of queued quota, limit {}",
                                   r.admitted ? "admitted" : "refused", millis(r.predicted_ttft),
                                   millis(r.queued_quota), millis(r.limit));
    if (r.retry_after) line += ", retry after " + millis(*r.retry_after);
    return line + because(r.reason);
  }
  std::string operator()(const MatchRecord& r) const {
    return fmt::format("matched: {} of {} tokens hit, {} to compute, quota predicted {}, {} images to encode",
                       r.hit.value, r.tokens.value, (r.tokens - r.hit).value, millis(r.quota),
                       r.images_to_encode);
  }
  std::string operator()(const QueueRecord& r) const {
    return fmt::format("queued in tier {}: context {} tokens, {} requests there{}", r.tier.value,
                       r.context.value, r.depth, because(r.reason));
  }
  std::string operator()(const LeaseRecord& r) const {
    return fmt::format(
        "pulled by prefill engine {} with {} of quota left (ranks: {}) after {} in the queue; rank {} takes "
        "it, batch "
        "cap {}{}{}",
        r.rank.engine.value, millis(r.engine_quota_left), millis(r.rank_left), millis(r.queue_time),
        r.rank.rank, millis(r.batch_cap), r.aged ? ", aged" : "", because(r.reason));
  }
  std::string operator()(const VisionRecord& r) const {
    return fmt::format("image {} of {} patches to {}, one of {} machines; patches on its encoders: {}{}",
                       r.image, r.patches, place(Place::of(r.encoder)), r.machines,
                       fmt::join(r.patches_now, ", "), because(r.reason));
  }
  std::string operator()(const EncodedRecord& r) const {
    return r.ok ? fmt::format("image {} encoded by {} in {}", r.image, place(Place::of(r.encoder)),
                              millis(r.actual))
                : fmt::format("image {} failed on {}{}", r.image, place(Place::of(r.encoder)),
                              because(r.reason));
  }
  std::string operator()(const DecodeRecord& r) const {
    std::string line = r.winner ? "decode choice: " + load(*r.winner) : std::string("no decode rank for now");
    if (r.runner_up) line += "; runner-up " + load(*r.runner_up);
    return line +
           fmt::format(
               "; request {} KV tokens, {} reserved; {} policy, line {}, mean {}, ceiling {}, {} fit{}",
               r.request_kv.value, r.reserve.value, r.policy, r.waterline.value, r.mean.value,
               r.ceiling.value, r.candidates, because(r.reason));
  }
  std::string operator()(const ReservedRecord& r) const {
    return fmt::format("{} by {}, {} blocks free", r.granted ? "reserved" : "refused", decode(r.rank),
                       r.blocks_free);
  }
  std::string operator()(const ChunkRecord& r) const {
    return fmt::format(
        "chunk: {} tokens after {} on {} in step {}, quota {}; vote {}, group MIN {}; step predicted {}, "
        "took {}",
        r.tokens.value, r.computed.value, prefill(r.rank), r.step, millis(r.predicted), millis(r.vote),
        millis(r.budget), millis(r.step_predicted), millis(r.actual));
  }
  std::string operator()(const PrefillDoneRecord& r) const {
    return fmt::format("prefilled by {}: {} hit, {} computed, KV {}; quota predicted {}, spent {}",
                       prefill(r.rank), r.hit.value, r.computed.value,
                       r.handed ? "handed over" : "left in the pool", millis(r.quota_predicted),
                       millis(r.quota_spent));
  }
  std::string operator()(const DecodeStartRecord& r) const {
    return fmt::format("decoding on {}: {} KV tokens, at most {} to come", decode(r.rank), r.kv.value,
                       r.output_left.value);
  }
  std::string operator()(const RequeueRecord& r) const {
    return fmt::format("back to the queue from {} with {} tokens generated, redo {}{}", place(r.from),
                       r.generated.value, r.redos, because(r.reason));
  }
  std::string operator()(const FinishedRecord& r) const {
    return fmt::format("finished ({}): {} prompt tokens, {} hit, {} computed, {} generated",
                       r.finish == model::FinishReason::kLength ? "length" : "stop", r.prompt.value,
                       r.hit.value, r.computed.value, r.output.value);
  }
  std::string operator()(const FailedRecord& r) const {
    return fmt::format("failed: {}: {}", base::name(r.code), r.message) +
           (r.retry_after ? ", retry after " + millis(*r.retry_after) : "");
  }
  std::string operator()(const CancelledRecord& r) const {
    return fmt::format("cancelled while {}, {} tokens generated", r.stage, r.output.value);
  }
  std::string operator()(const AllocationRecord& r) const {
    return fmt::format("prefill engine {} serves tiers {} to {}; demand by tier: {}{}", r.engine.value,
                       r.tier_first.value, r.tier_last.value, millis(r.demand), because(r.reason));
  }
  std::string operator()(const MembershipRecord& r) const {
    return fmt::format("{}: {}; {}", place(r.place), r.reason, r.serving ? "serving" : "not serving");
  }
};

/// The moments of a journey in their order of time, each with its line.
class Text {
 public:
  explicit Text(const Journey& journey) : journey_(journey) {}

  std::string write() {
    out_ = fmt::format("request {}\n", journey_.id.value);
    if (journey_.submitted) line(journey_.submitted_at, *journey_.submitted);
    if (journey_.admission) line(journey_.submitted_at, *journey_.admission);
    for (std::size_t i = 0; i < journey_.passes.size(); ++i) pass(i, journey_.passes[i]);
    if (journey_.finished) line(journey_.ended_at, *journey_.finished);
    if (journey_.failed) line(journey_.ended_at, *journey_.failed);
    if (journey_.cancelled) line(journey_.ended_at, *journey_.cancelled);
    summary();
    return std::move(out_);
  }

 private:
  void pass(std::size_t number, const JourneyPass& p) {
    if (journey_.passes.size() > 1) fmt::format_to(std::back_inserter(out_), "  pass {}\n", number + 1);
    line(p.matched_at, p.match);
    if (p.queue) line(p.queued_at, *p.queue);
    if (p.lease) line(p.leased_at, *p.lease);
    for (const JourneyImage& image : p.images) {
      line(image.asked_at, image.choice);
      if (image.result) line(image.answered_at, *image.result);
    }
    for (std::size_t i = 0; i < p.choices.size(); ++i) line(p.chosen_at[i], p.choices[i]);
    for (const ReservedRecord& reserved : p.reservations) line(std::nullopt, reserved);
    for (const ChunkRecord& chunk : p.chunks) line(std::nullopt, chunk);
    if (p.prefill) line(p.prefilled_at, *p.prefill);
    if (p.decode) line(p.decode_at, *p.decode);
    if (p.requeue) line(p.requeued_at, *p.requeue);
  }
  void summary() {
    if (journey_.first_token_at) {
      fmt::format_to(std::back_inserter(out_), "  first token after {}; ",
                     millis(*journey_.first_token_at - journey_.submitted_at));
    } else {
      out_ += "  no token; ";
    }
    fmt::format_to(std::back_inserter(out_), "queued {}, quota predicted {}, spent {}",
                   millis(journey_.queue_time()), millis(journey_.quota_predicted()),
                   millis(journey_.quota_spent()));
    if (journey_.ended()) {
      fmt::format_to(std::back_inserter(out_), "; ended after {}",
                     millis(journey_.ended_at - journey_.submitted_at));
    }
    out_ += '\n';
  }
  template <class Body>
  void line(std::optional<Nanos> at, const Body& body) {
    const std::string stamp = at ? fmt::format("{:.3f}", base::to_millis(*at - journey_.submitted_at)) : "";
    fmt::format_to(std::back_inserter(out_), "  {:>12}  {}\n", stamp, Line{}(body));
  }

  const Journey& journey_;
  std::string out_;
};

}  // namespace

std::string explain(const Journey& journey) { return Text(journey).write(); }

std::string describe(const Record& record) { return std::visit(Line{}, record.body); }

}  // namespace trimtab::cluster
