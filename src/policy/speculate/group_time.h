#pragma once

#include <array>
#include <cstdint>

#include "policy/speculate/curve.h"

namespace trimtab::policy {

struct GroupTimeConfig {
  double keep_ratio = 0.998;    // weight of a step after the next one: remembers about 500 steps
  double outlier_ratio = 0.25;  // a step further than this from its prediction counts only that far
  double noise_ratio = 0.01;    // expected scatter of equal steps
};

/// Step time of a group: base(G) + fixed + row * G + context * longest KV; row and context at least 0. Learnt
/// from the group's own steps by decayed least squares. Unlike one slope per row (StepFeedback) it tells
/// what long contexts cost from what rows cost: at small batches nearly all that a step takes beyond the
/// curve is context, and a rule that blames the rows cuts drafts that cost nothing. The prior says that the
/// curve is right about rows to within its own mean slope. The time is that of the whole step, which ends on
/// all ranks together. O(1).
/// Weakness: slopes are told apart only if G and contexts vary; hence GroupConfig::explore_every.
class GroupTimeModel {
 public:
  /// `curve` outlives the model.
  explicit GroupTimeModel(const StepCurve& curve, GroupTimeConfig config = {});

  /// A step ran in graph `index` of the curve; the rank with the most had `kv_tokens` of context.
  void observe(std::size_t index, std::int64_t kv_tokens, Nanos step);
  double predict_ns(std::size_t index, std::int64_t kv_tokens) const;

  /// Learnt: ns per row and per token of context, beyond the curve.
  double row_ns() const { return row_; }
  double context_ns() const { return context_; }

 private:
  void solve();
  const StepCurve* curve_;
  GroupTimeConfig config_;
  double row_prior_ns_ = 0;  // the curve's mean slope
  // Decayed sums over steps: weight, rows, context, excess over the curve, and the products.
  double weight_ = 0, g_ = 0, k_ = 0, y_ = 0, gg_ = 0, gk_ = 0, kk_ = 0, gy_ = 0, ky_ = 0;
  double fixed_ = 0, row_ = 0, context_ = 0;
};

}  // namespace trimtab::policy
