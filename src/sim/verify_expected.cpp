// The fast form of VerifyGroup: rows and accepted tokens in expectation.
#include <algorithm>
#include <cmath>

#include "policy/experts/drift.h"
#include "sim/verify_group.h"

namespace trimtab::sim {
namespace {

using model::VerifyPolicy;

constexpr double kReplanRatio = 0.01;    // a batch that changed by less keeps its plan
constexpr double kGainMinRatio = 0.003;  // GroupConfig::gain_min_ratio
constexpr int kSlopeRounds = 6;          // until the published feedback has settled

/// Expected largest of so many normal values, in deviations.
double normal_peak(std::size_t ranks) {
  return experts::noise_floor(static_cast<std::int32_t>(ranks), 1.0) - 1;
}

bool near(double value, double planned) { return std::fabs(value - planned) <= kReplanRatio * planned; }

}  // namespace

/// Of a whole step, as the group's own model has learnt it.
double VerifyGroup::time(double rows, double kv_most, double balance) const {
  return step_.fixed + step_.unprofiled + step_.dispatch * rows + step_.moe(rows * balance) +
         step_.attention * kv_most + step_.sampler + step_.sampler_row * rows;
}

double VerifyGroup::drafts_per_request(std::int64_t requests, std::size_t graph) const {
  if (graph == curve_.size()) return 0;
  const auto rows = static_cast<double>(curve_.points()[graph].graph_tokens);
  const auto count = static_cast<double>(std::max<std::int64_t>(requests, 1));  // an idle rank's next one
  return std::clamp(rows / count - 1, 0.0, static_cast<double>(model_.drafts));
}

/// GroupVerifier's choice with expected tokens.
std::size_t VerifyGroup::best_for_group(std::span<const std::int64_t> requests, double kv_most,
                                        double balance) const {
  const std::int64_t most = *std::ranges::max_element(requests);
  const std::size_t first = curve_.index_for(most);
  if (first == curve_.size()) return first;
  const std::size_t all = std::min(curve_.index_for(most * (1 + model_.drafts)), curve_.size() - 1);
  // Ranks with as many requests are alike.
  std::vector<std::int64_t> ranks(static_cast<std::size_t>(most) + 1);
  for (const std::int64_t count : requests) ++ranks[static_cast<std::size_t>(count)];
  const auto ratio = [&](std::size_t graph) {
    double tokens = 0;
    for (std::int64_t count = 1; count <= most; ++count) {
      const std::int64_t times = ranks[static_cast<std::size_t>(count)];
      if (times == 0) continue;
      tokens += static_cast<double>(times * count) * table_.tokens(drafts_per_request(count, graph));
    }
    return tokens / time(static_cast<double>(curve_.points()[graph].graph_tokens), kv_most, balance);
  };
  std::size_t best = first;
  double best_ratio = 0;
  for (std::size_t graph = first; graph <= all; ++graph) {
    const double own = ratio(graph);
    if (own > best_ratio) {
      best_ratio = own;
      best = graph;
    }
  }
  return best_ratio <= ratio(all) * (1 + kGainMinRatio) ? all : best;
}

/// RankVerifier's choice with expected tokens: the rank sees its curve, the slope and its sampler.
std::size_t VerifyGroup::best_for_rank(std::int64_t requests, double slope) const {
  const std::size_t first = curve_.index_for(requests);
  const std::int64_t rows_all = requests * (1 + model_.drafts);
  const std::size_t all = std::min(curve_.index_for(rows_all), curve_.size() - 1);
  std::size_t best = first;
  double best_ratio = 0;
  for (std::size_t graph = first; graph <= all; ++graph) {
    const policy::CurvePoint& point = curve_.points()[graph];
    const auto rows = static_cast<double>(point.graph_tokens);
    const double tokens = static_cast<double>(requests) * table_.tokens(drafts_per_request(requests, graph));
    const double span =
        static_cast<double>(point.base.value) + slope * rows + step_.sampler + step_.sampler_row * rows;
    if (tokens / span > best_ratio) {
      best_ratio = tokens / span;
      best = graph;
    }
  }
  return best;
}

/// What the published feedback blames on each row of a rank's own graph.
double VerifyGroup::slope_of(double kv_most, double balance, double rows_most, double own_rows) const {
  const double forward = time(rows_most, kv_most, balance) - step_.sampler - step_.sampler_row * rows_most;
  return std::max(0.0, (forward - step_.curve(own_rows)) / std::max(own_rows, 1.0));
}

const std::vector<double>& VerifyGroup::plan(std::span<const std::int64_t> requests, double kv_most,
                                             double balance) {
  std::int64_t running = 0, most = 0;
  for (const std::int64_t count : requests) {
    running += count;
    most = std::max(most, count);
  }
  const bool stands = planned_requests_ > 0 &&
                      near(static_cast<double>(running), static_cast<double>(planned_requests_)) &&
                      near(kv_most, planned_kv_) && near(balance, planned_balance_);
  if (!stands && running > 0) {
    planned_requests_ = running;
    planned_kv_ = kv_most;
    planned_balance_ = balance;
    if (model_.policy == VerifyPolicy::kGroup) {
      std::ranges::fill(graphs_, best_for_group(requests, kv_most, balance));
    } else if (model_.policy == VerifyPolicy::kPublished) {
      // From all drafts, as production starts, to where slope and choice agree.
      std::ranges::fill(graphs_, std::min(curve_.index_for(most * (1 + model_.drafts)), curve_.size() - 1));
      std::vector<double> slopes(graphs_.size(), 0.0);
      for (int round = 0; round < kSlopeRounds; ++round) {
        double rows_most = 0;
        for (std::size_t rank = 0; rank < graphs_.size(); ++rank) {
          const double drafts = drafts_per_request(requests[rank], graphs_[rank]);
          const auto count = static_cast<double>(requests[rank]);
          const double deviation = std::sqrt(count * table_.variance(drafts));
          rows_most = std::max(rows_most, count * (1 + drafts) + normal_peak(graphs_.size()) * deviation);
        }
        for (std::size_t rank = 0; rank < graphs_.size(); ++rank) {
          if (requests[rank] == 0 || curve_.index_for(requests[rank]) == curve_.size()) continue;
          const auto own = static_cast<double>(curve_.points()[graphs_[rank]].graph_tokens);
          const double seen = slope_of(kv_most, balance, rows_most, own);
          slopes[rank] = round == 0 ? seen : 0.5 * (slopes[rank] + seen);
          graphs_[rank] = best_for_rank(requests[rank], slopes[rank]);
        }
      }
    }
  }
  double rows_most = 0;
  for (std::size_t rank = 0; rank < rows_.size(); ++rank) {
    const double drafts = model_.policy == VerifyPolicy::kFixed
                              ? static_cast<double>(model_.drafts)
                              : drafts_per_request(requests[rank], graphs_[rank]);
    rows_[rank] = static_cast<double>(requests[rank]) * (1 + drafts);
    thresholds_[rank] = table_.threshold(drafts);
    if (model_.policy == VerifyPolicy::kPublished) {
      // Nobody holds the ranks to their means: the one that happens to verify most sets the step.
      const double deviation = std::sqrt(static_cast<double>(requests[rank]) * table_.variance(drafts));
      rows_most = std::max(rows_most, rows_[rank] + normal_peak(rows_.size()) * deviation);
    }
  }
  rows_most_ = std::max(rows_most, *std::ranges::max_element(rows_));
  return rows_;
}

double VerifyGroup::tokens_per_step(std::uint64_t request, std::uint32_t rank) const {
  base::Prng prng = stream_of(request);
  return table_.tokens_of(draw_acceptance(model_, prng), thresholds_[rank]);
}

/// The long way takes the mean, the end is drawn: how far the last step overshoots decides there.
std::uint64_t VerifyGroup::steps_for(std::uint64_t request, std::uint32_t rank, std::int64_t left) const {
  constexpr std::int64_t kDrawn = 24;
  base::Prng prng = stream_of(request);
  const double acceptance = draw_acceptance(model_, prng);
  std::uint64_t steps = 0;
  if (left > kDrawn) {
    const double tokens = table_.tokens_of(acceptance, thresholds_[rank]);
    steps = static_cast<std::uint64_t>(static_cast<double>(left - kDrawn) / tokens);
    left -= static_cast<std::int64_t>(static_cast<double>(steps) * tokens);
  }
  std::vector<float> rates(static_cast<std::size_t>(model_.drafts));
  for (; left > 0; ++steps) {
    draw_round(model_, acceptance, prng, rates);
    const double drawn = prng.uniform();
    --left;
    for (const float rate : rates) {
      if (drawn >= static_cast<double>(rate) || static_cast<double>(rate) < thresholds_[rank]) break;
      --left;
    }
  }
  return std::max<std::uint64_t>(steps, 1);
}

}  // namespace trimtab::sim
