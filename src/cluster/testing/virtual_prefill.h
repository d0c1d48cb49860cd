#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "cluster/actions.h"
#include "cluster/testing/virtual_group.h"
#include "model/cluster_config.h"
#include "model/profile.h"
#include "policy/prefill/rank_scheduler.h"

namespace trimtab::cluster::testing {

/// A prefill engine as the reference engine is: rank FIFOs under the group-wide MIN budget, the real
/// scheduler and cost model, steps that take what was predicted, give or take.
class VirtualPrefill final : public VirtualGroup {
 public:
  VirtualPrefill(EngineId engine, const model::ClusterConfig& config, const model::Profile& profile,
                 Surroundings& world)
      : VirtualGroup(model::Role::kPrefill, engine, config.prefill.ranks, config.prefill.kv_blocks, world),
        config_(config),
        profile_(profile),
        states_(config.prefill.ranks) {
    reset_states();
  }

  void start(const StartPrefill& action, std::vector<model::ImageSpan> images) {
    Rank& rank = states_[action.rank.rank];
    if (rank.held.contains(action.id)) world_.violation("StartPrefill of a request that the rank has");
    std::vector<model::ImageSpan> needed;
    for (const model::ImageSpan& image : images) {
      if (image.position + image.tokens > action.hit.value) needed.push_back(image);
    }
    Held held;
    held.tokens = action.tokens;
    held.hit = action.hit;
    held.hand_over = action.hand_over;
    held.blocks = (action.tokens.value + model::kBlockTokens - 1) / model::kBlockTokens;
    held.images = needed;
    std::int64_t used = held.blocks;
    for (const auto& [id, other] : rank.held) used += other.blocks;
    if (used > blocks_) world_.violation("a prefill rank was sent more than it can hold");
    rank.held.emplace(action.id, held);
    rank.scheduler->add({action.id, action.tokens, action.hit, action.batch_cap, needed, ready(held)});
  }
  /// `generation`: of the decode group's memory that the reservation was made in.
  void target(const SendTarget& action, std::uint64_t generation) {
    Rank& rank = states_[action.prefill.rank];
    const auto held = rank.held.find(action.id);
    if (held == rank.held.end()) return;  // done already, without it
    held->second.target = action.decode;
    held->second.target_generation = generation;
    if (held->second.computed) done(action.prefill.rank, action.id);
  }
  void embeddings(std::uint32_t rank, RequestId id, const model::ImageSpan& span) {
    const auto held = states_[rank].held.find(id);
    if (held == states_[rank].held.end()) return;
    std::erase_if(held->second.images,
                  [&](const model::ImageSpan& one) { return one.position == span.position; });
    states_[rank].scheduler->set_ready(id, ready(held->second));
  }
  void abort(std::uint32_t rank, RequestId id) {
    states_[rank].held.erase(id);
    states_[rank].scheduler->remove(id);
    world_.tell(place(rank), Released{place(rank), id, 0});
  }
  std::size_t held() const {
    std::size_t sum = 0;
    for (const Rank& rank : states_) sum += rank.held.size();
    return sum;
  }
  std::int64_t stored(RequestId id) const {
    const auto found = stored_.find(id);
    return found == stored_.end() ? 0 : found->second;
  }
  std::int64_t tokens_computed() const { return tokens_computed_; }

 private:
  struct Held {
    TokenCount tokens, hit;
    std::int64_t blocks = 0;
    std::vector<model::ImageSpan> images;  // whose embeddings have not come
    bool hand_over = true, computed = false;
    std::optional<RankId> target;
    std::uint64_t target_generation = 0;
  };
  struct Rank {
    std::unique_ptr<policy::RankScheduler> scheduler;
    std::map<RequestId, Held> held;
    policy::StepPlan plan;
    policy::Vote vote;
  };
  static TokenCount ready(const Held& held) {
    std::int64_t first = INT64_MAX;
    for (const model::ImageSpan& image : held.images) first = std::min<std::int64_t>(first, image.position);
    return TokenCount{first};
  }
  void reset_states() {
    for (Rank& rank : states_) {
      rank.scheduler = std::make_unique<policy::RankScheduler>(
          policy::RankConfig::from(config_.prefill),
          policy::CostModel(profile_.cost, config_.prefill.quota_scope));
      rank.held.clear();
      rank.plan = {};
    }
  }
  void clear() override { reset_states(); }

