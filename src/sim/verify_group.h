#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/prng.h"
#include "model/scenario.h"
#include "policy/speculate/confidence.h"
#include "policy/speculate/feedback.h"
#include "policy/speculate/group.h"
#include "sim/decode_step.h"
#include "sim/verify_drafts.h"

namespace trimtab::sim {

/// What the rule may know of a step that ended.
struct VerifiedStep {
  double forward_ns = 0;  // without the sampler
  double sampler_ns = 0;
  std::int64_t kv_most = 0;  // of the rank with the most
};

/// Drafts of a decode group's requests, and the production rules (policy/speculate) that say how many rows
/// each rank verifies. A request's drafts come from its own stream, so they are the same under every rule.
///
/// Exact: each request's rounds are drawn; the rule sees the rates of rounds N-2 and N-1, the device shares
/// the rows out by the newest ones. Fast: rows and accepted tokens in expectation over requests as a batch
/// holds them; what the rules learn from steps is taken as learnt.
class VerifyGroup {
 public:
  VerifyGroup(const model::Scenario& scenario, std::uint32_t ranks);

  /// The captured graph that runs `rows`; they themselves when none is so large.
  double padded(double rows) const;

  // Exact. A handle stands for a running request.
  std::uint32_t add(std::uint64_t request);
  void remove(std::uint32_t draft);
  /// Decides the next step: handles and KV of each rank. Returns each rank's rows.
  const std::vector<double>& choose(std::span<const std::vector<std::uint32_t>> drafts,
                                    std::span<const double> kv);
  /// The step is done: tokens that the request got, 1 + accepted. Its next round is drafted.
  std::int64_t take(std::uint32_t draft);
  void learn(const VerifiedStep& step);

  // Fast.
  /// The same for `requests` of each rank, as long as they last; `balance`: of the expert ranks.
  const std::vector<double>& plan(std::span<const std::int64_t> requests, double kv_most, double balance);
  /// Tokens a step that the request will get on the rank, as the plan has it now.
  double tokens_per_step(std::uint64_t request, std::uint32_t rank) const;
  /// Steps that its next `left` tokens take.
  std::uint64_t steps_for(std::uint64_t request, std::uint32_t rank, std::int64_t left) const;

  const std::vector<double>& rows() const { return rows_; }
  /// Of the rank with the most; in expectation more than the most of the ranks' means.
  double rows_most() const { return rows_most_; }
  double tokens_of_all() const { return table_.tokens_of_all(); }

 private:
  struct Draft {
    base::Prng prng{0};
    double acceptance = 0;
    std::int32_t rows = 1;
    std::int32_t rounds = 0;  // drawn
  };
  std::span<float> rates(std::uint32_t draft, std::int32_t round);
  std::span<const float> known(std::uint32_t draft, std::int32_t age);
  void draft_next(std::uint32_t draft);
  base::Prng stream_of(std::uint64_t request) const;
  void share(std::span<const std::uint32_t> drafts, std::int64_t rows);
  void view(std::span<const std::uint32_t> drafts);
  std::size_t best_for_group(std::span<const std::int64_t> requests, double kv_most, double balance) const;
  std::size_t best_for_rank(std::int64_t requests, double slope) const;
  double slope_of(double kv_most, double balance, double rows_most, double own_rows) const;
  double time(double rows, double kv_most, double balance) const;
  double drafts_per_request(std::int64_t requests, std::size_t graph) const;

  model::VerifyModel model_;
  std::uint64_t seed_ = 0;
  DecodeStep step_;
  policy::StepCurve curve_;
  DraftTable table_;
  std::vector<Draft> drafts_;
  std::vector<float> rates_;  // [drafts_, 3 rounds, drafts of a round]
  std::vector<std::uint32_t> free_;
  // What the rules learn.
  std::vector<policy::RankVerifier> verifiers_;
  std::vector<policy::StepFeedback> feedback_;
  policy::GroupVerifier group_;
  policy::GroupTimeModel time_;
  std::int64_t round_ = 0;
  policy::Nanos last_step_;
  // Of the step that was chosen.
  std::vector<double> rows_;
  double rows_most_ = 0;
  std::vector<std::int64_t> requests_;
  // Scratch.
  std::vector<policy::DraftView> views_;
  std::vector<std::uint64_t> queue_;
  std::vector<std::int32_t> shares_;
  // Fast: the plan, and what it was made for.
  std::vector<std::size_t> graphs_;
  std::vector<double> thresholds_;
  std::int64_t planned_requests_ = -1;
  double planned_kv_ = 0, planned_balance_ = 0;
};

}  // namespace trimtab::sim
