#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/speculate/curve.h"
#include "policy/speculate/types.h"

namespace trimtab::policy {

/// The rules that decide for one rank alone. All: deterministic; ties go to the lower batch index (hosts sort
/// the batch longest first). The returned plan lives until the next call.
class RankVerifier {
 public:
  explicit RankVerifier(StepCurve curve) : curve_(std::move(curve)) {}
  const StepCurve& curve() const { return curve_; }

  /// DSpark's confidence-scheduled verification as DeepInfer runs it (public engine facts, section 4;
  /// arXiv 2607.05147). The *size* B of the step comes from the rates of round N-2 (`previous_rates` where
  /// the newest round is processed): rows by rate, highest first; of all prefixes the first that maximises
  /// expected tokens over base(G) + slope * G + sampler, G the smallest graph >= B. *Who* verifies comes from
  /// the rates of round N-1: the B - n highest. The size must not depend on the newest confidences, or
  /// whether draft i is verified would depend on the drafts after it and the output would be biased.
  /// Cost: two sorts of all drafts. Weaknesses: each rank for itself, though the slowest sets the step; no
  /// term for context; sampler constant in rows; blind to max_tokens.
  const VerifyPlan& confidence(std::span<const DraftView> batch, const StepCorrection& correction);

  /// The greedy as published (algorithm of arXiv 2607.05147): one queue from the newest rates, rows by rate,
  /// admitted while tokens per second grow. `early_stop`: ends at the first row that does not improve, which
  /// needs no look-ahead and so is lossless on current rates; without it, the whole (jagged) curve is
  /// searched, as production does with rates two rounds old.
  const VerifyPlan& greedy(std::span<const DraftView> batch, const StepCorrection& correction,
                           bool early_stop);

  /// min(n, nd) drafts of everyone.
  const VerifyPlan& fixed(std::span<const DraftView> batch, std::int32_t drafts,
                          const StepCorrection& correction);

 private:
  struct Best {
    std::int64_t total = 0;
    double expected = 0, time = 0;
    std::size_t graph = 0;
    bool stopped = false;
  };
  void fill_queue(std::vector<std::uint64_t>& queue, std::span<const DraftView> batch, bool previous);
  Best search(std::int64_t requests, const StepCorrection& correction, bool early_stop) const;
  void finish(std::span<const DraftView> batch, const Best& best, const StepCorrection& correction,
              VerifyRule rule);

  StepCurve curve_;
  std::vector<std::uint64_t> size_queue_, share_queue_;  // sortable: see queue_key
  VerifyPlan plan_;
};

/// The newest confidences of one request, as the device has them just before the step.
struct FreshDraft {
  std::span<const float> confidences;  // of each draft alone (not cumulative), in [0, 1]
  bool matched = true;                 // false: the request has no draft of this round; its rows rate 0
};
/// The second split (public engine facts, section 4, step 5): the host fixed `total_tokens`, the device
/// shares it out again by the newest confidences: cumulative products, highest first, ties to the lower flat
/// index. Returns the rows of each request, summing to total_tokens, which must be between the number of
/// requests and that plus all drafts.
std::vector<std::int32_t> share_by_newest(std::span<const FreshDraft> batch, std::int64_t total_tokens);

}  // namespace trimtab::policy
