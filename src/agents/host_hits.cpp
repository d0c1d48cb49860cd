#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "agents/host.h"

namespace trimtab::agents {

namespace {

std::string_view name_of(kv::HitRead::Outcome outcome) {
  using Outcome = kv::HitRead::Outcome;
  switch (outcome) {
    case Outcome::kSkipped:
      return "skipped";
    case Outcome::kMiss:
      return "miss";
    case Outcome::kHit:
      return "hit";
    case Outcome::kStale:
      return "stale";
    case Outcome::kFallback:
      break;
  }
  return "fallback";
}

/// An engine reads the blocks in order and says how many it got and why no more.
void apply(kv::HitRead& read, std::int64_t blocks, wire::FetchEnd end) {
  const std::int64_t promised = read.promised().block_kv_blocks;
  // What lies behind the hit's end is not computed from: an engine that has read the hit has read enough.
  const bool whole = blocks * model::kBlockTokens >= read.promised().tokens.value;
  const std::int64_t got = whole ? promised : std::min(blocks, promised);
  for (std::int64_t i = 0; i < got; ++i) read.on_block(static_cast<std::uint32_t>(i), kv::ReadResult::kRead);
  if (got < promised) {
    read.on_block(static_cast<std::uint32_t>(got),
                  end == wire::FetchEnd::kGone ? kv::ReadResult::kGone : kv::ReadResult::kFailed);
  }
}

kv::ReadResult result_of(wire::FetchEnd end) {
  if (end == wire::FetchEnd::kWhole) return kv::ReadResult::kRead;
  return end == wire::FetchEnd::kGone ? kv::ReadResult::kGone : kv::ReadResult::kFailed;
}

}  // namespace

void Host::settle_states(RequestState& request, const Report& report) {
  for (const wire::StateRead& state : report.states) {
    request.hit->on_snapshot(state.blocks, result_of(state.end));
    if (state.end == wire::FetchEnd::kWhole) continue;
    for (const wire::StateOffer& offer : request.state_offers)
      if (offer.blocks == state.blocks) states_->withdraw(request.keys, offer);
  }
}

void Host::settle_hit(const Report& report, const cluster::PrefillDone& done) {
  RequestState* request = find(done.id);
  if (request == nullptr || !request->hit) return;
  kv::HitRead& read = *request->hit;
  const std::int64_t read_blocks = states_ ? report.fetched_blocks : done.hit.value / model::kBlockTokens;
  apply(read, read_blocks, report.fetch);
  settle_states(*request, report);
  if (!read.ready()) read.give_up();
  const std::string_view outcome = name_of(read.outcome());
  const base::TokenCount promised = read.promised().tokens;
  const kv::Hit& hit = read.hit();
  if (hits_.settle(request->hit_account, read)) {
    metrics_.on_hit(outcome, hit.tokens + hit.to_compute, done.hit);
    if (states_) metrics_.on_window(hit);
    if (request->audited && !hit.exact) audit_hit(*request, report);
  }
  io::HitEntry entry{done.id, now_, std::string(outcome), static_cast<std::uint32_t>(promised.value),
                     static_cast<std::uint32_t>(done.hit.value)};
  if (states_) {
    entry.state_tokens = static_cast<std::uint32_t>(hit.snapshot_blocks * model::kBlockTokens);
    entry.window_tokens = static_cast<std::uint32_t>(hit.recomputed_tokens());
    entry.approximate = hit.exact ? 0 : 1;
  }
  log({std::move(entry)});
  // The loader found the same when it was asked, and its index claims what is gone no longer.
  (void)read.take_withdrawals();
  request->hit.reset();
}

void Host::count_swap_in(const Report& report, model::RequestId id) {
  const SwapIn& swap = report.swap_in;
  if (!swap.any() || find(id) == nullptr) return;
  metrics_.on_swap_in(swap);
  log({io::SwapInEntry{id, now_, swap.step.value, swap.stalled.value, swap.thrown_tokens}});
}

void Host::abandon_hit(RequestState& request) {
  if (hits_.abandon(request.hit_account)) metrics_.on_hit("abandoned", {}, {});
}

}  // namespace trimtab::agents
