#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "cluster/tier_queue.h"

namespace trimtab::sim {

/// A work queue that can be down: what is pushed waits in front of it (its producers keep it), nothing is
/// dequeued and no lease runs out, and when it comes back all goes on where it stood.
class QueueGate final : public cluster::TierQueue {
 public:
  explicit QueueGate(std::unique_ptr<cluster::TierQueue> queue) : queue_(std::move(queue)) {}

  void set_down(bool down) { down_ = down; }

  std::optional<policy::Grant> next(base::Nanos now) override {
    return down_ ? std::nullopt : queue_->next(now);
  }
  std::vector<policy::Returned> expire(base::Nanos now) override {
    return down_ ? std::vector<policy::Returned>{} : queue_->expire(now);
  }
  base::Nanos next_event(base::Nanos now) const override {
    return down_ ? base::kForever : queue_->next_event(now);
  }

  policy::EnqueueDecision push(const policy::QueueItem& item) override { return queue_->push(item); }
  void pull(model::EngineId engine, std::span<const policy::RankOffer> ranks) override {
    queue_->pull(engine, ranks);
  }
  void withdraw(model::EngineId engine) override { queue_->withdraw(engine); }
  bool ack(model::RequestId id) override { return queue_->ack(id); }
  bool nack(model::RequestId id) override { return queue_->nack(id); }
  bool extend(model::RequestId id, base::Nanos now) override { return queue_->extend(id, now); }
  std::vector<policy::Returned> lose(model::EngineId engine) override { return queue_->lose(engine); }
  void assign(std::span<const policy::EngineTiers> engines) override { queue_->assign(engines); }
  std::vector<base::Nanos> close_round() override { return queue_->close_round(); }
  std::uint32_t tiers() const override { return queue_->tiers(); }
  model::TierId tier_of(base::TokenCount context) const override { return queue_->tier_of(context); }
  std::size_t depth(model::TierId tier) const override { return queue_->depth(tier); }
  base::Nanos queued_quota(model::TierId tier) const override { return queue_->queued_quota(tier); }
  std::size_t queued() const override { return queue_->queued(); }
  std::size_t leased() const override { return queue_->leased(); }

 private:
  std::unique_ptr<cluster::TierQueue> queue_;
  bool down_ = false;
};

}  // namespace trimtab::sim
