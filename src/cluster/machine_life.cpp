#include <fmt/format.h>

#include "base/check.h"
#include "cluster/machine.h"

namespace trimtab::cluster {
namespace {

std::int64_t blocks_of(TokenCount tokens) {
  return (tokens.value + model::kBlockTokens - 1) / model::kBlockTokens;
}

}  // namespace

std::string_view name(Stage stage) {
  switch (stage) {
    case Stage::kMatching:
      return "matching";
    case Stage::kQueued:
      return "queued";
    case Stage::kGranted:
      return "waiting for its decode place";
    case Stage::kPrefilling:
      return "prefilling";
    case Stage::kDecoding:
      return "decoding";
  }
  return "unknown";
}

void Machine::on(const Submitted& event) {
  TRIMTAB_CHECK(!lives_.contains(event.id),
                "request " + std::to_string(event.id.value) + " was submitted twice");
  TRIMTAB_CHECK(event.prompt.value > 0 && event.output_limit.value > 0);
  Life& life = lives_[event.id];
  life.id = event.id;
  ++stages_[static_cast<std::size_t>(life.stage)];
  life.prompt = event.prompt;
  life.output_limit = event.output_limit;
  life.arrival = now_;
  if (event.timeout < base::kForever - now_) life.deadline = now_ + event.timeout;
  std::int64_t patches = 0;
  for (const model::ImageSpan& span : event.images) {
    life.images.push_back({span, ImageStage::kIdle, EncoderId{}, 0, Nanos{}});
    patches += span.patches;
  }
  log(life.id, [&] {
    return SubmittedRecord{life.prompt, life.output_limit, static_cast<std::uint32_t>(life.images.size()),
                           patches};
  });
  if (!fits_somewhere(life) || !admit(life, Nanos{})) return;
  life.admitted = true;
  admission_.accepted(life.id);
  if (life.deadline != base::kForever) deadlines_.emplace(life.deadline, life.id);
  emit(Match{life.id});
}

// What no engine could take even when empty must not wait in front of it for ever.
bool Machine::fits_somewhere(Life& life) {
  const std::int64_t blocks = blocks_of(life.tokens());
  if (blocks > config_.prefill.kv_blocks) {
    fail(life, base::Code::kInvalidArgument,
         fmt::format(
             "the prompt of {} tokens needs {} KV blocks and a prefill rank has {}: shorten it, or raise "
             "prefill.kv_blocks",
             life.tokens().value, blocks, config_.prefill.kv_blocks));
    return false;
  }
  const std::int64_t kv = config_.decode.kv_blocks * model::kBlockTokens;
  if (const std::int64_t headroom = decode_->config().headroom_tokens;
      life.needs_decode() && life.tokens().value + 1 + headroom > kv) {
    fail(
        life, base::Code::kInvalidArgument,
        fmt::format(
            "the prompt of {} tokens and {} of headroom do not fit a decode rank's {} KV tokens: shorten it, "
            "or raise decode.kv_blocks",
            life.tokens().value, headroom, kv));
    return false;
  }
  return true;
}

// Asked twice: at the door, by what is queued ahead alone, so that a full cluster is not even asked for a
// hit; and after the match, when the work of the request itself is known too. The second time only that work
// counts: the limits hold the request already, and a group that is lost for a moment is waited for.
bool Machine::admit(Life& life, Nanos work) {
  const policy::AdmissionRequest request{life.id, queue_->tier_of(life.prompt), work, life.deadline};
  const policy::AdmissionDecision decision = admission_.decide(request, now_);
  std::optional<Nanos> retry_after;
  if (decision.retry_after_s > 0) retry_after = Nanos{decision.retry_after_s * 1'000'000'000};
  using Rule = policy::AdmissionRule;
  const bool too_much_work = decision.rule == Rule::kTtftLimit || decision.rule == Rule::kDeadlineTooNear;
  const bool at_door = !life.admitted;
  if (!at_door && !too_much_work) return true;
  if (at_door || !decision.accepted) {
    log(life.id, [&] {
      return AdmissionRecord{decision.accepted, decision.queued_quota, decision.predicted_ttft,
                             decision.limit,    retry_after,           policy::describe(decision)};
    });
  }
  if (decision.accepted) return true;
  fail(life, decision.code, policy::describe(decision), retry_after);
  return false;
}

void Machine::on(const Matched& event) {
  Life* life = find(event.id);
  // A match of before a change (or of a request that is gone) answers a question that nobody asks any more.
  if (life == nullptr || life->stage != Stage::kMatching || event.tokens != life->tokens()) return;
  TRIMTAB_CHECK(event.hit.value >= 0 && event.hit < event.tokens, "a hit must leave a token to compute");
  life->hit = event.hit;
  life->prefilled = event.hit;
  life->quota = cost_.request(life->hit, life->tokens());
  life->spent = Nanos{};
  if (life->seat == Seat::kBound) came_back(*life);
  std::uint32_t to_encode = 0;
  for (const ImageLife& image : life->images) to_encode += life->needs(image) ? 1 : 0;
  log(life->id, [&] { return MatchRecord{life->tokens(), life->hit, life->quota, to_encode}; });
  if (!life->accepted) {
    if (!admit(*life, life->quota)) return;
    life->accepted = true;
    life->first_hit = life->hit;
    emit(Accept{life->id, life->prompt, life->hit});
  }
  enqueue(*life, life->redos > 0 || life->generated.value > 0 ? "came back, keeps its arrival" : "");
  serve();
}

void Machine::enqueue(Life& life, std::string reason) {
  const policy::EnqueueDecision decision = queue_->push(
      {life.id, life.tokens(), life.quota, blocks_of(life.tokens()), life.arrival, life.deadline});
  enter(life, Stage::kQueued);
  admission_.queued(life.id, decision.tier, life.quota);
  log(life.id, [&] {
    return QueueRecord{
        decision.tier,    life.tokens(), life.quota, life.arrival, static_cast<std::uint32_t>(decision.depth),
        std::move(reason)};
  });
}

void Machine::on(const Cancelled& event) {
  Life* life = find(event.id);
  if (life == nullptr) return;
  log(life->id, [&] { return CancelledRecord{std::string(name(life->stage)), life->generated}; });
  erase(*life);
  serve();
}

void Machine::requeue(Life& life, Place from, bool counts, base::Code code, const std::string& why) {
  TRIMTAB_CHECK(!life.prefill && (life.seat == Seat::kNone));
  if (counts) ++life.redos;
  if (life.redos > limits_.redos_max) {
    fail(life, code, fmt::format("gave up after {} redos: {}", limits_.redos_max, why));
    return;
  }
  // It grew while it ran: what no rank can hold any more ends here, as at any other length limit.
  if (blocks_of(life.tokens()) > config_.prefill.kv_blocks) {
    finish(life, model::FinishReason::kLength);
    return;
  }
  log(life.id, [&] { return RequeueRecord{from, life.generated, life.redos, why}; });
  for (ImageLife& image : life.images) {
    if (image.stage == ImageStage::kSent) image.stage = ImageStage::kIdle;
  }
  enter(life, Stage::kMatching);
  life.wanted_since.reset();
  life.head_since.reset();
  life.held_logged = false;
  emit(Match{life.id});
}

void Machine::finish(Life& life, model::FinishReason reason) {
  log(life.id, [&] {
    return FinishedRecord{reason, life.prompt, life.first_hit, life.computed, life.generated};
  });
  emit(Finish{life.id, reason, life.prompt, life.first_hit, life.computed, life.generated});
  erase(life);
}

void Machine::fail(Life& life, base::Code code, std::string message, std::optional<Nanos> retry_after) {
  log(life.id, [&] { return FailedRecord{code, message, retry_after}; });
  emit(Fail{life.id, code, std::move(message), retry_after});
  erase(life);
}

void Machine::abort(RequestId id, Place place, std::optional<Place> then) {
  releases_.expect(id, place, then);
  emit(Abort{id, place});
}

void Machine::let_go_prefill(Life& life) {
  if (!life.prefill) return;
  const Place place = Place::of(model::Role::kPrefill, *life.prefill);
  if (life.stage == Stage::kPrefilling) {
    // The rank may be writing into the decode blocks right now: they are let go after it has stopped.
    std::optional<Place> then;
    if (life.seat == Seat::kTarget) {
      then = Place::of(model::Role::kDecode, life.decode);
      unhold(*then, life.id);
      quarantine(life, *then);
      life.seat = Seat::kNone;
    } else if (life.seat == Seat::kGone) {
      life.seat = Seat::kNone;
    }
    abort(life.id, place, then);
  } else {
    emit(Revoke{life.id, *life.prefill});
  }
  unhold(place, life.id);
  queue_->ack(life.id);
  computed_.erase({life.computed_until, life.id});
  life.prefill.reset();
}

void Machine::let_go_seat(Life& life) {
  switch (life.seat) {
    case Seat::kNone:
      return;
    case Seat::kWanted:
      held_.erase({*life.wanted_since, life.id});
      held_tokens_ -= life.held_kv;
      parked_ -= life.parked ? 1 : 0;
      break;
    case Seat::kGone:
      break;
    case Seat::kBound:
      decode_ended(life);
      return;
    case Seat::kReserving:
    case Seat::kTarget:
    case Seat::kRunning: {
      const Place place = Place::of(model::Role::kDecode, life.decode);
      unhold(place, life.id);
      quarantine(life, place);
      abort(life.id, place);
      break;
    }
  }
  life.seat = Seat::kNone;
}

void Machine::erase(Life& life) {
  const RequestId id = life.id;
  life.ending = true;
  if (life.stage == Stage::kQueued) queue_->ack(id);
  let_go_prefill(life);
  let_go_seat(life);
  std::set<Place> encoders;
  for (std::uint32_t i = 0; i < life.images.size(); ++i) {
    ImageLife& image = life.images[i];
    if (image.stage == ImageStage::kEncoding) {
      encoders.insert(Place::of(image.encoder));
      aborted_images_[{Place::of(image.encoder), id}].push_back(i);
    }
    if (image.stage == ImageStage::kReady) emit(DropEmbeddings{id, i});
  }
  for (const Place& encoder : encoders) {
    unhold(encoder, id);
    abort(id, encoder);
  }
  images_waiting_.erase(id);
  deadlines_.erase({life.deadline, id});
  admission_.ended(id);
  --stages_[static_cast<std::size_t>(life.stage)];
  lives_.erase(id);
}

}  // namespace trimtab::cluster
