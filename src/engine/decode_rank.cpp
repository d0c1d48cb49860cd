#include "engine/decode_rank.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "base/hash.h"
#include "engine/sampler.h"
#include "policy/decode/victim.h"

namespace trimtab::engine {

using base::Code;

DecodeRank::DecodeRank(const DecodeRankConfig& config, const LlamaShape& shape, const KvArena& arena,
                       BlockMover& mover, Outbox& outbox, RankState* state)
    : config_(config),
      shape_(shape),
      arena_(arena),
      mover_(mover),
      outbox_(outbox),
      state_(state),
      admission_(rank_memory(arena.blocks(), state)),
      tables_(admission_.tables()) {}

base::Status DecodeRank::on_frame(const ipc::Frame& frame) {
  switch (wire::type_of(frame)) {
    case wire::Type::kDecodeReserve: {
      auto message = wire::from_frame<wire::DecodeReserve>(frame);
      if (!message) return tl::unexpected(message.error());
      on_reserve(*message);
      return {};
    }
    case wire::Type::kDecodeStart: {
      auto message = wire::from_frame<wire::DecodeStart>(frame);
      if (!message) return tl::unexpected(message.error());
      on_start(std::move(*message));
      return {};
    }
    case wire::Type::kAbort: {
      auto message = wire::from_frame<wire::Abort>(frame);
      if (!message) return tl::unexpected(message.error());
      on_abort(message->id);
      return {};
    }
    default:
      return base::fail(Code::kInternal, fmt::format("message type {} is not for a decode rank", frame.type),
                        "engine");
  }
}

void DecodeRank::on_reserve(const wire::DecodeReserve& message) {
  wire::Reserved answer{message.id, {}, 0, 0};
  const std::int64_t tokens = std::max<std::int64_t>(1, message.tokens);
  if (requests_.contains(message.id)) {
    spdlog::error("request {} asked for room twice; the second is refused", message.id.value);
  } else if (const auto slot = admission_.admit(message.id, tokens)) {
    if (*slot) answer.state_slot = **slot;
    requests_[message.id].stay = ++stays_;
    const auto blocks = tables_.blocks(message.id);
    answer.blocks.assign(blocks.begin(), blocks.end());
  }
  answer.blocks_free = tables_.allocator().free();
  outbox_.send(answer);
}

void DecodeRank::on_start(wire::DecodeStart message) {
  const model::RequestId id = message.id;
  const auto found = requests_.find(id);
  if (found == requests_.end() || found->second.stage != Stage::kReserved) {
    outbox_.send(wire::RequestFailed{id, Code::kNotFound, "nothing is reserved here for this request"});
    return;
  }
  Request& request = found->second;
  const auto size = static_cast<std::int64_t>(message.tokens.size());
  const auto room = static_cast<std::int64_t>(tables_.blocks(id).size()) * model::kBlockTokens;
  const bool known = std::all_of(message.tokens.begin(), message.tokens.end(), [&](std::int32_t token) {
    return token >= 0 && static_cast<std::size_t>(token) < shape_.vocabulary;
  });
  if (size < 2 || size - 1 > room || size >= config_.context_tokens || !known || message.output_limit == 0 ||
      message.keys.size() > message.tokens.size() / kAttentionBlock) {
    admission_.release(id);
    requests_.erase(found);
    outbox_.send(wire::RequestFailed{
        id, Code::kInvalidArgument,
        fmt::format("{} tokens ({} reserved, context {}), {} keys, output limit {}: cannot go on from here",
                    size, room, config_.context_tokens, message.keys.size(), message.output_limit)});
    return;
  }
  request.start = std::move(message);
  request.chain.emplace(request.start.key_root, request.start.keys, request.start.tokens,
                        request.start.images);
  request.keys = request.start.keys;
  for (const model::BlockKey key : request.chain->take_new_keys()) request.keys.push_back(key);
  request.stage = Stage::kRunning;
}

void DecodeRank::on_abort(model::RequestId id) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) {
    outbox_.send(wire::Released{id, tables_.allocator().free()});
    return;
  }
  found->second.stage = Stage::kAborted;
  if (found->second.jobs > 0) mover_.cancel(id);
  end_if_idle(id);
}

