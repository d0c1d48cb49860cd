#include "engine/prefill_rank.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>

#include "base/hash.h"
#include "engine/sampler.h"
#include "ipc/steady_clock.h"

namespace trimtab::engine {

using base::Code;

namespace {

// A step that began over layers that have not come may wait as long as it computes, or this long if that is
// less.
constexpr base::Nanos kStallLeast{50'000'000};

}  // namespace

PrefillRank::PrefillRank(const PrefillRankConfig& config, policy::CostModel cost, const LlamaShape& shape,
                         const KvArena& arena, BlockMover& mover, Outbox& outbox, RankState* state)
    : config_(config),
      shape_(shape),
      arena_(arena),
      mover_(mover),
      outbox_(outbox),
      scheduler_(config.scheduler, std::move(cost)),
      state_(state),
      admission_(rank_memory(arena.blocks(), state)),
      tables_(admission_.tables()) {}

base::Status PrefillRank::on_frame(const ipc::Frame& frame) {
  switch (wire::type_of(frame)) {
    case wire::Type::kPrefillStart: {
      auto message = wire::from_frame<wire::PrefillStart>(frame);
      if (!message) return tl::unexpected(message.error());
      on_start(std::move(*message));
      return {};
    }
    case wire::Type::kEmbeddings: {
      auto message = wire::from_frame<wire::Embeddings>(frame);
      if (!message) return tl::unexpected(message.error());
      on_embeddings(*message);
      return {};
    }
    case wire::Type::kDecodeTarget: {
      auto message = wire::from_frame<wire::DecodeTarget>(frame);
      if (!message) return tl::unexpected(message.error());
      on_target(std::move(*message));
      return {};
    }
    case wire::Type::kAbort: {
      auto message = wire::from_frame<wire::Abort>(frame);
      if (!message) return tl::unexpected(message.error());
      on_abort(message->id);
      return {};
    }
    default:
      return base::fail(Code::kInternal, fmt::format("message type {} is not for a prefill rank", frame.type),
                        "engine");
  }
}

std::optional<std::string> PrefillRank::fault_of(const wire::PrefillStart& message) const {
  const auto size = static_cast<std::int64_t>(message.tokens.size());
  if (size == 0) return "an empty prompt";
  if (size >= config_.context_tokens)
    return fmt::format("a prompt of {} tokens leaves no room in a context of {}", size,
                       config_.context_tokens);
  for (const std::int32_t token : message.tokens) {
    if (token < 0 || static_cast<std::size_t>(token) >= shape_.vocabulary)
      return fmt::format("token {} is not in the vocabulary of {}", token, shape_.vocabulary);
  }
  if (message.hit_tokens % kAttentionBlock != 0 || message.hit_tokens >= size ||
      message.hit_tokens / kAttentionBlock > message.keys.size()) {
    return fmt::format(
        "a hit of {} tokens in a prompt of {} with {} keys: whole blocks with keys, and less "
        "than the prompt",
        message.hit_tokens, size, message.keys.size());
  }
  if (message.window.kv_blocks > message.keys.size() ||
      std::int64_t{message.window.kv_blocks} * model::kBlockTokens > size)
    return fmt::format("block KV of {} blocks for a prompt of {} with {} keys", message.window.kv_blocks,
                       size, message.keys.size());
  std::int64_t free_from = 0;
  for (const model::ImageSpan& image : message.images) {
    if (image.tokens == 0 || image.position < free_from || image.position + image.tokens > size)
      return fmt::format("an image of {} tokens at {}: images lie inside the prompt, in order, apart",
                         image.tokens, image.position);
    free_from = image.position + image.tokens;
  }
  return std::nullopt;
}

void PrefillRank::on_start(wire::PrefillStart message) {
  const model::RequestId id = message.id;
  // It has left but for the mover's last word, which comes back after `done` went out.
  if (const auto found = requests_.find(id);
      found != requests_.end() && found->second.said && found->second.said->load())
    leave(id);
  if (requests_.contains(id)) {
    spdlog::error("request {} came twice; the second is ignored", id.value);
    return;
  }
  std::sort(message.images.begin(), message.images.end(),
            [](const auto& a, const auto& b) { return a.position < b.position; });
  if (auto fault = fault_of(message)) {
    outbox_.send(wire::RequestFailed{id, Code::kInvalidArgument, std::move(*fault)});
    return;
  }
  const std::uint32_t needed = kv::blocks_for(static_cast<std::int64_t>(message.tokens.size()));
  if (needed > arena_.blocks()) {
    outbox_.send(wire::RequestFailed{
        id, Code::kResourceExhausted,
        fmt::format("the prompt needs {} KV blocks, a prefill rank has {}: raise [prefill] kv_blocks", needed,
                    arena_.blocks())});
    return;
  }
  Request& request = requests_[id];
  for (const model::ImageSpan& span : message.images) request.images.push_back({span, {}});
  request.start = std::move(message);
  request.stay = ++stays_;
  request.done.id = id;
  queue_.push_back(id);
  admit();
}

void PrefillRank::admit() {
  while (!queue_.empty()) {
    Request& request = requests_.at(queue_.front());
    const model::RequestId id = request.start.id;
    if (!admission_.admit(id, static_cast<std::int64_t>(request.start.tokens.size()))) return;
    queue_.pop_front();
    const std::uint32_t hit = blocks_to_fetch(request);
    if (hit == 0) {
      if (state_ != nullptr) state_->arena.set_from(*admission_.slot_of(id), 0);
      begin_compute(request, 0, 0);
      continue;
    }
    request.stage = Stage::kFetching;
    submit(fetch_of(request, hit));
  }
}

void PrefillRank::begin_compute(Request& request, std::uint32_t hit_blocks, std::uint32_t present_blocks) {
  request.stage = Stage::kComputing;
  request.computed = static_cast<std::int64_t>(hit_blocks) * model::kBlockTokens;
  request.kv_present = static_cast<std::int64_t>(present_blocks) * model::kBlockTokens;
  request.done.hit_tokens = static_cast<std::uint32_t>(request.computed);
  policy::RankRequest entry;
  entry.id = request.start.id;
  entry.prompt = base::TokenCount{static_cast<std::int64_t>(request.start.tokens.size())};
  entry.computed = base::TokenCount{request.computed};
  entry.batch_cap = base::Nanos{request.start.batch_cap_ns};
  entry.images = request.start.images;
  entry.ready = ready_until(request);
  scheduler_.add(std::move(entry));
}

base::TokenCount PrefillRank::ready_until(const Request& request) const {
  for (const Image& image : request.images) {
    const bool in_hit = image.span.position + image.span.tokens <= request.done.hit_tokens;
    if (!in_hit && image.rows.empty()) return base::TokenCount{image.span.position};
  }
  return base::TokenCount{INT64_MAX};
}

void PrefillRank::on_embeddings(const wire::Embeddings& message) {
  auto segment = ipc::Segment::open(message.segment, true);
  ipc::Segment::remove(message.segment);
  const auto found = requests_.find(message.id);
  if (found == requests_.end() || found->second.ending) return;  // aborted meanwhile
  Request& request = found->second;
  const std::size_t bytes = std::size_t{message.rows} * message.hidden * sizeof(float);
  const bool fits = message.image < request.images.size() && message.hidden == shape_.hidden &&
                    message.rows == request.images[message.image].span.tokens;
  if (!fits || !segment || segment->size() < bytes) {
    return fail(message.id, Code::kInternal,
                fmt::format("embeddings of image {}, {} x {} in {}: not what the prompt asks for",
                            message.image, message.rows, message.hidden, message.segment));
  }
  Image& image = request.images[message.image];
  image.rows.resize(bytes / sizeof(float));
  std::memcpy(image.rows.data(), segment->data(), bytes);
  request.embeddings.clear();
  for (const Image& each : request.images)
    if (!each.rows.empty()) request.embeddings.push_back({each.span.position, each.rows});
  if (request.stage == Stage::kComputing) scheduler_.set_ready(message.id, ready_until(request));
}

void PrefillRank::on_target(wire::DecodeTarget message) {
  const auto found = requests_.find(message.id);
  if (found == requests_.end() || found->second.ending) return;
  found->second.target = std::move(message);
  if (found->second.stage == Stage::kComputed) hand_over(found->second);
}

void PrefillRank::on_abort(model::RequestId id) {
  if (const auto found = requests_.find(id); found != requests_.end()) {
    found->second.failure.reset();  // whatever befell it, the answer to Abort is Released
    return end(id);
  }
  outbox_.send(wire::Released{id, tables_.allocator().free()});
}

RankRole::Proposal PrefillRank::propose() {
  begin_early();
  vote_ = scheduler_.vote();
  return {!scheduler_.plan(vote_.vote).chunks.empty(), vote_.vote};
}

std::span<const Segment> PrefillRank::plan(base::Nanos budget) {
  plan_ = scheduler_.plan(budget);
  may_stall_ = std::max(plan_.predicted_whole, kStallLeast);
  step_began_ = ipc::SteadyClock().now();
  segments_.clear();
  for (const policy::PlannedChunk& chunk : plan_.chunks) {
    Request& request = requests_.at(chunk.id);
    TRIMTAB_CHECK(chunk.computed.value == request.computed);
    Segment& segment = segments_.emplace_back();
    if (request.early) {
      request.swap->allow(&may_stall_);
      segment.wait = request.swap.get();
    }
    segment.tokens = std::span(request.start.tokens)
                         .subspan(static_cast<std::size_t>(chunk.computed.value),
                                  static_cast<std::size_t>(chunk.tokens.value));
    segment.start = chunk.computed.value;
    segment.blocks = tables_.blocks(chunk.id);
    segment.embeddings = request.embeddings;
    segment.wants_logits =
        chunk.computed.value + chunk.tokens.value == static_cast<std::int64_t>(request.start.tokens.size());
    if (state_ != nullptr) plan_window(request, segment);
  }
  return segments_;
}

void PrefillRank::finish_step(const Forward& forward) {
  const Forward::Compute compute = forward.compute();
  actual_ = scheduler_.cost().scope() == model::QuotaScope::kAttention ? compute.attention : compute.whole;
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    if (segments_[i].wait != nullptr) count_stall(requests_.at(plan_.chunks[i].id));
    if (forward.lost(i)) throw_away(requests_.at(plan_.chunks[i].id), plan_.chunks[i]);
  }
  scheduler_.done(plan_, compute.whole);
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    if (forward.lost(i)) continue;
    const policy::PlannedChunk& chunk = plan_.chunks[i];
    Request& request = requests_.at(chunk.id);
    const std::int64_t before = request.computed;
    request.computed += chunk.tokens.value;
    request.done.computed_tokens += static_cast<std::uint32_t>(chunk.tokens.value);
    store_new_blocks(request, std::max(before, request.kv_present));
    if (state_ != nullptr) keep_snapshots(request);
  }
  report_step(forward);
  std::size_t row = 0;
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    if (!segments_[i].wants_logits) continue;
    const std::span<const float> logits = forward.logits(row++);
    if (!forward.lost(i)) complete(requests_.at(plan_.chunks[i].id), logits);
  }
}

