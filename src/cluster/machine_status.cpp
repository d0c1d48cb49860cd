#include <algorithm>

#include "cluster/machine.h"

namespace trimtab::cluster {

using model::Role;

RankStatus Machine::rank_status(Place place) const {
  RankStatus status;
  status.place = place;
  status.heard = members_.heard(place);
  status.blocks_total = members_.blocks_total(place);
  status.requests = static_cast<std::uint32_t>(holdings_[members_.index(place)].size());
  status.steps_seen = reports_[members_.index(place)];
  if (place.role == Role::kDecode && decode_->ledger().knows(place.rank_id())) {
    const policy::DecodeLoad load = decode_->ledger().load(place.rank_id());
    status.running = load.running;
    status.kv = load.kv;
  }
  if (place.role == Role::kVision && status.heard)
    status.patches = vision_->patches_in_flight(place.encoder_id());
  return status;
}

EngineStatus Machine::engine_status(Role role, EngineId engine) const {
  EngineStatus status;
  status.role = role;
  status.engine = engine;
  status.serving = members_.serving(role, engine);
  status.draining = members_.draining(role, engine);
  if (role == Role::kPrefill) {
    if (const auto range = ranges_.find(engine); range != ranges_.end()) {
      status.tiers = std::to_string(range->second.first.value);
      if (range->second.last != range->second.first)
        status.tiers += "-" + std::to_string(range->second.last.value);
    }
  }
  for (std::uint32_t r = 0; r < members_.ranks(role); ++r)
    status.ranks.push_back(rank_status({role, engine, r}));
  return status;
}

ClusterStatus Machine::status() const {
  ClusterStatus status;
  for (const Role role : {Role::kPrefill, Role::kDecode, Role::kVision}) {
    for (std::uint32_t e = 0; e < members_.engines(role); ++e) {
      status.engines.push_back(engine_status(role, EngineId{e}));
    }
  }
  const auto& bounds = config_.prefill.tier_bounds_tokens;
  for (std::uint32_t t = 0; t < queue_->tiers(); ++t) {
    const model::TierId tier{t};
    status.tiers.push_back({TokenCount{t < bounds.size() ? bounds[t] : INT64_MAX},
                            static_cast<std::uint32_t>(queue_->depth(tier)), queue_->queued_quota(tier)});
  }
  status.requests = static_cast<std::uint32_t>(lives_.size());
  status.matching = stages_of(Stage::kMatching);
  status.queued = stages_of(Stage::kQueued);
  status.prefilling = stages_of(Stage::kGranted) + stages_of(Stage::kPrefilling);
  status.decoding = stages_of(Stage::kDecoding);
  status.held = static_cast<std::uint32_t>(held_.size());
  status.releases_pending = static_cast<std::uint32_t>(releases_.size());
  status.decode_policy = decode_->config().policy;
  status.ready = ready();
  return status;
}

Census Machine::census() const {
  Census census;
  census.requests = lives_.size();
  census.queued = queue_->queued();
  census.leases = queue_->leased();
  census.held = held_.size() + computed_.size() + images_waiting_.size() +
                static_cast<std::uint64_t>(held_tokens_.value);
  for (const std::set<RequestId>& ids : holdings_) census.holdings += ids.size();
  census.deadlines = deadlines_.size();
  census.releases = releases_.size() + quarantined_.size() + parked_ + aborted_images_.size();
  census.decode_accounts = decode_->ledger().requests_known();
  census.vision_jobs = vision_->jobs_known();
  census.admission_accounts =
      static_cast<std::uint64_t>(admission_.in_flight() + admission_.queued_requests());
  return census;
}

}  // namespace trimtab::cluster
