#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "agents/host.h"
#include "base/check.h"
#include "kv/key_chain.h"

/// A request that its client left may still be named by an action that was decided before the machine heard
/// of it: such an action is skipped, and the Abort that follows frees what the place had.
namespace trimtab::agents {

using base::Nanos;
using base::TokenCount;

void Host::perform(const cluster::Action& action, const Report& report) {
  std::visit([&](const auto& one) { on(one, report); }, action);
}

void Host::extend_keys(RequestState& request) {
  kv::KeyChain chain(request.key_root, request.keys, request.tokens, request.spans);
  const auto fresh = chain.take_new_keys();
  request.keys.insert(request.keys.end(), fresh.begin(), fresh.end());
}

void Host::on(const cluster::Match& action, const Report&) {
  RequestState* request = find(action.id);
  if (request == nullptr) return;
  extend_keys(*request);
  const bool first = !std::exchange(request->matched_before, true);
  kv_pool::Match matched;
  if (!request->keys.empty()) {
    const auto blocks = (request->tokens.size() + model::kBlockTokens - 1) / model::kBlockTokens;
    if (const auto answer = prefixes_->match(request->keys, first, static_cast<std::uint32_t>(blocks)))
      matched = *answer;
    else
      metrics_.on_match_failed();
  }
  if (first) request->pool_request = matched.request;
  kv::HitQuery query;
  query.prompt_tokens = static_cast<std::int64_t>(request->tokens.size());
  query.matched_blocks = matched.blocks;
  std::vector<std::uint32_t> endpoints;
  request->state_offers.clear();
  if (states_) {
    request->state_offers = states_->offers(std::span(request->keys).first(matched.blocks));
    for (const wire::StateOffer& offer : request->state_offers) endpoints.push_back(offer.blocks);
    query.snapshots = endpoints;
    query.mode = states_->mode();
    request->window_mode = query.mode;
  }
  request->hit.emplace(query, request->keys, matched.epoch, options_.profile.kv);
  const TokenCount hit = request->hit->promised().tokens;
  if (first) metrics_.on_match(TokenCount{query.prompt_tokens}, hit);
  post_event(cluster::Matched{action.id, TokenCount{query.prompt_tokens}, hit});
}

void Host::on(const cluster::Accept& action, const Report&) {
  RequestState* request = find(action.id);
  if (request == nullptr) return;
  const std::shared_ptr<cluster::Sink> sink = request->sink;
  sink->on_accepted({action.id, static_cast<std::uint32_t>(action.prompt.value),
                     static_cast<std::uint32_t>(action.hit.value)});
}

void Host::on(const cluster::StartPrefill& action, const Report&) {
  // Before the request, so that the rank has let go of the one when it comes to the other.
  if (const auto run = audits_ ? audits_->yield(action.rank.engine, now_) : std::nullopt) abort_audit(*run);
  if (const RequestState* request = find(action.id))
    agent(model::Role::kPrefill, action.rank.engine).start_prefill(*request, action);
}

void Host::on(const cluster::StartEncode& action, const Report&) {
  RequestState* request = find(action.id);
  if (request == nullptr) return;
  TRIMTAB_CHECK(action.image < request->images.size());
  ImageState& image = request->images[action.image];
  unlink_segment(image.segment);  // of a try whose reader died before it read
  image.segment =
      fmt::format("{}/emb-{}-{}-{}", options_.shm_dir, action.id.value, action.image, ++image.tries);
  image.rows = image.hidden = 0;
  encodings_.asked(action.id, action.image, action.encoder, image.segment);
  agent(model::Role::kVision, model::EngineId{action.encoder.machine.value}).encode(*request, action);
}

void Host::on(const cluster::SendEmbeddings& action, const Report&) {
  if (const RequestState* request = find(action.id))
    agent(model::Role::kPrefill, action.rank.engine).send_embeddings(*request, action);
}

void Host::on(const cluster::DropEmbeddings& action, const Report&) {
  if (RequestState* request = find(action.id)) unlink_segment(request->images[action.image].segment);
}

void Host::on(const cluster::Reserve& action, const Report&) {
  agent(model::Role::kDecode, action.rank.engine).reserve(action);
}

void Host::on(const cluster::SendTarget& action, const Report&) {
  const RequestState* request = find(action.id);
  if (request == nullptr) return;
  const auto room = request->reserved.find(action.decode);
  TRIMTAB_CHECK(room != request->reserved.end(), "a target without a reservation");
  const std::string segment =
      agent(model::Role::kDecode, action.decode.engine).segment_of(action.decode.rank);
  agent(model::Role::kPrefill, action.prefill.engine).send_target(*request, action, segment, room->second);
}

void Host::on(const cluster::StartDecode& action, const Report&) {
  RequestState* request = find(action.id);
  if (request == nullptr) return;
  extend_keys(*request);
  agent(model::Role::kDecode, action.rank.engine).start_decode(*request, action);
}

void Host::on(const cluster::Abort& action, const Report&) {
  RequestState* request = find(action.id);
  if (request != nullptr && action.place.role == model::Role::kDecode)
    request->reserved.erase(action.place.rank_id());
  agent(action.place.role, action.place.engine).abort(action);
}

void Host::on(const cluster::Deliver& action, const Report& report) {
  RequestState* request = find(action.id);
  if (request == nullptr) return;
  const auto token = std::find_if(report.tokens.begin(), report.tokens.end(),
                                  [&](const ReportedToken& t) { return t.id == action.id; });
  TRIMTAB_CHECK(token != report.tokens.end() && action.count == 1,
                "a token is delivered that nobody reported");
  metrics_.on_token(*request, now_);
  if (shadow_ && report.from.role == model::Role::kDecode) shadow_->on_token(action.id, now_);
  request->tokens.push_back(token->token);
  if (!request->first_token_at) request->first_token_at = now_;
  request->last_token_at = now_;
  log({io::TokenEntry{action.id, now_, report.from, report.step, token->token, token->logits_checksum}});
  if (report.from.role == model::Role::kPrefill)
    log({io::BlocksEntry{action.id, now_, report.stored_blocks, report.handed_blocks}});
  const std::shared_ptr<cluster::Sink> sink = request->sink;
  sink->on_tokens(std::span{&token->token, 1});
}

void Host::on(const cluster::Finish& action, const Report&) {
  RequestState* request = find(action.id);
  if (request == nullptr) return;
  metrics_.on_end(*request, action.reason == model::FinishReason::kLength ? "length" : "stop");
  if (request->pool_request != 0) prefixes_->answered(request->pool_request, request->generated());
  const std::shared_ptr<cluster::Sink> sink = request->sink;
  forget(action.id);
  const auto count = [](TokenCount tokens) { return static_cast<std::uint32_t>(tokens.value); };
  sink->on_finished(
      {action.reason, count(action.prompt), count(action.hit), count(action.computed), count(action.output)});
}

void Host::on(const cluster::Fail& action, const Report&) {
  RequestState* request = find(action.id);
  if (request == nullptr) return;
  metrics_.on_end(*request, std::string(base::name(action.code)));
  const std::shared_ptr<cluster::Sink> sink = request->sink;
  forget(action.id);
  sink->on_failed(base::Error{action.code, action.message, "cluster"}, action.retry_after);
}

void Host::on(const cluster::Log& action, const Report&) {
  metrics_.on_record(action.record);
  if (shadow_) shadow_->on_record(action.record);
  log({action.record});
}

void Host::on(const cluster::SetTimer& action, const Report&) { set_timer(action.at); }

}  // namespace trimtab::agents
