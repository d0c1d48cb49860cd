#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "policy/speculate/curve.h"

namespace trimtab::policy {

struct FeedbackConfig {
  std::size_t forwards_window = 5000;   // the last forwards that count
  std::size_t forwards_per_size = 10;   // a graph size with fewer does not count
  std::size_t sampler_window = 9;       // the last samples of a batch size (and of all) that count
  std::size_t sampler_samples_min = 5;  // fewer say nothing
};

/// Runtime feedback on a curve, DeepInfer's (public engine facts, section 4). Slope: per graph size the
/// median of (forward - base) / rows over the window, then the median over sizes, at least 0. Sampler: the
/// median of the last samples of that number of requests, else of all, else 0. The median of an even count is
/// the mean of its middle two. Weaknesses (they are the published rule's): a rank's forward includes waiting
/// for its peers, and one slope per row is asked to explain context, imbalance and rows alike. O(samples of
/// one size) an observation, O(distinct sizes) a question.
class StepFeedback {
 public:
  explicit StepFeedback(const StepCurve& curve, FeedbackConfig config = {});

  /// A step ran in the graph of `graph_tokens` rows. Unknown sizes are ignored.
  void observe_forward(std::int64_t graph_tokens, Nanos forward);
  /// Sampler, LM head and drafts took `span` for `requests`.
  void observe_sampler(std::int64_t requests, Nanos span);

  StepCorrection correction(std::int64_t requests) const;

 private:
  double slope() const;
  const StepCurve* curve_;
  FeedbackConfig config_;
  struct Forward {
    std::uint32_t size;  // index in the curve
    double row_ns;
  };
  std::deque<Forward> forwards_;
  std::vector<std::vector<double>> sorted_by_size_;  // the same samples, ascending
  std::map<std::int64_t, std::deque<double>> sampler_by_requests_;
  std::deque<double> sampler_all_;
};

}  // namespace trimtab::policy
