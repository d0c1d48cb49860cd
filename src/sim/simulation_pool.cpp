// What the pool has of a request, and reading it.
#include <algorithm>
#include <vector>

#include "kv/hit_rule.h"
#include "sim/simulation.h"

namespace trimtab::sim {
namespace {

void keep_blocks(std::vector<model::BlockRun>& runs, std::int64_t blocks) {
  for (model::BlockRun& run : runs) {
    run.count = static_cast<std::uint32_t>(std::min<std::int64_t>(run.count, blocks));
    blocks -= run.count;
  }
}

}  // namespace

/// Valid until the next question about runs.
Pool::Prefix Simulation::prefix(std::uint32_t slot) {
  runs_.clear();
  const SimRequest& request = requests_[slot];
  const std::int64_t block_tokens = workload_.trace().block_tokens;
  if (block_tokens > 0) {
    workload_.runs(items_[slot], runs_);
    // A trace may have an id for the block in which the prompt ends. Nobody has stored that block; what is in
    // it, a request that has run before has written in blocks of its own.
    if (request.generated > 0) keep_blocks(runs_, request.prompt / block_tokens);
  }
  return {runs_, request.id.value, request.submitted};
}

/// What conversations that are under way when a repeat begins have in the pool.
void Simulation::store_before(std::uint32_t repeat) {
  const std::int64_t block = workload_.trace().block_tokens;
  if (block <= 0 || !scenario_.pool.enabled) return;
  workload_.stored_before(repeat, [&](const Workload::Item& item) {
    const model::TraceRequest& turn = workload_.request(item);
    workload_.runs(item, runs_);
    const std::int64_t written = turn.prompt_tokens + std::max<std::int64_t>(turn.output_tokens, 1) - 1;
    pool_.store(runs_, written / block, queue_.now());
  });
}

std::int64_t Simulation::hit_of(const SimRequest& request, std::int64_t tokens) const {
  kv::HitQuery query;
  query.prompt_tokens = request.prompt + request.generated;
  query.matched_blocks = tokens / model::kBlockTokens;
  return kv::decide_hit(query, scenario_.profile.kv).tokens.value;
}

/// Leading tokens that can be read from the pool, in whole blocks of ours.
std::int64_t Simulation::match(std::uint32_t slot) {
  SimRequest& request = requests_[slot];
  request.storage_epoch = pool_.epoch();
  if (!scenario_.pool.enabled) return 0;
  const std::int64_t tokens = request.prompt + request.generated;
  std::int64_t hit = 0, stored = 0;
  const Pool::Prefix blocks = prefix(slot);
  if (workload_.trace().block_tokens > 0) {
    const Pool::Matched matched = pool_.match(blocks.runs, queue_.now());
    request.matched_blocks = (matched.tokens + matched.unreachable) / workload_.trace().block_tokens;
    request.matched_at = queue_.now();
    hit = hit_of(request, std::min(matched.tokens, request.prompt));
    stored = hit_of(request, std::min(matched.tokens + matched.unreachable, request.prompt));
  }
  // When it has run before, the pool has the generated tokens' blocks too: decode ranks write every full
  // block.
  if (request.generated > 0) {
    const std::int64_t whole = (tokens - 1) / model::kBlockTokens * model::kBlockTokens;
    stored = std::max(stored, whole);
    hit = std::max(hit, pool_.readable(blocks, whole) / model::kBlockTokens * model::kBlockTokens);
  }
  result_.faults.fallback_tokens += std::max<std::int64_t>(stored - hit, 0);
  return hit;
}

void Simulation::on(const cluster::Match& action) {
  SimRequest* request = find(action.id);
  if (request == nullptr) return;
  const std::int64_t hit = match(slot_of(action.id));
  if (request->matched) {
    ++result_.faults.passes_repeated;
  } else {
    request->first_hit = hit;
    request->matched = true;
  }
  if (recorder_ != nullptr)
    recorder_->queued(slot_of(action.id), action.id.value, request->prompt, request->submitted, queue_.now());
  told_.push_back(
      cluster::Matched{action.id, TokenCount{request->prompt + request->generated}, TokenCount{hit}});
}

/// The read waits for the machine's network, too.
void Simulation::share_network(const SimRequest& request, Pool::Read& read) {
  const double bytes = static_cast<double>(request.hit) * kv_bytes_per_token(scenario_);
  const MachineLinks::Transfer transfer = links_.read(request.prefill, bytes, queue_.now());
  const auto layers = std::max<std::int64_t>(std::ssize(scenario_.profile.kv.layer_bytes), 1);
  const Nanos whole = transfer.ends - transfer.begins;
  const Nanos first = scenario_.pool.layerwise ? Nanos{whole.value / layers} : whole;
  read.first = std::max(read.first, transfer.begins + first);
  read.all = std::max(read.all, transfer.ends);
}

void Simulation::on(const cluster::StartPrefill& action) {
  SimRequest* request = find(action.id);
  if (request == nullptr) return;
  request->prefill = action.rank;
  request->tokens = action.tokens.value;
  request->hit = action.hit.value;
  request->batch_cap = action.batch_cap;
  request->hand_over = action.hand_over;
  request->started = true;
  request->computing = request->computed = request->target = request->moved = false;
  if (recorder_ != nullptr) {
    recorder_->leased(slot_of(action.id), action.rank.engine.value, action.rank.rank, request->tokens,
                      request->hit, queue_.now());
  }
  ++request->prefill_pass;
  const Pool::Prefix blocks = pool_.nodes() > 0 ? prefix(slot_of(action.id)) : Pool::Prefix{};
  // A node went down since the match: the rank finds fewer blocks and computes the rest.
  if (request->storage_epoch != pool_.epoch()) {
    const std::int64_t there = hit_of(*request, pool_.readable(blocks, request->hit));
    result_.faults.fallback_tokens += std::max<std::int64_t>(request->hit - there, 0);
    request->hit = std::min(request->hit, there);
  }
  request->embedded.assign(request->images.size(), false);
  request->ready = ready_tokens(*request);
  Pool::Read read = pool_.read(action.rank.engine.value, blocks, request->hit, queue_.now());
  if (links_.modelled() && request->hit > 0) share_network(*request, read);
  request->read_until = read.all;
  queue_.at(read.first + scenario_.network.message, EventKind::kPrefillReady, slot_of(action.id),
            request->prefill_pass);
}

// Reads of what is not computed yet find fewer blocks: a fallback. A rank that computes behind layers which
// do not come any more cannot go on with the request; it says so, and the cluster has it redone.
void Simulation::lose_storage(const Strike& strike) {
  ++result_.faults.storage_lost;
  pool_.lose(strike.target, queue_.now());
  for (std::uint32_t slot = 0; slot < requests_.size(); ++slot) {
    SimRequest& request = requests_[slot];
    if (!request.live || !request.started || request.hit == 0 || request.read_until <= queue_.now()) continue;
    const std::int64_t there = pool_.readable(prefix(slot), request.hit);
    if (there >= request.hit) continue;
    if (!request.computing) {
      const std::int64_t hit = std::min(request.hit, hit_of(request, there));
      result_.faults.fallback_tokens += request.hit - hit;
      request.hit = hit;
      request.ready = ready_tokens(request);
      continue;
    }
    ++request.prefill_pass;
    request.started = false;
    prefill_[request.prefill.engine.value].remove(request.prefill.rank, request.id);
    result_.faults.fallback_tokens += request.hit - there;
    tell(cluster::RequestFailed{cluster::Place::of(model::Role::kPrefill, request.prefill), request.id,
                                base::Code::kUnavailable, "a storage node was lost while it was read"});
  }
}

}  // namespace trimtab::sim