RankRole::Proposal DecodeRank::propose() {
  // In order of arrival, so that the oldest grow first.
  std::vector<std::pair<std::uint64_t, model::RequestId>> running;
  for (const auto& [id, request] : requests_)
    if (request.stage == Stage::kRunning) running.emplace_back(request.stay, id);
  std::sort(running.begin(), running.end());
  batch_.clear();
  for (const auto& [stay, id] : running) {
    const auto found = requests_.find(id);
    if (found == requests_.end() || found->second.stage != Stage::kRunning) continue;  // yielded just now
    if (ensure_room(id)) batch_.push_back(id);
  }
  return {!batch_.empty(), base::kForever};
}

bool DecodeRank::ensure_room(model::RequestId id) {
  const auto wanted = static_cast<std::int64_t>(requests_.at(id).start.tokens.size());
  if (static_cast<std::int64_t>(tables_.blocks(id).size()) * model::kBlockTokens >= wanted) return true;
  if (tables_.grow(id, wanted)) return true;
  // Someone is leaving already: its memory is free in a moment.
  for (const auto& [other, request] : requests_)
    if (request.stage != Stage::kReserved && request.stage != Stage::kRunning) return false;
  make_room(id);
  const auto found = requests_.find(id);
  return found != requests_.end() && found->second.stage == Stage::kRunning && tables_.grow(id, wanted);
}

void DecodeRank::make_room(model::RequestId id) {
  std::vector<policy::VictimCandidate> running;
  bool reserved = false;
  for (const auto& [other, request] : requests_) {
    reserved = reserved || request.stage == Stage::kReserved;
    if (request.stage != Stage::kRunning) continue;
    running.push_back({other, base::TokenCount{static_cast<std::int64_t>(request.start.tokens.size())},
                       base::TokenCount{request.generated},
                       base::Nanos{static_cast<std::int64_t>(request.stay)}});
  }
  // A block is wanted. Alone on the rank, the request itself yields to those that have reservations.
  const auto choice =
      policy::choose_victim(policy::VictimRule::kBestFit, running, base::TokenCount{model::kBlockTokens});
  const model::RequestId victim = choice ? choice->id : id;
  const std::size_t tokens = requests_.at(id).start.tokens.size();
  if (victim == id && !reserved && kv::blocks_for(static_cast<std::int64_t>(tokens)) > arena_.blocks()) {
    admission_.release(id);
    requests_.erase(id);
    outbox_.send(wire::RequestFailed{
        id, Code::kResourceExhausted,
        fmt::format("{} tokens do not fit a decode rank of {} KV blocks: raise [decode] kv_blocks", tokens,
                    arena_.blocks())});
    return;
  }
  Request& request = requests_.at(victim);
  request.yield_reason = fmt::format(
      "no KV block left of {}: request {} needs one for token {}; this one with {} tokens of KV is the "
      "smallest of {} "
      "that frees enough",
      arena_.blocks(), id.value, tokens, request.start.tokens.size(), running.size());
  request.stage = Stage::kYielding;
  std::erase(batch_, victim);
  end_if_idle(victim);
}

std::span<const Segment> DecodeRank::plan(base::Nanos) {
  segments_.clear();
  for (const model::RequestId id : batch_) {
    const Request& request = requests_.at(id);
    Segment& segment = segments_.emplace_back();
    segment.tokens = std::span(request.start.tokens).last(1);
    segment.start = static_cast<std::int64_t>(request.start.tokens.size()) - 1;
    segment.blocks = tables_.blocks(id);
    if (state_ != nullptr) {
      const std::uint32_t slot = *admission_.slot_of(id);
      segment.window.ring = state_->arena.ring(slot);
      segment.window.from = state_->arena.from(slot);
    }
    segment.wants_logits = true;
  }
  return segments_;
}

void DecodeRank::finish_step(const Forward& forward) {
  report_ = {};
  report_.step = ++steps_;
  report_.actual_ns = forward.compute().whole.value;
  for (std::size_t i = 0; i < batch_.size(); ++i) draw(batch_[i], requests_.at(batch_[i]), forward.logits(i));
  send_report();
}

