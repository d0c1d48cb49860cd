#include "sim/placers.h"

#include <algorithm>
#include <utility>

namespace trimtab::sim {

using policy::DecodePolicy;
using policy::RankId;

base::Result<std::unique_ptr<Placers>> Placers::make(
    const policy::DecodeConfig& config, std::uint32_t count,
    std::function<std::uint32_t(policy::RequestId)> placer_of) {
  std::vector<std::unique_ptr<DecodePolicy>> placers;
  for (std::uint32_t i = 0; i < count; ++i) {
    policy::DecodeConfig own = config;
    own.placers = count;
    own.placer = i;
    auto placer = policy::make_decode_policy(own);
    if (!placer) return tl::unexpected<base::Error>(placer.error());
    placers.push_back(std::move(*placer));
  }
  return std::unique_ptr<Placers>(new Placers(config, std::move(placers), std::move(placer_of)));
}

Placers::Placers(policy::DecodeConfig config, std::vector<std::unique_ptr<DecodePolicy>> placers,
                 std::function<std::uint32_t(policy::RequestId)> placer_of)
    : DecodePolicy(std::move(config), policy::DecodeLedger::Scope::kFleet),
      placers_(std::move(placers)),
      placer_of_(std::move(placer_of)) {}

void Placers::follow_members(DecodePolicy& placer) const {
  const std::vector<RankId>& open = ledger().open_ranks();
  const std::vector<RankId> before = placer.ledger().open_ranks();
  for (const RankId rank : before) {
    if (!std::ranges::binary_search(open, rank)) placer.set_open(rank, false);
  }
  for (const RankId rank : open) {
    if (!placer.ledger().knows(rank)) placer.add_rank(rank, ledger().capacity(rank));
    placer.set_open(rank, true);
  }
}

std::optional<RankId> Placers::choose(const policy::DecodeRequest& request, policy::Nanos now,
                                      policy::DecodeReason& reason) {
  DecodePolicy& placer = of(request.id);
  follow_members(placer);
  // A second choice for the same request: the rank of the first did not take it.
  placer.ended(request.id, now);
  policy::DecodeDecision decision = placer.decide(request, now);
  reason = decision.reason;
  // The machine books what is chosen before it asks again, and so does the one who chose.
  if (decision.rank) placer.reserve(request.id, *decision.rank, request.tokens, now);
  return decision.rank;
}

void Placers::running(policy::RequestId id, policy::TokenCount tokens, policy::Nanos now) {
  DecodePolicy& placer = of(id);
  if (const auto rank = placer.ledger().where(id)) placer.admitted(id, *rank, tokens, now);
}

void Placers::grew_there(policy::RequestId id, std::int64_t tokens, policy::Nanos now) {
  of(id).grew(id, tokens, now);
}

void Placers::ended_there(policy::RequestId id, policy::Nanos now) { of(id).ended(id, now); }

void Placers::reported(const policy::DecodeReport& report) {
  for (const auto& placer : placers_) placer->report(report);
}

void Placers::lost(model::EngineId group, std::uint32_t ranks) {
  for (const auto& placer : placers_) {
    for (std::uint32_t r = 0; r < ranks; ++r) {
      const RankId rank{group, r};
      if (placer->ledger().knows(rank)) placer->remove_rank(rank);
    }
  }
}

}  // namespace trimtab::sim
