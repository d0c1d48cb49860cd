#pragma once

#include <map>
#include <memory>

#include "base/error.h"
#include "cluster/tier_queue.h"
#include "model/cluster_config.h"

namespace trimtab::queue {

/// The work queue inside the process: `policy::PrefillQueues` behind the interface. Nothing survives a
/// restart, which loses nothing: the clients' connections end with the process too.
class EmbeddedQueue final : public cluster::TierQueue {
 public:
  /// Errors: tier bounds that do not ascend, an unknown order (the nearest is named), times that are not
  /// positive.
  static base::Result<std::unique_ptr<cluster::TierQueue>> make(const model::PrefillConfig& config);

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
  std::uint32_t tiers() const override;
  model::TierId tier_of(base::TokenCount context) const override;
  std::size_t depth(model::TierId tier) const override;
  base::Nanos queued_quota(model::TierId tier) const override;
  std::size_t queued() const override;
  std::size_t leased() const override;

 private:
  explicit EmbeddedQueue(policy::PrefillQueues queues) : queues_(std::move(queues)) {}

  policy::PrefillQueues queues_;
  std::map<model::RequestId, policy::QueueItem> leases_;  // to give back
};

}  // namespace trimtab::queue