  Nanos begin_step() override {
    budget_ = base::kForever;
    for (Rank& rank : states_) {
      rank.vote = rank.scheduler->vote();
      budget_ = std::min(budget_, rank.vote.vote);
    }
    actual_ = Nanos{};
    for (Rank& rank : states_) {
      rank.plan = rank.scheduler->plan(budget_);
      if (rank.plan.chunks.empty()) continue;
      const double noise = 0.9 + 0.3 * world_.prng().uniform();
      const auto took =
          static_cast<std::int64_t>(static_cast<double>(rank.plan.predicted_whole.value) * noise);
      actual_ = std::max(actual_, Nanos{std::max<std::int64_t>(took, 1)});
    }
    ++step_;
    return actual_;
  }
  void end_step(bool reported) override {
    for (std::uint32_t r = 0; r < states_.size(); ++r) {
      if (states_[r].plan.chunks.empty()) continue;
      if (reported) {
        report(r);
      } else if (alive_[r]) {
        for (const RequestId id : states_[r].scheduler->done(states_[r].plan, actual_)) write(states_[r], id);
      }
    }
  }
  /// The last thing a rank does for a request with a target, even when its group has just died around it.
  bool write(Rank& rank, RequestId id) {
    const auto found = rank.held.find(id);
    if (found == rank.held.end() || !found->second.target) return false;
    const Held& held = found->second;
    if (world_.prng().uniform() < world_.hand_over_failures()) return false;
    world_.hand_over(*held.target, held.target_generation, id);
    return true;
  }
  void report(std::uint32_t r) {
    Rank& rank = states_[r];
    PrefillStepped stepped;
    stepped.from = place(r).rank_id();
    stepped.step = step_;
    stepped.vote = rank.vote.vote;
    stepped.budget = budget_;
    stepped.predicted = rank.plan.predicted;
    stepped.actual = actual_;
    for (const policy::PlannedChunk& chunk : rank.plan.chunks) {
      const auto held = rank.held.find(chunk.id);
      if (held == rank.held.end()) continue;
      stepped.chunks.push_back({chunk.id, chunk.tokens, chunk.computed, chunk.predicted});
      tokens_computed_ += chunk.tokens.value;
      std::int64_t& stored = stored_[chunk.id];
      stored =
          std::max(stored, (chunk.computed + chunk.tokens).value / model::kBlockTokens * model::kBlockTokens);
    }
    const std::vector<RequestId> complete = rank.scheduler->done(rank.plan, actual_);
    stepped.waiting = static_cast<std::uint32_t>(rank.scheduler->waiting());
    stepped.waiting_quota = rank.scheduler->waiting_quota();
    world_.tell(place(r), stepped);
    for (const RequestId id : complete) {
      Held& held = rank.held.at(id);
      if (!held.images.empty()) world_.violation("an image was computed before its embeddings came");
      held.computed = true;
      const std::int64_t answered = (held.tokens - world_.prompt(id)).value + 1;
      const bool stops = answered >= world_.stops_after(id);
      // Without a target the finished KV waits here, as in the reference engine.
      if (stops || !held.hand_over || held.target) done(r, id);
    }
  }
  void done(std::uint32_t r, RequestId id) {
    Rank& rank = states_[r];
    const Held& held = rank.held.at(id);
    PrefillDone done;
    done.from = place(r).rank_id();
    done.id = id;
    done.hit = held.hit;
    done.computed = held.tokens - held.hit;
    const std::int64_t answered = (held.tokens - world_.prompt(id)).value + 1;
    if (answered >= world_.stops_after(id)) {
      done.finish = model::FinishReason::kStop;
    } else {
      done.handed = write(rank, id);
    }
    world_.tell(place(r), done, {{id, held.tokens.value}});
    rank.held.erase(id);
  }

  const model::ClusterConfig& config_;
  const model::Profile& profile_;
  std::vector<Rank> states_;
  std::map<RequestId, std::int64_t> stored_;  // leading tokens that the pool got from here
  Nanos budget_, actual_;
  std::uint64_t step_ = 0;
  std::int64_t tokens_computed_ = 0;
};

}  // namespace trimtab::cluster::testing
