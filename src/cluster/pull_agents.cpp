#include "cluster/pull_agents.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "policy/prefill/context_parallel.h"

namespace trimtab::cluster {

using model::Role;

namespace {

/// What long work of the whole group counts. Under two budgets a group needs light work beside heavy work, so
/// one long request does not fill it: it counts one step of all ranks at most.
Nanos charged(const model::PrefillConfig& config, Nanos shared) {
  if (config.compose != "two_budgets") return shared;
  return std::min(shared, Nanos{config.step_budget_ms * 1'000'000 * config.ranks});
}

}  // namespace

PullAgents::PullAgents(const model::ClusterConfig& config, const model::Profile& profile)
    : cost_(profile.cost, config.prefill.quota_scope),
      config_(config.prefill),
      fill_(Nanos{config.prefill.step_budget_ms * 1'000'000 * config.prefill.outstanding_steps}),
      engines_(config.prefill.engines) {
  for (Engine& engine : engines_) engine.ranks.resize(config.prefill.ranks);
}

PullAgents::Rank* PullAgents::find(RankId rank) {
  if (rank.engine.value >= engines_.size()) return nullptr;
  Engine& engine = engines_[rank.engine.value];
  return rank.rank < engine.ranks.size() ? &engine.ranks[rank.rank] : nullptr;
}

/// It asks anew.
void PullAgents::mark(EngineId engine) {
  engines_[engine.value].changed = true;
  changed_first_ = std::min<std::size_t>(changed_first_, engine.value);
  changed_last_ = std::max<std::size_t>(changed_last_, engine.value);
}

/// The sum that the account is in.
Nanos& PullAgents::quota_of(RankId id, const Account& account) {
  Engine& engine = engines_[id.engine.value];
  return account.shared ? engine.shared : engine.ranks[id.rank].quota;
}

void PullAgents::end(RankId id, RequestId request) {
  Rank* rank = find(id);
  if (rank == nullptr) return;
  const auto account = rank->accounts.find(request);
  if (account == rank->accounts.end()) return;
  quota_of(id, account->second) -= account->second.quota;
  rank->blocks -= account->second.blocks;
  rank->accounts.erase(account);
  mark(id.engine);
}

void PullAgents::progress(const PrefillStepped& step) {
  Rank* rank = find(step.from);
  if (rank == nullptr) return;
  for (const ChunkReport& chunk : step.chunks) {
    const auto found = rank->accounts.find(chunk.id);
    if (found == rank->accounts.end()) continue;
    Account& account = found->second;
    Nanos left = cost_.request(std::min(chunk.computed + chunk.tokens, account.tokens), account.tokens);
    if (account.shared) left = charged(config_, left);
    quota_of(step.from, account) += left - account.quota;
    account.quota = left;
  }
  mark(step.from.engine);
}

// A loss or a new start ends what the rank held; the cluster ends what its group held, by Abort or Lost of
// each.
void PullAgents::reset(Place place, std::int64_t blocks_total, bool there) {
  if (place.role != Role::kPrefill || place.engine.value >= engines_.size()) return;
  Engine& engine = engines_[place.engine.value];
  if (place.rank >= engine.ranks.size()) return;
  for (Rank& rank : engine.ranks) {
    if (!there || &rank == &engine.ranks[place.rank]) {
      for (const auto& [id, account] : rank.accounts) {
        if (account.shared) engine.shared -= account.quota;
      }
      rank.accounts.clear();
      rank.quota = Nanos{};
      rank.blocks = 0;
    }
  }
  engine.ranks[place.rank].there = there;
  engine.ranks[place.rank].blocks_total = blocks_total;
  mark(place.engine);
}

void PullAgents::observe(const Event& event) {
  if (std::holds_alternative<DecodeStepped>(event) || std::holds_alternative<Pull>(event)) return;
  if (const auto* joined = std::get_if<Joined>(&event)) {
    reset(joined->place, joined->blocks_total, true);
  } else if (const auto* lost = std::get_if<Lost>(&event)) {
    reset(lost->place, 0, false);
  } else if (const auto* drain = std::get_if<Drain>(&event)) {
    // Pulls in vain while it drained are forgotten: it asks anew.
    if (drain->role == Role::kPrefill && drain->engine.value < engines_.size()) mark(drain->engine);
  } else if (const auto* step = std::get_if<PrefillStepped>(&event)) {
    progress(*step);
  } else if (const auto* done = std::get_if<PrefillDone>(&event)) {
    end(done->from, done->id);
  } else if (const auto* failed = std::get_if<RequestFailed>(&event)) {
    if (failed->from.role == Role::kPrefill) end(failed->from.rank_id(), failed->id);
  } else if (const auto* released = std::get_if<Released>(&event)) {
    // Even when the account is closed already: the cluster may have turned this engine's pull away because
    // this very answer was still to come.
    if (released->from.role == Role::kPrefill && find(released->from.rank_id()) != nullptr) {
      end(released->from.rank_id(), released->id);
      mark(released->from.engine);
    }
  }
}

void PullAgents::observe(const Action& action) {
  if (const auto* grant = std::get_if<Grant>(&action)) {
    Rank* rank = find(grant->rank);
    TRIMTAB_CHECK(rank != nullptr, "grant to a rank that the configuration does not have");
    const bool shared = policy::context_parallel(config_, grant->quota);
    const Account account{grant->tokens, shared ? charged(config_, grant->quota) : grant->quota,
                          grant->blocks, shared};
    const bool fresh = rank->accounts.emplace(grant->id, account).second;
    TRIMTAB_CHECK(fresh, "a request was granted twice to one rank");
    quota_of(grant->rank, account) += account.quota;
    // The queue took it off that rank's offer alone.
    if (account.shared) mark(grant->rank.engine);
    rank->blocks += grant->blocks;
  } else if (const auto* revoke = std::get_if<Revoke>(&action)) {
    end(revoke->rank, revoke->id);
  }
}

void PullAgents::take_pulls(std::vector<Event>& out) {
  if (changed_first_ == kNone) return;  // most events are of decode ranks
  const std::size_t first = std::exchange(changed_first_, kNone);
  const std::size_t last = std::exchange(changed_last_, 0);
  for (std::size_t e = first; e <= last; ++e) {
    Engine& engine = engines_[e];
    if (!engine.changed) continue;
    engine.changed = false;
    auto& pull = std::get<Pull>(out.emplace_back(Pull{EngineId{static_cast<std::uint32_t>(e)}, {}}));
    pull.ranks.reserve(engine.ranks.size());
    const Nanos each{engine.shared.value / static_cast<std::int64_t>(engine.ranks.size())};
    for (const Rank& rank : engine.ranks) {
      pull.ranks.push_back(rank.there ? RankOffer{fill_ - rank.quota - each, rank.blocks_total - rank.blocks}
                                      : RankOffer{});
    }
  }
}

std::size_t PullAgents::accounts() const {
  std::size_t sum = 0;
  for (const Engine& engine : engines_) {
    for (const Rank& rank : engine.ranks) sum += rank.accounts.size();
  }
  return sum;
}

}  // namespace trimtab::cluster