void DecodeRank::send_report() {
  report_.running = 0;
  report_.kv_tokens = 0;
  for (const auto& [id, request] : requests_) {
    if (request.stage != Stage::kRunning) continue;
    ++report_.running;
    report_.kv_tokens += request.start.tokens.size();
  }
  report_.blocks_free = tables_.allocator().free();
  report_.stored_blocks = std::exchange(stored_, 0);
  outbox_.send(report_);
}

void DecodeRank::draw(model::RequestId id, Request& request, std::span<const float> logits) {
  wire::DecodeStart& start = request.start;
  // The step made the KV of the last token: a block that it fills is complete.
  if (start.tokens.size() % kAttentionBlock == 0) {
    store_last_block(request);
    if (state_ != nullptr) keep_snapshot(request);
  }
  wire::TokenOut out;
  out.id = id;
  out.token = sample(logits, start.sampling, start.tokens.size());
  if (config_.logits_checksums) out.logits_checksum = base::checksum_of(logits);
  start.tokens.push_back(out.token);
  if (auto key = request.chain->append(out.token)) request.keys.push_back(*key);
  ++request.generated;
  const bool stop =
      std::find(start.stop_tokens.begin(), start.stop_tokens.end(), out.token) != start.stop_tokens.end();
  if (stop) {
    out.finish = model::FinishReason::kStop;
  } else if (request.generated >= start.output_limit ||
             static_cast<std::int64_t>(start.tokens.size()) >= config_.context_tokens) {
    out.finish = model::FinishReason::kLength;
  }
  if (out.finish != model::FinishReason::kNone && request.jobs > 0) {
    request.stage = Stage::kFinishing;
    request.last = out;
    return;
  }
  report_.tokens.push_back(out);
  if (out.finish == model::FinishReason::kNone) return;
  admission_.release(id);
  requests_.erase(id);
}

void DecodeRank::store_last_block(Request& request) {
  const std::size_t index = request.start.tokens.size() / kAttentionBlock - 1;
  MoveJob job;
  job.kind = MoveJob::Kind::kStore;
  job.id = request.start.id;
  job.stay = request.stay;
  job.blocks = {tables_.blocks(job.id)[index]};
  job.keys = {request.keys.at(index)};
  if (index > 0) job.parent = request.keys[index - 1];
  tables_.allocator().retain(job.blocks[0]);
  ++request.jobs;
  ++moves_;
  mover_.submit(std::move(job));
}

void DecodeRank::keep_snapshot(const Request& request) {
  const auto position = static_cast<std::int64_t>(request.start.tokens.size());
  const std::uint32_t slot = *admission_.slot_of(request.start.id);
  if (!state_->keeps(position, state_->arena.from(slot))) return;
  std::vector<std::byte> content(static_cast<std::size_t>(kv::snapshot_bytes(state_->ring, position).value));
  const auto copied =
      kv::copy_window_out(state_->ring, state_->arena.ring(slot), position, position, content);
  TRIMTAB_CHECK(copied.has_value(), "a ring that has not come to its own last token");
  state_->keep(request.start.id, request.keys, position, std::move(content));
}

void DecodeRank::on_moved(MoveDone done) {
  for (const std::uint32_t block : done.job.blocks) tables_.allocator().release(block);
  --moves_;
  stored_ += done.moved;
  const auto found = requests_.find(done.job.id);
  if (found == requests_.end() || found->second.stay != done.job.stay) return;
  TRIMTAB_CHECK(found->second.jobs > 0);
  --found->second.jobs;
  end_if_idle(done.job.id);
}

void DecodeRank::end_if_idle(model::RequestId id) {
  const Request& request = requests_.at(id);
  const Stage stage = request.stage;
  if (stage == Stage::kReserved || stage == Stage::kRunning || request.jobs > 0) return;
  const wire::TokenOut last = request.last;
  const wire::Preempted preempted{id, request.generated, request.yield_reason};
  admission_.release(id);
  requests_.erase(id);
  if (stage == Stage::kAborted) {
    outbox_.send(wire::Released{id, tables_.allocator().free()});
  } else if (stage == Stage::kFinishing) {
    report_.actual_ns = 0;
    report_.tokens = {last};
    send_report();
  } else {
    outbox_.send(preempted);
  }
}

}  // namespace trimtab::engine