void PrefillRank::complete(Request& request, std::span<const float> logits) {
  const wire::PrefillStart& start = request.start;
  request.done.first_token = sample(logits, start.sampling, start.tokens.size());
  if (config_.logits_checksums) request.done.logits_checksum = base::checksum_of(logits);
  const bool kept = start.window.audit == wire::DriftAudit::kKeep && request.drifts;
  if (kept || request.is_truth()) request.done.logits.assign(logits.begin(), logits.end());
  request.stage = Stage::kComputed;
  if (std::find(start.stop_tokens.begin(), start.stop_tokens.end(), request.done.first_token) !=
      start.stop_tokens.end()) {
    request.done.finish = model::FinishReason::kStop;
    return store_then_finish(request);
  }
  if (start.hand_over == 0 || request.is_truth()) return store_then_finish(request);
  if (request.target) hand_over(request);
}

void PrefillRank::store_then_finish(Request& request) {
  request.stage = Stage::kStoring;
  if (request.jobs == 0) finish(request.start.id);
}

void PrefillRank::on_moved(MoveDone done) {
  for (const std::uint32_t block : done.job.blocks) tables_.allocator().release(block);
  --moves_;
  const auto found = requests_.find(done.job.id);
  if (found != requests_.end() && found->second.stay == done.job.stay) {
    Request& request = found->second;
    TRIMTAB_CHECK(request.jobs > 0);
    --request.jobs;
    if (request.ending) {
      if (request.jobs == 0) end(done.job.id);
    } else if (done.job.kind == MoveJob::Kind::kStore) {
      request.done.stored_blocks -= static_cast<std::uint32_t>(done.job.blocks.size()) - done.moved;
      if (request.stage == Stage::kStoring && request.jobs == 0) finish(done.job.id);
    } else if (done.job.kind == MoveJob::Kind::kHandOver) {
      // A target that is gone is the control's to know and to mend: it sees that nothing was handed over.
      if (!done.status)
        spdlog::warn("request {}: {}", done.job.id.value, base::to_string(done.status.error()));
      leave(done.job.id);
      admit();
    } else {
      on_fetched(done.job.id, request, done);
    }
  }
  admit();  // stores that outlived their request may have held the blocks that the next one waits for
}

