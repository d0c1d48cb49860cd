#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "engine/prefill_rank.h"
#include "kv/hit_rule.h"

/// A prefill rank's dealings with the state of sliding-window layers.
namespace trimtab::engine {

using base::Code;

void PrefillRank::begin_window(Request& request, std::uint32_t blocks) {
  const wire::WindowHit& said = request.start.window;
  request.done.fetched_blocks = blocks;
  // What was restored before is void: the hit is shorter, or a chunk that was thrown away moved it on.
  std::erase_if(request.done.states,
                [](const wire::StateRead& read) { return read.end == wire::FetchEnd::kWhole; });
  const auto tried = [&](std::uint32_t end) {
    return std::any_of(request.done.states.begin(), request.done.states.end(),
                       [end](const wire::StateRead& read) { return read.blocks == end; });
  };
  std::vector<std::uint32_t> snapshots;
  for (const wire::StateOffer& offer : said.offers)
    if (!request.is_truth() && !tried(offer.blocks)) snapshots.push_back(offer.blocks);
  kv::HitQuery query;
  query.prompt_tokens = static_cast<std::int64_t>(request.start.tokens.size());
  query.matched_blocks = blocks;
  query.snapshots = snapshots;
  query.mode = said.exact != 0 || request.is_truth() ? kv::WindowMode::kExact : kv::WindowMode::kApproximate;
  const kv::Hit hit = kv::decide_hit(query, state_->layout);
  const auto start = static_cast<std::uint32_t>(hit.tokens.value / model::kBlockTokens);
  for (const Image& image : request.images) {
    const std::int64_t end = image.span.position + image.span.tokens;
    if (end > hit.tokens.value && end <= request.start.hit_tokens && image.rows.empty())
      return fail(request.start.id, Code::kUnavailable,
                  "the hit shrank behind an image whose embeddings were not asked for");
  }
  const std::uint32_t slot = *admission_.slot_of(request.start.id);
  request.drifts = !hit.exact;
  request.kv_present = hit.block_kv_blocks * model::kBlockTokens;
  if (hit.snapshot_blocks == 0) {
    state_->arena.set_from(slot, hit.tokens.value);
    return begin_compute(request, start, static_cast<std::uint32_t>(hit.block_kv_blocks));
  }
  request.stage = Stage::kRestoring;
  const auto offer = std::find_if(said.offers.begin(), said.offers.end(), [&](const wire::StateOffer& one) {
    return one.blocks == hit.snapshot_blocks;
  });
  StateJob job;
  job.kind = StateJob::Kind::kRestore;
  job.slot = slot;
  job.name = kv::snapshot_name(request.start.keys, hit.snapshot_blocks, state_->layout_key);
  job.holders = offer->holders;
  submit_state(request, std::move(job));
}

void PrefillRank::on_state(StateDone done) {
  --moves_;
  const auto found = requests_.find(done.job.id);
  if (found == requests_.end() || found->second.stay != done.job.stay) return;
  Request& request = found->second;
  TRIMTAB_CHECK(request.jobs > 0);
  --request.jobs;
  if (request.ending) {
    if (request.jobs == 0) end(done.job.id);
    return;
  }
  if (done.job.kind == StateJob::Kind::kHandOver) {
    // A target that is gone is the control's to know and to mend: it sees that nothing was handed over.
    if (done.status) return hand_over(request);
    spdlog::warn("request {}: {}", done.job.id.value, base::to_string(done.status.error()));
    return finish(done.job.id);
  }
  const auto blocks = static_cast<std::uint32_t>(done.job.name.position / model::kBlockTokens);
  wire::StateRead read{blocks, wire::FetchEnd::kWhole};
  if (!done.status) {
    const bool gone = kv_state::read_result(done.status) == kv::ReadResult::kGone;
    read.end = gone ? wire::FetchEnd::kGone : wire::FetchEnd::kFailed;
  }
  request.done.states.push_back(read);
  const std::uint32_t fetched = std::exchange(request.shorter, {}).value_or(request.done.fetched_blocks);
  if (!done.status || fetched < request.done.fetched_blocks) return begin_window(request, fetched);
  state_->arena.set_from(done.job.slot, 0);
  begin_compute(request, blocks, static_cast<std::uint32_t>(request.kv_present / model::kBlockTokens));
}

void PrefillRank::plan_window(Request& request, Segment& segment) {
  const std::uint32_t slot = *admission_.slot_of(request.start.id);
  segment.kv_present = request.kv_present;
  segment.window.ring = state_->arena.ring(slot);
  segment.window.from = state_->arena.from(slot);
  request.copies.clear();
  request.copied.clear();
  if (request.is_truth()) return;
  const std::int64_t end = segment.start + static_cast<std::int64_t>(segment.tokens.size());
  for (std::int64_t position = (segment.start / model::kBlockTokens + 1) * model::kBlockTokens;
       position <= end; position += model::kBlockTokens) {
    // Before the end of what the pool had, the state is of a computation that began without one.
    const bool known = position / model::kBlockTokens <= static_cast<std::int64_t>(request.start.keys.size());
    if (!known || position < request.kv_present || !state_->keeps(position, segment.window.from)) continue;
    const auto bytes = static_cast<std::size_t>(kv::snapshot_bytes(state_->ring, position).value);
    request.copies.push_back({position, request.copied.emplace_back(bytes)});
  }
  segment.window.snapshots = request.copies;
}

void PrefillRank::keep_snapshots(Request& request) {
  for (std::size_t i = 0; i < request.copies.size(); ++i) {
    state_->keep(request.start.id, request.start.keys, request.copies[i].position,
                 std::move(request.copied[i]));
  }
  request.copies.clear();
  request.copied.clear();
}

void PrefillRank::hand_over_state(Request& request) {
  request.stage = Stage::kHandingOver;
  StateJob job;
  job.kind = StateJob::Kind::kHandOver;
  job.slot = *admission_.slot_of(request.start.id);
  job.target = request.target->rank;
  job.segment = request.target->segment;
  job.target_slot = request.target->state_slot;
  submit_state(request, std::move(job));
}

void PrefillRank::submit_state(Request& request, StateJob job) {
  job.id = request.start.id;
  job.stay = request.stay;
  ++request.jobs;
  ++moves_;
  state_->mover.submit(std::move(job));
}

}  // namespace trimtab::engine
