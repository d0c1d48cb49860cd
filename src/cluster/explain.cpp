#include <fmt/format.h>

#include <algorithm>

#include "base/duration_text.h"
#include "cluster/journey.h"

namespace trimtab::cluster {
namespace {

using base::duration_text;

/// "1 image", "2 images".
std::string count(std::int64_t n, const char* noun) {
  return fmt::format("{} {}{}", n, noun, n == 1 ? "" : "s");
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

/// A policy's reason already names its numbers, so where there is one, it is the line; the numbers by
/// themselves are for the JSON, and for records without a reason.
struct Line {
  std::string operator()(const SubmittedRecord& r) const {
    return fmt::format("{} prompt tokens, at most {} of output", r.prompt.value, r.output_limit.value) +
           (r.images == 0 ? "" : fmt::format(", {} of {} patches", count(r.images, "image"), r.patches));
  }
  std::string operator()(const AdmissionRecord& r) const {
    if (!r.reason.empty()) return r.reason;
    return fmt::format("{}: predicted TTFT {}, limit {}; {} queued ahead",
                       r.admitted ? "admitted" : "refused", duration_text(r.predicted_ttft),
                       duration_text(r.limit), duration_text(r.queued_quota)) +
           (r.retry_after ? "; retry after " + duration_text(*r.retry_after) : "");
  }
  std::string operator()(const MatchRecord& r) const {
    return fmt::format("{} of {} tokens hit, {} to compute, quota predicted {}", r.hit.value, r.tokens.value,
                       (r.tokens - r.hit).value, duration_text(r.quota)) +
           (r.images_to_encode == 0 ? "" : fmt::format(", {} to encode", count(r.images_to_encode, "image")));
  }
  std::string operator()(const QueueRecord& r) const {
    return fmt::format("queued in tier {}: context {} tokens, ", r.tier.value, r.context.value) +
           (r.depth <= 1 ? "alone there" : fmt::format("{} more there", r.depth - 1)) + because(r.reason);
  }
  std::string operator()(const LeaseRecord& r) const {
    if (!r.reason.empty()) return r.reason;
    return fmt::format("pulled by {} with {} of quota left on the engine; waited {}{}", prefill(r.rank),
                       duration_text(r.engine_quota_left), duration_text(r.queue_time),
                       r.aged ? ", aged" : "");
  }
  std::string operator()(const VisionRecord& r) const {
    return fmt::format("image {} of {} patches to {}", r.image, r.patches,
                       r.reason.empty() ? place(Place::of(r.encoder)) : r.reason);
  }
  std::string operator()(const EncodedRecord& r) const {
    return r.ok ? fmt::format("image {} encoded in {}", r.image, duration_text(r.actual))
                : fmt::format("image {} failed on {}{}", r.image, place(Place::of(r.encoder)),
                              because(r.reason));
  }
  std::string operator()(const DecodeRecord& r) const {
    std::string line = r.reason;
    if (line.empty()) {
      line = r.winner ? load(*r.winner) : std::string("no decode rank for now");
      if (r.runner_up) line += "; runner-up " + load(*r.runner_up);
    }
    return line + fmt::format("; asks for room for {} tokens", r.reserve.value);
  }
  std::string operator()(const ReservedRecord& r) const {
    return fmt::format("{} by {}, {} left free", r.granted ? "granted" : "refused", decode(r.rank),
                       count(r.blocks_free, "block"));
  }
  std::string operator()(const ChunkRecord& r) const {
    // The engine steps for all of its requests at once: a step may cost more than this request's part of it.
    return fmt::format(
        "{} tokens after {} in step {} of {}; vote {}, group MIN {}; predicted {}, whole step {}, took {}",
        r.tokens.value, r.computed.value, r.step, prefill(r.rank), duration_text(r.vote),
        duration_text(r.budget), duration_text(r.predicted), duration_text(r.step_predicted),
        duration_text(r.actual));
  }
  std::string operator()(const PrefillDoneRecord& r) const {
    return fmt::format("prefilled by {}: {} hit, {} computed, KV {}; quota predicted {}, spent {}",
                       prefill(r.rank), r.hit.value, r.computed.value,
                       r.handed ? "handed over" : "left in the pool", duration_text(r.quota_predicted),
                       duration_text(r.quota_spent));
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
    return fmt::format("{}: {} prompt tokens, {} hit, {} computed, {} generated",
                       r.finish == model::FinishReason::kLength ? "length" : "stop", r.prompt.value,
                       r.hit.value, r.computed.value, r.output.value);
  }
  std::string operator()(const FailedRecord& r) const {
    return fmt::format("{}: {}", base::name(r.code), r.message) +
           (r.retry_after ? ", retry after " + duration_text(*r.retry_after) : "");
  }
  std::string operator()(const CancelledRecord& r) const {
    return fmt::format("while {}, {} tokens generated", r.stage, r.output.value);
  }
  std::string operator()(const AllocationRecord& r) const {
    return fmt::format("prefill engine {} serves tiers {} to {}{}", r.engine.value, r.tier_first.value,
                       r.tier_last.value, because(r.reason));
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
    flush();
    for (std::size_t i = 0; i < journey_.passes.size(); ++i) pass(i, journey_.passes[i]);
    if (journey_.finished) line(journey_.ended_at, *journey_.finished);
    if (journey_.failed) {
      FailedRecord failed = *journey_.failed;
      if (journey_.admission && journey_.admission->reason == failed.message) failed.message = "not admitted";
      line(journey_.ended_at, failed);
    }
    if (journey_.cancelled) line(journey_.ended_at, *journey_.cancelled);
    flush();
    summary();
    return std::move(out_);
  }

 private:
  /// The records of a pass are folded by kind; people want them in the order in which they happened.
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
    for (std::size_t i = 0; i < p.reservations.size(); ++i) line(p.reserved_at[i], p.reservations[i]);
    for (std::size_t i = 0; i < p.chunks.size(); ++i) line(p.chunks_at[i], p.chunks[i]);
    if (p.prefill) line(p.prefilled_at, *p.prefill);
    if (p.decode) line(p.decode_at, *p.decode);
    if (p.requeue) line(p.requeued_at, *p.requeue);
    flush();
  }
  void summary() {
    if (journey_.first_token_at) {
      fmt::format_to(std::back_inserter(out_), "  first token after {}; ",
                     duration_text(*journey_.first_token_at - journey_.submitted_at));
    } else {
      out_ += "  no token; ";
    }
    fmt::format_to(std::back_inserter(out_), "queued {}, quota predicted {}, spent {}",
                   duration_text(journey_.queue_time()), duration_text(journey_.quota_predicted()),
                   duration_text(journey_.quota_spent()));
    if (journey_.ended()) {
      fmt::format_to(std::back_inserter(out_), "; ended after {}",
                     duration_text(journey_.ended_at - journey_.submitted_at));
    }
    out_ += '\n';
  }
  template <class Body>
  void line(Nanos at, const Body& body) {
    lines_.emplace_back(at,
                        fmt::format("{:>10.1f} ms  {:<12} {}\n", base::to_millis(at - journey_.submitted_at),
                                    kind(Record{journey_.id, at, body}), Line{}(body)));
  }
  void flush() {
    std::stable_sort(lines_.begin(), lines_.end(),
                     [](const auto& left, const auto& right) { return left.first < right.first; });
    for (const auto& [at, text] : lines_) out_ += text;
    lines_.clear();
  }

  const Journey& journey_;
  std::vector<std::pair<Nanos, std::string>> lines_;
  std::string out_;
};

}  // namespace

std::string explain(const Journey& journey) { return Text(journey).write(); }

std::string describe(const Record& record) { return std::visit(Line{}, record.body); }

}  // namespace trimtab::cluster
