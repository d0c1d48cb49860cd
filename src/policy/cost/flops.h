#pragma once

#include <cstdint>
#include <vector>

#include "base/units.h"
#include "model/profile.h"

namespace trimtab::policy {

/// The sum over positions t = 1..n of min(floor or ceil(t / ratio), cap), in O(1) and exact. `cap` 0 means
/// uncapped. n is at most 2^31.
class CappedSum {
 public:
  CappedSum(std::int64_t ratio, std::int64_t cap, bool round_up);
  std::int64_t operator()(std::int64_t n) const;

 private:
  std::int64_t divide(std::int64_t n) const { return shift_ >= 0 ? n >> shift_ : n / ratio_; }

  std::int64_t ratio_;
  std::int64_t cap_;
  bool round_up_;
  int shift_;  // log2 of a ratio that is a power of two, else -1: a division costs ten times a shift
  std::int64_t saturated_;  // the last t of the ramp
  std::int64_t ramp_sum_;   // the sum up to it
};

/// FLOPs of one chunk, FP8-equivalent.
struct ChunkFlops {
  std::int64_t attention = 0;  // projections, scores, index scans, key projections
  std::int64_t total = 0;      // and MoE, router, hyper-connections, engram, one row of logits
};

/// The exact FLOPs form of DeepSeek-V4.1 for the queries [c, c + q) of a prompt, and its time at an assumed
/// rate. Source: public engine facts, section 3 (coefficients per row and per visible item; capped sums).
/// With YOCO truncation ("compact") only the prompt's last `keep` rows run the consumer layers, at least one
/// row a chunk; there the sliding window sees no further back than those rows. Cost: some ten capped sums,
/// each O(1). `solve` inverts it by interpolation, since it is nearly linear. Weakness: FLOPs are not time:
/// gathering and dequantising KV (O(context) a chunk) and launches are not in it, which is why predicted
/// against actual is watched (drift.h).
class FlopsForm {
 public:
  explicit FlopsForm(const model::FlopsCost& cost);

  ChunkFlops flops(std::int64_t q, std::int64_t c, std::int64_t prompt) const;
  std::int64_t attention_ns(std::int64_t q, std::int64_t c, std::int64_t prompt) const;
  std::int64_t whole_ns(std::int64_t q, std::int64_t c, std::int64_t prompt) const;

  /// The largest q <= q_max with the cost of (q, c) <= budget_ns; 0 when even one token is too much.
  std::int64_t solve(bool attention_only, std::int64_t budget_ns, std::int64_t c, std::int64_t prompt,
                     std::int64_t q_max) const;

 private:
  struct Term {
    CappedSum sum;
    std::int64_t flops;
    bool windowed;  // consumer terms only: sees no further back than the kept rows
  };
  std::int64_t consumer_begin(std::int64_t q, std::int64_t c, std::int64_t prompt) const;
  std::int64_t nanos(std::int64_t flops) const;
  std::int64_t value(bool attention_only, std::int64_t q, std::int64_t c, std::int64_t prompt) const;

  model::FlopsCost cost_;
  std::int64_t rate_;  // FLOPs per second, whole
  std::vector<Term> producer_, consumer_;
};

}  // namespace trimtab::policy
