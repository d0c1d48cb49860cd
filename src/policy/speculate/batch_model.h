#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/prng.h"
#include "policy/speculate/curve.h"
#include "policy/speculate/types.h"

/// For tests and benches: batches with drawn rates, and curves.
namespace trimtab::policy::testing {

/// A batch that owns what its views point at.
struct Batch {
  struct Owned {
    std::vector<float> rates, previous;
  };
  std::vector<Owned> owned;
  std::vector<DraftView> views;
};

inline std::vector<float> draw_rates(base::Prng& prng, std::int32_t drafts) {
  std::vector<float> rates;
  float cumulative = 1;
  for (std::int32_t j = 0; j < drafts; ++j) {
    // Some certain, some hopeless, and multiples of 1/16 so that equal rates are common.
    const float confidence = static_cast<float>(prng.below(17)) / 16;
    rates.push_back(cumulative *= confidence);
  }
  return rates;
}

inline Batch draw_batch(base::Prng& prng, std::size_t requests, std::int32_t drafts_max) {
  Batch batch;
  batch.owned.resize(requests);
  for (Batch::Owned& owned : batch.owned) {
    const auto drafts = static_cast<std::int32_t>(prng.below(static_cast<std::uint64_t>(drafts_max) + 1));
    DraftView view;
    view.drafts = drafts;
    if (prng.below(8) != 0) owned.rates = draw_rates(prng, drafts);
    if (prng.below(8) != 0) owned.previous = draw_rates(prng, drafts);
    view.has_draft = prng.below(2) == 0;
    view.scheduled = static_cast<std::int64_t>(1 + prng.below(5));
    view.processed = view.scheduled - static_cast<std::int64_t>(prng.below(2));
    view.rates = owned.rates;
    view.previous_rates = owned.previous;
    batch.views.push_back(view);
  }
  return batch;
}

/// Times grow with size, by jumps of drawn height.
inline StepCurve draw_curve(base::Prng& prng, std::int64_t rows_max) {
  std::vector<CurvePoint> points;
  std::int64_t ns = static_cast<std::int64_t>(1'000 + prng.below(20'000));
  for (const std::int64_t rows : captured_graph_sizes(rows_max)) {
    ns += static_cast<std::int64_t>(prng.below(3'000));
    points.push_back({rows, Nanos{ns}});
  }
  return *StepCurve::make(std::move(points));
}

/// base + row * rows, exactly.
inline StepCurve straight_curve(std::int64_t rows_max, std::int64_t base_ns, std::int64_t row_ns) {
  std::vector<CurvePoint> points;
  for (const std::int64_t rows : captured_graph_sizes(rows_max))
    points.push_back({rows, Nanos{base_ns + row_ns * rows}});
  return *StepCurve::make(std::move(points));
}

}  // namespace trimtab::policy::testing
