#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "policy/speculate/curve.h"
#include "policy/speculate/group_time.h"
#include "policy/speculate/types.h"

namespace trimtab::policy {

constexpr std::int64_t kExpectedUnit = 1 << 11;  // rates are rounded to it

/// What one rank, or several together, say of their next step: it is all-reduced over the group. Every field
/// is an integer under SUM or MAX, so the result is the same whatever the order of the reduction, bit for
/// bit. About 8 bytes a graph size (1.5 KB for 1,536 rows).
struct VerifySummary {
  std::int64_t requests = 0;       // SUM
  std::int64_t drafts = 0;         // SUM
  std::int64_t requests_max = 0;   // MAX: no graph below this can run the step
  std::int64_t rows_max = 0;       // MAX: rows of the rank with the most, all drafts verified
  std::int64_t kv_tokens_max = 0;  // MAX: context of the rank with the most
  Nanos last_step;                 // MAX: of the newest finished step, for the time model
  /// SUM per graph size, in 1 / kExpectedUnit tokens: what a rank is expected to generate that fills a graph
  /// of that size with its likeliest drafts. A size below its number of requests counts one token for each.
  std::vector<std::int64_t> expected;
  bool operator==(const VerifySummary&) const = default;
};

/// SUM and MAX of the fields. Associative and commutative; the empty summary is neutral.
void merge(VerifySummary& into, const VerifySummary& other);

struct GroupConfig {
  /// Verify all drafts unless the model promises at least this much more throughput: below it the model's
  /// error is as large as the gain.
  double gain_min_ratio = 0.003;
  /// Longest step, hence longest time between two tokens of a stream; 0: none. (A limit on the mean time per
  /// token needs no rule: with the requests given, it falls exactly as throughput grows.)
  Nanos gap_limit{0};
  /// Every so many rounds (0: never) the step takes a size this far from the best one, up and down in turn:
  /// what a row costs can only be learnt from steps of different sizes, and near the best size a little more
  /// or less costs next to nothing.
  std::int64_t explore_every = 8;
  double explore_ratio = 0.06;
};

struct GroupDecision {
  std::size_t graph = 0;          // index in the curve; its size() when none holds the largest rank
  std::int64_t graph_tokens = 0;  // 0 when none
  double expected_tokens = 0;     // of the group
  double step_ns = 0;
  double all_expected_tokens = 0;  // the same two if every draft were verified
  double all_step_ns = 0;
  VerifyRule rule = VerifyRule::kGroup;
};

/// Ours: the ranks of an expert-parallel group agree on the graph size of the step. Every layer waits for the
/// slowest rank, so the step costs what the largest padded batch costs: a rank below that fills up for free,
/// a rank above makes all others wait. Chosen is the G that maximises the group's expected tokens over T(G),
/// T from the curve, a correction learnt from the group's own steps (group_time.h) and the longest context.
/// A pure function of the merged summary and what was merged before it: every rank computes it for itself
/// and all agree. `round` counts the group's steps.
/// Cost: O(graph sizes).
GroupDecision decide_group(const StepCurve& curve, const GroupConfig& config, const VerifySummary& group,
                           const GroupTimeModel& time, std::int64_t round);

/// One rank's side: its summary from rates of round N-2, its rows from round N-1 (the reason for the two
/// rounds is at RankVerifier::confidence). Drafts beyond a request's max_tokens are not verified.
class GroupVerifier {
 public:
  explicit GroupVerifier(const StepCurve& curve) : curve_(&curve) {}

  /// O(drafts + graph sizes), no sort. The summary lives until the next call.
  const VerifySummary& summarize(std::span<const DraftView> batch, std::int64_t kv_tokens, Nanos last_step);
  /// Fills this rank's batch up to the agreed graph. O(drafts).
  const VerifyPlan& fill(std::span<const DraftView> batch, const GroupDecision& decision);

 private:
  const StepCurve* curve_;
  std::vector<std::uint32_t> histogram_;
  std::vector<std::uint64_t> queue_;
  VerifySummary summary_;
  VerifyPlan plan_;
};

}  // namespace trimtab::policy