void PrefillRank::submit(MoveJob job) {
  for (const std::uint32_t block : job.blocks) tables_.allocator().retain(block);
  Request& request = requests_.at(job.id);
  ++request.jobs;
  job.stay = request.stay;
  ++moves_;
  mover_.submit(std::move(job));
}

void PrefillRank::finish(model::RequestId id) {
  const wire::PrefillDone done = requests_.at(id).done;
  leave(id);
  outbox_.send(done);
  admit();
}

void PrefillRank::leave(model::RequestId id) {
  admission_.release(id);
  requests_.erase(id);
}

void PrefillRank::fail(model::RequestId id, base::Code code, std::string message) {
  requests_.at(id).failure = wire::RequestFailed{id, code, std::move(message)};
  end(id);
}

void PrefillRank::end(model::RequestId id) {
  Request& request = requests_.at(id);
  if (!request.ending) {
    request.ending = true;
    scheduler_.remove(id);
    std::erase(queue_, id);
    if (request.jobs > 0) mover_.cancel(id);
  }
  if (request.jobs > 0) return;  // on_moved comes back here
  const std::optional<wire::RequestFailed> failure = std::move(request.failure);
  if (tables_.contains(id)) admission_.release(id);
  requests_.erase(id);
  if (failure) {
    outbox_.send(*failure);
  } else {
    outbox_.send(wire::Released{id, tables_.allocator().free()});
  }
  admit();
}

}  // namespace trimtab::engine
