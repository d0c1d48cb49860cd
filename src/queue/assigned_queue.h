#pragma once

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "cluster/tier_queue.h"
#include "model/cluster_config.h"
#include "policy/prefill/assignment.h"

namespace trimtab::queue {

/// Work that is given to a rank when it arrives (policy/prefill/assignment.h), behind the interface of the
/// work queue: each rank has a FIFO of its own, and its engine's pull takes from that alone. With `dualpath`
/// work waits in one FIFO until a rank is below the ceiling. Tiers are told apart only to be reported.
class AssignedQueue final : public cluster::TierQueue {
 public:
  /// Errors: tier bounds that do not ascend, an unknown assignment, or `pull`, which EmbeddedQueue is.
  static base::Result<std::unique_ptr<cluster::TierQueue>> make(const model::PrefillConfig& config,
                                                                std::uint64_t seed);

  policy::EnqueueDecision push(const policy::QueueItem& item) override;
  void pull(model::EngineId engine, std::span<const policy::RankOffer> ranks) override;
  void withdraw(model::EngineId engine) override;
  std::optional<policy::Grant> next(base::Nanos now) override;
  bool ack(model::RequestId id) override;
  bool nack(model::RequestId id) override;
  bool extend(model::RequestId id, base::Nanos now) override;
  std::vector<policy::Returned> expire(base::Nanos now) override;
  std::vector<policy::Returned> lose(model::EngineId engine) override;
  base::Nanos next_event(base::Nanos now) const override;
  void assign(std::span<const policy::EngineTiers> engines) override;
  std::vector<base::Nanos> close_round() override;
  std::uint32_t tiers() const override { return map_.size(); }
  model::TierId tier_of(base::TokenCount context) const override { return map_.tier_of(context); }
  std::size_t depth(model::TierId tier) const override { return depth_[tier.value]; }
  base::Nanos queued_quota(model::TierId tier) const override { return quota_[tier.value]; }
  std::size_t queued() const override { return entries_.size() - leases_.size(); }
  std::size_t leased() const override { return leases_.size(); }

 private:
  struct Entry {
    policy::QueueItem item;
    std::uint32_t rank = UINT32_MAX;  // index of loads_; UINT32_MAX: waits for any
    std::optional<base::Nanos> lease_until;
  };
  AssignedQueue(const model::PrefillConfig& config, policy::TierMap map, policy::PrefillAssigner assigner);
  std::uint32_t index(model::EngineId engine, std::uint32_t rank) const {
    return engine.value * ranks_per_engine_ + rank;
  }
  void place(model::RequestId id);
  void give(Entry& entry, std::uint32_t rank);
  void take_off(Entry& entry);
  void count(const policy::QueueItem& item, int sign);
  policy::Returned give_back(model::RequestId id);

  std::uint32_t ranks_per_engine_;
  base::Nanos lease_, batch_cap_;
  policy::TierMap map_;
  policy::PrefillAssigner assigner_;
  std::vector<policy::AssignedLoad> loads_;              // of each rank
  std::vector<policy::RankOffer> offers_;                // of each rank
  std::vector<std::deque<model::RequestId>> fifos_;      // of each rank
  std::deque<model::RequestId> waiting_;                 // for any rank
  std::set<std::uint32_t> ready_;                        // ranks with something in their FIFO
  std::unordered_map<model::RequestId, Entry> entries_;  // looked up, never iterated
  std::set<std::pair<base::Nanos, model::RequestId>> leases_;
  std::vector<std::size_t> depth_;
  std::vector<base::Nanos> quota_, arrived_;
};

/// The queue that `config.assignment` names.
base::Result<std::unique_ptr<cluster::TierQueue>> make_queue(const model::PrefillConfig& config,
                                                             std::uint64_t seed);

}  // namespace trimtab::queue
