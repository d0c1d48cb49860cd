#include <algorithm>
#include <map>

#include "policy/decode/fleet.h"
#include "policy/decode/policies.h"

namespace trimtab::policy {
namespace {

/// **DualPath in its two phases**, as published. A fetch first drains the queue: each request, in order, goes
/// to the group with the least total tokens (those already sent there included) and into that group's private
/// queue, for good. Then each group takes from its own queue the prefix R that its free KV memory could hold,
/// draws the line
///
///   Z = 1.05 * (sum of R's lengths + KV of its ranks) / ranks
///
/// and places R's head: of the ranks with room, those it leaves at or under Z by fewest requests, or else by
/// least KV. Nothing fits: the group stops, and its queue waits.
///
/// *Source.* DualPath, arXiv 2602.21548, inter-engine scheduling of decode engines. *Cost.* O(queue *
/// groups). *Weakness.* That of dualpath.cpp, and a request stays with a group that has no room while another
/// has: kept for comparison. Give it the whole queue (`decide_next` with `window` at least its length); one
/// by one
/// (`decide`) each request is its own queue.
class DualPathQueues final : public DecodePolicy {
 public:
  explicit DualPathQueues(DecodeConfig config)
      : DecodePolicy(std::move(config), DecodeLedger::Scope::kGroup) {}

 private:
  using Engine = model::EngineId;
  struct Queue {
    const DecodeLedger::Group* group = nullptr;
    std::int64_t waiting_kv = 0, free_kv = 0;  // of all in it; of the group's ranks
    std::int64_t prefix_kv = 0;                // of R
    bool prefix_open = true;
    std::optional<std::size_t> head;
  };

  /// Phase 1, for requests that have no group yet or whose group is gone, and the prefix R of each group.
  std::vector<Queue> drain(std::span<const DecodeRequest> requests) {
    std::vector<Queue> queues;
    for (const DecodeLedger::Group& group : ledger().groups()) {
      Queue queue{&group, 0, 0, 0, true, std::nullopt};
      for (const auto& kind : group.kinds) queue.free_kv += kind->capacity().kv.value * kind->size();
      queue.free_kv -= group.totals.kv;
      queues.push_back(queue);
    }
    std::map<RequestId, Engine> kept;
    const auto of = [&](Engine engine) {
      return std::find_if(queues.begin(), queues.end(),
                          [&](const Queue& q) { return q.group->engine == engine; });
    };
    for (const DecodeRequest& request : requests) {
      const auto known = group_of_.find(request.id);
      if (known == group_of_.end() || of(known->second) == queues.end()) continue;
      kept.emplace(*known);
      of(known->second)->waiting_kv += request.tokens.value;
    }
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const DecodeRequest& request = requests[i];
      const auto known = kept.find(request.id);
      auto queue = known != kept.end() ? of(known->second) : queues.begin();
      if (known == kept.end()) {
        // A group that could not hold it even empty would be its queue for ever.
        const auto key = [&](const Queue& q) {
          return std::pair(!could_hold(q, request.tokens), q.group->totals.kv + q.waiting_kv);
        };
        queue = std::min_element(queues.begin(), queues.end(),
                                 [&](const Queue& a, const Queue& b) { return key(a) < key(b); });
        kept.emplace(request.id, queue->group->engine);
        queue->waiting_kv += request.tokens.value;
      }
      if (!queue->head) queue->head = i;
      queue->prefix_open = queue->prefix_open && queue->prefix_kv + request.tokens.value <= queue->free_kv;
      if (queue->prefix_open) queue->prefix_kv += request.tokens.value;
    }
    group_of_ = std::move(kept);  // those that no longer wait are forgotten
    return queues;
  }

  bool could_hold(const Queue& queue, TokenCount tokens) const {
    return std::any_of(queue.group->kinds.begin(), queue.group->kinds.end(), [&](const auto& kind) {
      return tokens.value + config().headroom_tokens <= kind->capacity().kv.value;
    });
  }

  /// Phase 2 for the head of one queue.
  std::optional<RankId> place(const Queue& queue, const DecodeRequest& request, DecodeReason& reason) const {
    const DecodeLedger::Group& group = *queue.group;
    const std::int64_t sum = group.totals.kv + std::max(queue.prefix_kv, request.tokens.value);
    return under_relaxed_mean(group, request.tokens, sum, config().relax_percent, reason);
  }

  std::optional<RankId> choose(const DecodeRequest& request, Nanos /*now*/, DecodeReason& reason) override {
    // After choose_next the drained queues are those that it saw; alone, the request is the queue.
    if (chosen_ && chosen_->second == request.id) {
      const Queue queue = chosen_->first;
      chosen_.reset();
      return place(queue, request, reason);
    }
    for (const Queue& queue : drain(std::span(&request, 1))) {
      if (!queue.head) continue;
      if (const auto rank = place(queue, request, reason)) return rank;
      if (could_hold(queue, request.tokens)) reason.rule = DecodeRule::kHeldInGroup;
    }
    return std::nullopt;
  }

  std::size_t choose_next(std::span<const DecodeRequest> window, Nanos /*now*/) override {
    chosen_.reset();
    for (const Queue& queue : drain(window)) {
      if (!queue.head || !least_kv(*queue.group, window[*queue.head].tokens).winner) continue;
      chosen_ = {queue, window[*queue.head].id};
      return *queue.head;
    }
    return 0;
  }

  std::map<RequestId, Engine> group_of_;
  std::optional<std::pair<Queue, RequestId>> chosen_;
};

}  // namespace

std::unique_ptr<DecodePolicy> make_dualpath_queues(const DecodeConfig& config) {
  return std::make_unique<DualPathQueues>(config);
}

}  // namespace trimtab::policy
