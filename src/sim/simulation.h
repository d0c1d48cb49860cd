#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/prng.h"
#include "cluster/cluster.h"
#include "cluster/pull_agents.h"
#include "model/scenario.h"
#include "policy/cost/cost_model.h"
#include "sim/decode_group.h"
#include "sim/encoders.h"
#include "sim/faults.h"
#include "sim/placers.h"
#include "sim/pool.h"
#include "sim/prefill_group.h"
#include "sim/queue_gate.h"
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
  /// Errors: what the cluster machine refuses of the configuration; model numbers that are not positive; a
  /// request of the trace without a prompt; faults of what the scenario does not have.
  static base::Result<std::unique_ptr<Simulation>> make(const model::Scenario& asked, Workload workload);

  /// Runs until every request has ended, or nothing can happen any more (then `unfinished` counts those left,
  /// and a failure says what is missing). `progress`: called every 65,536 events.
  Result run(const std::function<void(const Progress&)>& progress = {});

  /// Ascending; the engines' accounts at these times are in the result. Call it before `run`.
  void sample_at(std::vector<Nanos> times) { sample_times_ = std::move(times); }

  EventQueue& queue() override { return queue_; }
  SimRequest& request(std::uint32_t slot) override { return requests_[slot]; }
  void tell(cluster::Event event) override;
  /// Before run: what it looks like over time goes there. It changes nothing of the run.
  void record(Recorder& recorder);
  Recorder* recorder() override { return recorder_; }
  MachineLinks* links() override { return links_.modelled() ? &links_ : nullptr; }

 private:
  struct Parts {
    std::unique_ptr<cluster::Cluster> cluster;
    QueueGate* gate = nullptr;   // the cluster's queue
    Placers* placers = nullptr;  // the cluster's decode policy, when there are several
    Pool pool;
  };
  /// A request on its way to an entrypoint.
  struct Arriving {
    Workload::Item item;
    Nanos submitted;          // at its first try
    std::uint32_t tries = 0;  // before
  };
  /// Of a prefill engine, a decode group or an encoder.
  struct Member {
    std::uint32_t faults = 0;  // that keep it away
    std::uint64_t version = 0;
    bool there = false, draining = false;
    Nanos gone;  // since
  };
  Simulation(const model::Scenario& scenario, Workload workload, Parts parts);

  // simulation_arrivals.cpp
  void schedule_next();
  void schedule(const Arriving& arriving, std::uint64_t kind);
  void arrive(const Arriving& arriving);
  void submit(const Arriving& arriving, std::uint32_t entrypoint);
  std::optional<std::uint32_t> entrypoint_up();
  void ask_again(const Arriving& arriving, const std::string& why);
  void refused(const Arriving& arriving, const std::string& why);
  void lose_entrypoint(std::uint32_t entrypoint);
  void fail_in_words(std::string message);
  void end(std::uint32_t slot);
  void free_ended();

  // simulation_faults.cpp
  void start();
  void fault(const QueuedEvent& event);
  void strike(const Strike& strike);
  void over(const Strike& strike);
  void away(model::Role role, std::uint32_t engine, std::uint32_t rank, bool lost);
  void take_away(model::Role role, std::uint32_t engine, std::uint32_t rank);
  void back(model::Role role, std::uint32_t engine, std::uint32_t rank, Nanos start_up);
  void joined(std::uint32_t index, std::uint64_t version);
  void drain(const Strike& strike, bool on);
  void leave_when_empty(std::uint32_t number);
  void lose_storage(const Strike& strike);
  bool serves(const QueuedEvent& event);
  std::string stuck() const;
  std::uint32_t member(model::Role role, std::uint32_t engine, std::uint32_t rank) const;
  std::pair<std::uint32_t, std::uint32_t> members_of(model::Role role, std::uint32_t engine,
                                                     std::uint32_t rank) const;
  void tell_all(std::vector<cluster::Event> events);

  // simulation_vision.cpp
  void on(const cluster::StartEncode& action);
  void on(const cluster::SendEmbeddings& action);
  void embedded(std::uint32_t slot, std::uint64_t version);

  // simulation_reports.cpp
  void hear(cluster::Event& event);
  void load_report(std::uint32_t index);

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
  bool unsaid(const QueuedEvent& event);
  void handed_over(std::uint32_t slot);
  void store_answer(std::uint32_t slot, std::int64_t output);
  bool served_well(const SimRequest& request, std::size_t tier) const;
  SimRequest* find(RequestId id);
  std::int64_t match(std::uint32_t slot);
  void store_before(std::uint32_t repeat);
  Pool::Prefix prefix(std::uint32_t slot);
  void share_network(const SimRequest& request, Pool::Read& read);
  std::int64_t hit_of(const SimRequest& request, std::int64_t tokens) const;
  StageSample sample(Nanos at) const;
  Result collect();
  void record_sample(Nanos until);

  model::Scenario scenario_;
  Workload workload_;
  EventQueue queue_;
  std::unique_ptr<cluster::Cluster> cluster_;
  cluster::PullAgents agents_;
  QueueGate* gate_;
  Placers* placers_;
  Pool pool_;
  MachineLinks links_;
  std::vector<PrefillGroup> prefill_;
  std::vector<DecodeGroup> decode_;
  Encoders encoders_;
  FaultSchedule schedule_;
  std::vector<Member> members_;                  // prefill engines, decode groups, encoders
  std::vector<std::uint32_t> entrypoints_down_;  // faults of each
  std::uint32_t queue_down_ = 0;                 // faults
  std::uint64_t entrypoint_turn_ = 0;
  Nanos served_;  // the last event that took a request further
  std::deque<SimRequest> requests_;
  std::vector<Workload::Item> items_;  // of each slot
  std::vector<std::uint32_t> free_, ended_;
  std::vector<Arriving> arriving_;  // wait for their time
  std::vector<std::uint32_t> arriving_free_;
  std::vector<cluster::Event> told_;  // while a step is under way: what comes next
  std::vector<cluster::Action> actions_;
  std::vector<model::BlockRun> runs_;
  std::vector<cluster::DecodeStepped> reports_;  // on their way
  std::vector<std::uint64_t> reports_of_;        // of each: its group's version when it was sent
  std::vector<std::uint32_t> reports_free_;
  base::Prng report_losses_;
  bool stepping_ = false, reporting_ = false;
  std::uint64_t sequence_ = 0, timer_ = 0, live_ = 0;
  std::int64_t drawn_ = 0;
  std::uint32_t repeats_begun_ = 0;
  Nanos first_arrival_, last_end_;
  policy::CostModel cost_;
  std::vector<Nanos> sample_times_;
  Result result_;
  Recorder* recorder_ = nullptr;
};

}  // namespace trimtab::sim
