#include "shadow/decode_replay.h"

#include <algorithm>

namespace trimtab::shadow {

using base::Nanos;
using cluster::RankId;
using cluster::RequestId;

base::Result<DecodeReplay> DecodeReplay::make(const policy::DecodeConfig& config,
                                              policy::DecodeCapacity capacity, std::size_t changes_max) {
  DecodeReplay replay;
  // The account of what was placed needs a policy's books, not its choices.
  for (Account* account : {&replay.recorded_, &replay.replayed_}) {
    auto made = policy::make_decode_policy(config);
    if (!made) return tl::unexpected<base::Error>(made.error());
    account->policy = std::move(*made);
  }
  replay.capacity_ = capacity;
  replay.changes_max_ = changes_max;
  return replay;
}

/// Time passes with the loads as they are; an idle cluster is neither even nor uneven.
void DecodeReplay::Account::pass(double span) {
  const auto& ledger = policy->ledger();
  double kv = 0, running = 0, kv_peak = 0, running_peak = 0;
  for (const RankId rank : ledger.open_ranks()) {
    const policy::DecodeLoad load = ledger.load(rank);
    const auto tokens = static_cast<double>(load.kv.value), requests = static_cast<double>(load.running);
    kv += tokens;
    running += requests;
    kv_peak = std::max(kv_peak, tokens);
    running_peak = std::max(running_peak, requests);
  }
  if (running <= 0 || kv <= 0) return;
  const auto ranks = static_cast<double>(ledger.open_ranks().size());
  kv_weighted += span * kv_peak * ranks / kv;
  running_weighted += span * running_peak * ranks / running;
  seconds += span;
}

Evenness DecodeReplay::Account::evenness() const {
  if (seconds <= 0) return {};
  return {kv_weighted / seconds, running_weighted / seconds, seconds};
}

void DecodeReplay::know(RankId rank) {
  if (!ranks_.insert(rank).second) return;
  recorded_.policy->add_rank(rank, capacity_);
  replayed_.policy->add_rank(rank, capacity_);
}

/// A group takes requests once all its ranks have joined; the record of the last of them says so. One lost
/// rank takes the whole group out, and every rank joins again.
void DecodeReplay::member(const cluster::MembershipRecord& member, Nanos now) {
  const RankId rank = member.place.rank_id();
  const bool serves =
      std::ranges::any_of(ranks_, [&](const RankId one) { return one.engine == rank.engine; });
  if (!serves) {
    joined_.insert(rank);
    if (!member.serving) return;
    for (const RankId one : joined_) {
      if (one.engine == rank.engine) know(one);
    }
  } else if (!member.serving) {
    lost(rank.engine, now);
  } else {
    know(rank);
    const bool open = !member.reason.starts_with("draining");
    for (const RankId one : ranks_) {
      if (one.engine != rank.engine) continue;
      recorded_.policy->set_open(one, open);
      replayed_.policy->set_open(one, open);
    }
  }
}

/// Whoever was placed there is placed again, by records of its own; who runs on only in the record is from
/// now on where the record has it.
void DecodeReplay::lost(model::EngineId group, Nanos now) {
  for (auto& [id, place] : places_) {
    if (place.second.engine != group || place.first.engine == group) continue;
    const auto* request = recorded_.policy->ledger().find(id);
    if (request == nullptr) continue;
    replayed_.policy->ended(id, now);
    place.second = place.first;
    if (request->running) {
      replayed_.policy->admitted(id, place.first, request->tokens, now);
    } else {
      replayed_.policy->reserve(id, place.first, request->tokens, now);
    }
  }
  for (auto rank = ranks_.begin(); rank != ranks_.end();) {
    if (rank->engine != group) {
      ++rank;
      continue;
    }
    recorded_.policy->remove_rank(*rank);
    replayed_.policy->remove_rank(*rank);
    joined_.erase(*rank);
    rank = ranks_.erase(rank);
  }
  std::erase_if(places_, [&](const auto& entry) {
    if (entry.second.first.engine != group) return false;
    replayed_.policy->ended(entry.first, now);
    return true;
  });
}

void DecodeReplay::advance(Nanos now) {
  if (!first_) {
    first_ = now_ = now;
    return;
  }
  if (now <= now_) return;
  const double span = base::to_seconds(now - now_);
  recorded_.pass(span);
  replayed_.pass(span);
  now_ = now;
}

DecodeReplayReport DecodeReplay::report() const {
  DecodeReplayReport report = report_;
  report.recorded = recorded_.evenness();
  report.replayed = replayed_.evenness();
  report.span = first_ ? now_ - *first_ : Nanos{};
  return report;
}

void DecodeReplay::placed(const cluster::Record& record, const cluster::DecodeRecord& decision) {
  if (!decision.winner) return;  // held: it is asked again later
  const RankId recorded = decision.winner->rank;
  know(recorded);
  ended(record.request, record.at);  // an earlier pass of the request
  const cluster::TokenCount kv = decision.request_kv + cluster::TokenCount{1};
  const policy::DecodeDecision again =
      replayed_.policy->decide({record.request, kv, cluster::TokenCount{0}, record.at}, record.at);
  ++report_.decisions;
  if (!again.rank) {
    ++report_.held;
  } else if (*again.rank != recorded) {
    ++report_.changed;
    if (report_.changes.size() < changes_max_) {
      report_.changes.push_back({record.request, record.at, recorded, *again.rank, policy::describe(again)});
    }
  }
  const RankId replayed = again.rank.value_or(recorded);
  recorded_.policy->reserve(record.request, recorded, kv, record.at);
  replayed_.policy->reserve(record.request, replayed, kv, record.at);
  places_[record.request] = {recorded, replayed};
}

void DecodeReplay::ended(RequestId id, Nanos now) {
  if (places_.erase(id) == 0) return;
  recorded_.policy->ended(id, now);
  replayed_.policy->ended(id, now);
}

void DecodeReplay::record(const cluster::Record& record) {
  advance(record.at);
  if (const auto* member = std::get_if<cluster::MembershipRecord>(&record.body)) {
    if (member->place.role == model::Role::kDecode) this->member(*member, record.at);
  } else if (const auto* decision = std::get_if<cluster::DecodeRecord>(&record.body)) {
    placed(record, *decision);
  } else if (const auto* start = std::get_if<cluster::DecodeStartRecord>(&record.body)) {
    const auto place = places_.find(record.request);
    if (place == places_.end()) return;
    recorded_.policy->admitted(record.request, place->second.first, start->kv, record.at);
    replayed_.policy->admitted(record.request, place->second.second, start->kv, record.at);
  } else if (std::holds_alternative<cluster::FinishedRecord>(record.body) ||
             std::holds_alternative<cluster::FailedRecord>(record.body) ||
             std::holds_alternative<cluster::CancelledRecord>(record.body) ||
             std::holds_alternative<cluster::RequeueRecord>(record.body)) {
    ended(record.request, record.at);
  }
}

void DecodeReplay::token(RequestId id, Nanos at) {
  advance(at);
  if (!places_.contains(id)) return;
  recorded_.policy->grew(id, 1, at);
  replayed_.policy->grew(id, 1, at);
}

}  // namespace trimtab::shadow
