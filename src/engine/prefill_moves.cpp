// What a prefill rank has moved: its hits, computed from while they come; new blocks; hand-overs.
#include <fmt/format.h>

#include <algorithm>

#include "engine/prefill_rank.h"
#include "ipc/steady_clock.h"

namespace trimtab::engine {

using base::Code;

namespace {

constexpr base::Nanos kRedialMin{300'000'000}, kRedialMax{2'000'000'000};
// A step begins over layers that have not come yet when it is predicted to wait for at most this part of
// itself.
constexpr double kStallShare = 0.05;

}  // namespace

MoveJob PrefillRank::fetch_of(const Request& request, std::uint32_t hit_blocks) const {
  const auto blocks = tables_.blocks(request.start.id).first(hit_blocks);
  MoveJob job;
  job.kind = MoveJob::Kind::kFetch;
  job.id = request.start.id;
  job.blocks.assign(blocks.begin(), blocks.end());
  job.keys.assign(request.start.keys.begin(), request.start.keys.begin() + hit_blocks);
  const base::TokenCount hit{static_cast<std::int64_t>(hit_blocks) * model::kBlockTokens};
  job.compute = first_step(request, hit_blocks);
  // A loader that restarts is waited for no longer than what it keeps takes to compute.
  job.patience = std::clamp(scheduler_.cost().request(base::TokenCount{0}, hit), kRedialMin, kRedialMax);
  return job;
}

base::Nanos PrefillRank::first_step(const Request& request, std::uint32_t hit_blocks) const {
  const auto size = static_cast<std::int64_t>(request.start.tokens.size());
  // Block KV may reach the prompt's end; at least one token is computed all the same.
  const base::TokenCount hit{std::min(static_cast<std::int64_t>(hit_blocks) * model::kBlockTokens, size - 1)};
  return std::min(scheduler_.cost().request(hit, base::TokenCount{size}), scheduler_.config().step_budget);
}

void PrefillRank::on_coming(HitComing coming) {
  const auto found = requests_.find(coming.id);
  if (found == requests_.end() || found->second.stay != coming.stay) return;
  Request& request = found->second;
  // Of one whose fetch failed and is tried again the chunks, if any, still wait at the first try's gates.
  if (request.stage != Stage::kFetching && !request.early) return;
  request.swap = std::move(coming.swap);
  request.stalled_before = {};
}

void PrefillRank::begin_early() {
  const base::Nanos now = ipc::SteadyClock().now();
  for (auto& [id, request] : requests_) {
    if (request.stage != Stage::kFetching || request.ending || request.thrown || request.swap == nullptr ||
        !request.swap->begun())
      continue;
    const std::uint32_t hit = blocks_to_fetch(request);
    const policy::SwapOutcome predicted = request.swap->predict(now, first_step(request, hit));
    if (predicted.stalled_ns > kStallShare * predicted.total_ns) continue;
    request.early = true;
    begin_from(request, hit);
  }
}

std::uint32_t PrefillRank::blocks_to_fetch(const Request& request) const {
  return state_ != nullptr ? request.start.window.kv_blocks : request.start.hit_tokens / kAttentionBlock;
}

void PrefillRank::begin_from(Request& request, std::uint32_t blocks) {
  if (state_ != nullptr) return begin_window(request, blocks);
  begin_compute(request, blocks, blocks);
}

void PrefillRank::count_stall(Request& request) const {
  request.done.swap_stalled_ns += (request.swap->stalled() - request.stalled_before).value;
  request.stalled_before = request.swap->stalled();
  request.done.swap_step_ns += (ipc::SteadyClock().now() - step_began_).value;
}

void PrefillRank::throw_away(Request& request, const policy::PlannedChunk& chunk) {
  scheduler_.remove(chunk.id);
  request.done.thrown_tokens += static_cast<std::uint32_t>(chunk.tokens.value);
  request.stage = Stage::kFetching;
  request.early = false;
  request.thrown = true;
  request.swap.reset();
}

void PrefillRank::on_fetched(model::RequestId id, Request& request, const MoveDone& done) {
  const bool whole = done.moved == done.job.blocks.size();
  request.swap.reset();
  if (whole && (request.early || request.stage != Stage::kFetching)) {
    request.early = false;
    if (request.stage == Stage::kStoring && request.jobs == 0) finish(id);
    return;
  }
  const bool gone = !done.status && done.status.error().code == Code::kNotFound;
  if (!whole) request.done.fetch = gone ? wire::FetchEnd::kGone : wire::FetchEnd::kFailed;
  if (request.early) {
    request.early = false;
    if (request.stage == Stage::kRestoring) {  // into the slot that the next state goes to: one at a time
      request.shorter = done.moved;
      return;
    }
    // No step has been made over it: one that ends has seen the last layer.
    TRIMTAB_CHECK(request.computed == static_cast<std::int64_t>(request.done.hit_tokens));
    scheduler_.remove(id);
  }
  if (state_ != nullptr) return begin_window(request, done.moved);
  const std::int64_t got = static_cast<std::int64_t>(done.moved) * model::kBlockTokens;
  for (const Image& image : request.images) {
    const std::int64_t end_of_image = image.span.position + image.span.tokens;
    if (end_of_image > got && end_of_image <= request.start.hit_tokens && image.rows.empty())
      return fail(id, Code::kUnavailable,
                  "the pool lost a block that covers an image whose embeddings were not asked for");
  }
  begin_compute(request, done.moved, done.moved);
}

void PrefillRank::store_new_blocks(Request& request, std::int64_t before) {
  const auto first = static_cast<std::size_t>(before / model::kBlockTokens);
  const auto last =
      std::min(static_cast<std::size_t>(request.computed / model::kBlockTokens), request.start.keys.size());
  if (first >= last || request.is_truth()) return;
  const auto& keys = request.start.keys;
  const auto blocks = tables_.blocks(request.start.id).subspan(first, last - first);
  MoveJob job;
  job.kind = MoveJob::Kind::kStore;
  job.id = request.start.id;
  job.blocks.assign(blocks.begin(), blocks.end());
  job.keys.assign(keys.begin() + static_cast<std::ptrdiff_t>(first),
                  keys.begin() + static_cast<std::ptrdiff_t>(last));
  if (first > 0) job.parent = keys[first - 1];
  request.done.stored_blocks += static_cast<std::uint32_t>(last - first);
  submit(std::move(job));
}

void PrefillRank::hand_over(Request& request) {
  const auto blocks = tables_.blocks(request.start.id);
  if (request.target->blocks.size() < blocks.size()) {
    return fail(request.start.id, Code::kInternal,
                fmt::format("{} blocks reserved at {} for a prompt of {}", request.target->blocks.size(),
                            model::to_string(request.target->rank), blocks.size()));
  }
  if (state_ != nullptr && request.stage != Stage::kHandingOver) return hand_over_state(request);
  request.stage = Stage::kHandingOver;
  MoveJob job;
  job.kind = MoveJob::Kind::kHandOver;
  job.id = request.start.id;
  job.blocks.assign(blocks.begin(), blocks.end());
  job.target = request.target->rank;
  job.segment = request.target->segment;
  job.destination.assign(request.target->blocks.begin(),
                         request.target->blocks.begin() + static_cast<std::ptrdiff_t>(blocks.size()));
  request.said = std::make_shared<std::atomic<bool>>(false);
  job.report = HandOverReport{request.done, request.said};
  submit(std::move(job));
}

}  // namespace trimtab::engine
