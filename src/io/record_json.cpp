#include "io/record_json.h"

namespace trimtab::io {

using base::Nanos;
using nlohmann::json;

namespace {

json rank_json(model::RankId id) { return {{"engine", id.engine.value}, {"rank", id.rank}}; }

json encoder_json(model::EncoderId id) { return {{"machine", id.machine.value}, {"encoder", id.encoder}}; }

json millis_json(const std::vector<Nanos>& spans) {
  json list = json::array();
  for (const Nanos span : spans) list.push_back(io::millis_json(span));
  return list;
}

json millis_json(const std::optional<Nanos>& span) { return span ? io::millis_json(*span) : json(); }

json load_json(const std::optional<cluster::RankLoad>& load) {
  if (!load) return nullptr;
  json object = rank_json(load->rank);
  object["running"] = load->running;
  object["kv_tokens"] = load->kv.value;
  return object;
}

const char* finish_name(model::FinishReason reason) {
  switch (reason) {
    case model::FinishReason::kNone:
      return "none";
    case model::FinishReason::kStop:
      return "stop";
    case model::FinishReason::kLength:
      return "length";
  }
  return "none";
}

struct Fields {
  json operator()(const cluster::SubmittedRecord& r) const {
    return {{"prompt_tokens", r.prompt.value},
            {"output_limit_tokens", r.output_limit.value},
            {"images", r.images},
            {"patches", r.patches}};
  }
  json operator()(const cluster::AdmissionRecord& r) const {
    return {{"admitted", r.admitted},
            {"queued_quota_ms", io::millis_json(r.queued_quota)},
            {"predicted_ttft_ms", io::millis_json(r.predicted_ttft)},
            {"limit_ms", io::millis_json(r.limit)},
            {"retry_after_ms", millis_json(r.retry_after)},
            {"reason", r.reason}};
  }
  json operator()(const cluster::MatchRecord& r) const {
    return {{"tokens", r.tokens.value},
            {"hit_tokens", r.hit.value},
            {"to_compute_tokens", (r.tokens - r.hit).value},
            {"quota_predicted_ms", io::millis_json(r.quota)},
            {"images_to_encode", r.images_to_encode}};
  }
  json operator()(const cluster::QueueRecord& r) const {
    return {{"tier", r.tier.value},
            {"context_tokens", r.context.value},
            {"quota_ms", io::millis_json(r.quota)},
            {"depth", r.depth},
            {"reason", r.reason}};
  }
  json operator()(const cluster::LeaseRecord& r) const {
    return {{"rank", rank_json(r.rank)},
            {"tier", r.tier.value},
            {"aged", r.aged},
            {"queue_ms", io::millis_json(r.queue_time)},
            {"engine_quota_left_ms", io::millis_json(r.engine_quota_left)},
            {"rank_quota_left_ms", millis_json(r.rank_left)},
            {"quota_ms", io::millis_json(r.quota)},
            {"batch_cap_ms", io::millis_json(r.batch_cap)},
            {"reason", r.reason}};
  }
  json operator()(const cluster::VisionRecord& r) const {
    return {{"image", r.image},       {"patches", r.patches},
            {"machines", r.machines}, {"encoder", encoder_json(r.encoder)},
            {"reason", r.reason},     {"patches_in_flight", r.patches_now}};
  }
  json operator()(const cluster::EncodedRecord& r) const {
    return {{"image", r.image},
            {"encoder", encoder_json(r.encoder)},
            {"ok", r.ok},
            {"actual_ms", io::millis_json(r.actual)},
            {"reason", r.reason}};
  }
  json operator()(const cluster::DecodeRecord& r) const;
  json operator()(const cluster::ReservedRecord& r) const {
    return {{"rank", rank_json(r.rank)}, {"granted", r.granted}, {"blocks_free", r.blocks_free}};
  }
  json operator()(const cluster::ChunkRecord& r) const {
    return {{"rank", rank_json(r.rank)},
            {"step", r.step},
            {"tokens", r.tokens.value},
            {"computed_tokens", r.computed.value},
            {"predicted_ms", io::millis_json(r.predicted)},
            {"vote_ms", io::millis_json(r.vote)},
            {"budget_min_ms", io::millis_json(r.budget)},
            {"step_predicted_ms", io::millis_json(r.step_predicted)},
            {"step_actual_ms", io::millis_json(r.actual)}};
  }
  json operator()(const cluster::PrefillDoneRecord& r) const {
    return {{"rank", rank_json(r.rank)},
            {"hit_tokens", r.hit.value},
            {"computed_tokens", r.computed.value},
            {"handed", r.handed},
            {"quota_predicted_ms", io::millis_json(r.quota_predicted)},
            {"quota_spent_ms", io::millis_json(r.quota_spent)}};
  }
  json operator()(const cluster::DecodeStartRecord& r) const {
    return {
        {"rank", rank_json(r.rank)}, {"kv_tokens", r.kv.value}, {"output_left_tokens", r.output_left.value}};
  }
  json operator()(const cluster::RequeueRecord& r) const {
    return {{"from", place_json(r.from)},
            {"generated_tokens", r.generated.value},
            {"redos", r.redos},
            {"reason", r.reason}};
  }
  json operator()(const cluster::FinishedRecord& r) const {
    return {{"finish", finish_name(r.finish)},
            {"prompt_tokens", r.prompt.value},
            {"hit_tokens", r.hit.value},
            {"computed_tokens", r.computed.value},
            {"output_tokens", r.output.value}};
  }
  json operator()(const cluster::FailedRecord& r) const {
    return {
        {"code", base::name(r.code)}, {"message", r.message}, {"retry_after_ms", millis_json(r.retry_after)}};
  }
  json operator()(const cluster::CancelledRecord& r) const {
    return {{"stage", r.stage}, {"output_tokens", r.output.value}};
  }
  json operator()(const cluster::AllocationRecord& r) const {
    return {{"engine", r.engine.value},
            {"tier_first", r.tier_first.value},
            {"tier_last", r.tier_last.value},
            {"demand_ms", millis_json(r.demand)},
            {"reason", r.reason}};
  }
  json operator()(const cluster::MembershipRecord& r) const {
    return {{"place", place_json(r.place)}, {"serving", r.serving}, {"reason", r.reason}};
  }
};

json Fields::operator()(const cluster::DecodeRecord& r) const {
  return {{"winner", load_json(r.winner)},
          {"runner_up", load_json(r.runner_up)},
          {"policy", r.policy},
          {"request_kv_tokens", r.request_kv.value},
          {"reserve_tokens", r.reserve.value},
          {"waterline_tokens", r.waterline.value},
          {"mean_tokens", r.mean.value},
          {"ceiling_tokens", r.ceiling.value},
          {"candidates", r.candidates},
          {"reason", r.reason}};
}

}  // namespace

json millis_json(Nanos span) {
  if (span == base::kForever) return nullptr;
  return base::to_millis(span);
}

json place_json(const cluster::Place& place) {
  const char* const roles[] = {"prefill", "decode", "vision"};
  return {{"role", roles[static_cast<std::size_t>(place.role) % 3]},
          {"engine", place.engine.value},
          {"rank", place.rank}};
}

json fields_of(const cluster::Record& record) { return std::visit(Fields{}, record.body); }

}  // namespace trimtab::io
