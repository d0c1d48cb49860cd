#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "model/scenario.h"
#include "policy/cost/cost_model.h"
#include "policy/prefill/context_parallel.h"
#include "policy/prefill/group_step.h"
#include "policy/prefill/rank_scheduler.h"
#include "sim/expert_group.h"
#include "sim/host.h"
#include "sim/step_times.h"

namespace trimtab::sim {

/// A prefill engine: ranks that step together. Each step: every rank votes, the group takes the MIN, every
/// rank cuts its chunks (the production scheduler), and the step takes
///   fixed + max over ranks of attention + max over ranks of the rest x expert balance,
/// because the ranks wait for one another between attention and MoE in every layer.
class PrefillGroup {
 public:
  PrefillGroup(EngineId engine, const model::Scenario& scenario, Host& host);

  void join();
  /// The request's hit blocks are there: it can be computed from now on.
  void add(std::uint32_t rank, std::uint32_t slot);
  void remove(std::uint32_t rank, RequestId id);
  /// Embeddings came: tokens before `ready` can be computed.
  void set_ready(std::uint32_t rank, RequestId id, TokenCount ready);
  /// The engine died. The host removes what it was given.
  void lose();
  /// The end of the step under way, when `version` is its.
  void step_ended(std::uint64_t version);
  /// A computed request whose target is known now, or which wants none.
  void hand_over(std::uint32_t slot);

  bool stepping() const { return stepping_; }
  /// Of the step under way, or the last.
  Nanos step_ends() const { return step_ends_; }
  std::uint64_t steps() const { return step_; }
  Nanos busy() const { return busy_; }
  const StepTimes& times() const { return times_; }
  const LostSteps& lost() const { return lost_; }
  /// Without ranks where experts are not modelled.
  ExpertPicture experts() const { return experts_ ? experts_->picture() : ExpertPicture{}; }
  std::int64_t tokens_computed() const { return tokens_computed_; }
  /// Of all chunks begun, without waiting and communication.
  double work_ns() const { return work_ns_; }
  /// Over all steps, what the fullest rank had more than the mean: requests are whole.
  double uneven_ns() const { return uneven_ns_; }

 private:
  struct Rank {
    policy::RankScheduler scheduler;
    policy::StepPlan plan;
    policy::Vote vote;
    Nanos own;  // of the step under way, without waiting for peers
  };
  struct Load {
    Nanos attention, rest;
    friend Load operator+(const Load& a, const Load& b) {
      return {a.attention + b.attention, a.rest + b.rest};
    }
  };
  void begin();
  ExpertLoad expert_load(double tokens);
  void report(std::uint32_t rank);
  void record(const StepTimes& times) const;
  void overlap(StepTimes& times, Nanos attention, double rest_ns, double tokens) const;
  /// True time of the chunks, whatever was predicted.
  Load load_of(const policy::StepPlan& plan) const;
  /// Plan the step of budget_; what long work takes on each rank.
  std::vector<Load> plan_fifo(bool others);
  std::vector<Load> compose();
  void merge_helps();
  Load share_of_long(Nanos part);
  void finish_long(std::vector<RequestId>& done);
  void computed(RequestId id);
  void chunk_done(const policy::PlannedChunk& chunk, bool last);
  Nanos transfer(const SimRequest& request);

  EngineId engine_;
  const model::Scenario& scenario_;
  Host& host_;
  policy::CostModel cost_;
  bool composes_;
  policy::RankConfig rank_config_;
  std::vector<Rank> ranks_;
  std::unique_ptr<policy::ContextParallelQueue> long_;  // what the whole group computes together
  policy::StepPlan long_plan_;
  std::vector<policy::HelpChunk> helps_;           // two budgets: of the step under way
  std::map<RequestId, std::uint32_t> long_ranks_;  // who holds it on the books
  bool stepping_ = false;
  std::uint64_t version_ = 0, step_ = 0;
  Nanos budget_, actual_, step_ends_, busy_, began_;
  StepTimes times_;
  LostSteps lost_;
  std::int64_t tokens_computed_ = 0;
  std::optional<ExpertGroup> experts_;
  double work_ns_ = 0, uneven_ns_ = 0;
};

}  // namespace trimtab::sim
