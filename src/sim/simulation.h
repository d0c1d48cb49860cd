#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "base/error.h"
#include "cluster/cluster.h"
#include "cluster/pull_agents.h"
#include "model/scenario.h"
#include "policy/cost/cost_model.h"
#include "sim/decode_group.h"
#include "sim/prefill_group.h"
#include "sim/prefix_cache.h"
#include "sim/result.h"
#include "sim/workload.h"

namespace trimtab::sim {

/// What a run says while it goes on.
struct Progress {
  std::uint64_t submitted = 0, ended = 0;
  Nanos now;
};

/// The production cluster machine with simulated engines, pool and clients around it, in virtual time. The
/// machine, its policies and its queues are the objects that serve; only the engines' time is modelled. The
/// same scenario and workload give the same events, bit for bit.
class Simulation final : public Host {
 public:
  /// Errors: what the cluster machine refuses of the configuration; model numbers that are not positive.
  static base::Result<std::unique_ptr<Simulation>> make(const model::Scenario& asked, Workload workload);

  /// Runs until every request has ended, or nothing can happen any more. `progress`: called every 65,536
  /// events.
  Result run(const std::function<void(const Progress&)>& progress = {});

  EventQueue& queue() override { return queue_; }
  SimRequest& request(std::uint32_t slot) override { return requests_[slot]; }
  void tell(cluster::Event event) override;
  /// Before run: what it looks like over time goes there. It changes nothing of the run.
  void record(Recorder& recorder);
  Recorder* recorder() override { return recorder_; }

 private:
  Simulation(const model::Scenario& scenario, Workload workload, std::unique_ptr<cluster::Cluster> cluster);
  void arrive(const Workload::Item& item);
  void schedule_next();
  void schedule(const Workload::Item& item, std::uint64_t kind);
  void dispatch(const QueuedEvent& event);
  void step(const cluster::Event& event);
  void perform(const cluster::Action& action);
  void on(const cluster::Match& action);
  void on(const cluster::StartPrefill& action);
  void on(const cluster::Reserve& action);
  void on(const cluster::SendTarget& action);
  void on(const cluster::StartDecode& action);
  void on(const cluster::Abort& action);
  void on(const cluster::Deliver& action);
  void on(const cluster::Finish& action);
  void on(const cluster::Fail& action);
  void handed_over(std::uint32_t slot);
  bool served_well(const SimRequest& request, std::size_t tier) const;
  void end(std::uint32_t slot);
  void free_ended();
  SimRequest* find(RequestId id);
  std::int64_t match(std::uint32_t slot);
  Result collect();
  void record_sample(Nanos until);

  model::Scenario scenario_;
  Workload workload_;
  EventQueue queue_;
  std::unique_ptr<cluster::Cluster> cluster_;
  cluster::PullAgents agents_;
  PrefixCache cache_;
  std::vector<PrefillGroup> prefill_;
  std::vector<DecodeGroup> decode_;
  std::vector<Nanos> read_free_;  // per prefill engine: when its machine's reads are done
  std::deque<SimRequest> requests_;
  std::vector<Workload::Item> items_;  // of each slot
  std::vector<std::uint32_t> free_, ended_;
  std::vector<Workload::Item> arriving_;  // follow-ups that wait for their time
  std::vector<std::uint32_t> arriving_free_;
  std::deque<cluster::Event> told_;
  std::vector<cluster::Action> actions_;
  std::vector<cluster::Event> pulls_;
  std::vector<model::BlockRun> runs_;
  bool stepping_ = false, reporting_ = false;
  std::uint64_t sequence_ = 0, timer_ = 0, live_ = 0;
  std::int64_t drawn_ = 0;
  Nanos first_arrival_, last_end_;
  policy::CostModel cost_;
  Result result_;
  Recorder* recorder_ = nullptr;
};

}  // namespace trimtab::sim
