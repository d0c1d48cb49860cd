#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <tuple>
#include <vector>

#include "base/prng.h"
#include "policy/speculate/confidence.h"
#include "policy/speculate/feedback.h"
#include "policy/speculate/group.h"
#include "policy/speculate/queue_key.h"

/// For tests and benches: an expert-parallel decode group whose ranks differ, in which every rule schedules
/// the same rounds of the same requests, so that rules compare without noise. docs/policies/speculate.md says
/// which numbers were fitted to what.
namespace trimtab::policy::study {

constexpr std::int32_t kDrafts = 5;

struct Model {
  std::uint32_t ranks = 64;
  std::int64_t requests_per_rank = 60;  // mean; the placement leaves ranks unequal
  std::int64_t steps = 400;
  std::int64_t warm_steps = 120;  // not counted: feedback needs samples first
  std::uint64_t seed = 1;
  // Conversation: the published mean lengths of the trace (12,035 in, 343 out).
  double prompt_median_tokens = 6'900, prompt_sigma = 1.05, output_mean_tokens = 343;
  double tokens_per_step = 3.2;  // of a request, whatever the rule: lives are the same for all
  std::uint64_t expert_seed = 1;
  double expert_sigma = 0.8;  // lognormal load of 384 experts, six to a rank in id order

  // One step, ns: fixed + row * G + max(weights, expert_row * G * peak) + context * KV + sampler. G: rows of
  // the largest padded batch (of the mean one where experts work).
  double fixed_ns = 10e6, row_ns = 8e3, weights_ns = 8e6, expert_row_ns = 15.5e3, context_ns = 1.5;
  double sampler_ns = 1.0e6, sampler_row_ns = 2e3;
  double expert_mean_share = 0;  // 0: experts work on the padded maximum of every rank; 1: on the mean
  double unprofiled_ns = 3.8e6;  // in every step, though not in the curve: waits, shared networks
  double jitter_ratio = 0.01;
  // Chance of a draft, given those before it: logistic(request + round + position).
  double accept_mean = 1.17, accept_request_sigma = 0.9, accept_round_sigma = 1.1, accept_position = -0.05;
};

struct Outcome {
  double tokens_per_s = 0;
  double accepted_length = 0;  // tokens a request and step
  double verified = 0;         // drafts a request and step
  double step_ms = 0;
};

struct Request {
  std::int64_t steps_left = 0, kv = 0;
  double accept = 0;
  std::vector<float> confidences, rates, previous,
      oldest;  // rounds N, N, N-1, N-2; all cumulative but the first
};

/// Requests on ranks as the production placement leaves them, and their rounds.
class World {
 public:
  explicit World(const Model& model) : model_(model), prng_(model.seed), rounds_(model.seed, 1) {
    ranks_.resize(model.ranks);
    kv_.assign(model.ranks, 0);
    const auto all = static_cast<std::int64_t>(model.ranks) * model.requests_per_rank;
    for (std::int64_t i = 0; i < all; ++i) place();
    base::Prng experts(model.expert_seed);
    double peak = 0, sum = 0;
    for (std::uint32_t rank = 0; rank < model.ranks; ++rank) {
      double load = 0;
      for (int i = 0; i < 6; ++i) load += std::exp(model.expert_sigma * experts.normal());
      peak = std::max(peak, load);
      sum += load;
    }
    expert_peak = peak * model.ranks / sum;
  }

  void step() {
    std::size_t ended = 0;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      auto& rank = ranks_[r];
      for (std::size_t i = 0; i < rank.size();) {
        Request& request = rank[i];
        if (--request.steps_left <= 0) {
          kv_[r] -= request.kv;
          rank.erase(rank.begin() + static_cast<std::ptrdiff_t>(i));
          ++ended;
          continue;
        }
        const auto grown = static_cast<std::int64_t>(model_.tokens_per_step + rounds_.uniform());
        request.kv += grown;
        kv_[r] += grown;
        draft(request);
        ++i;
      }
    }
    for (; ended > 0; --ended) place();
  }

  const std::vector<std::vector<Request>>& ranks() const { return ranks_; }
  double expert_peak = 1;

 private:
  void place() {
    Request request;
    const double drawn = model_.prompt_median_tokens * std::exp(model_.prompt_sigma * prng_.normal());
    request.kv = 1 + static_cast<std::int64_t>(std::min(drawn, 128'000.0));
    request.steps_left =
        1 + static_cast<std::int64_t>(prng_.exponential(model_.output_mean_tokens / model_.tokens_per_step));
    request.accept = model_.accept_mean + model_.accept_request_sigma * prng_.normal();
    draft(request);
    const std::size_t rank = choose_rank(request.kv);
    kv_[rank] += request.kv;
    ranks_[rank].push_back(std::move(request));
  }
  /// As production places (docs/policies/decode.md): fewest requests of the ranks that stay under the mean KV
  /// plus 2.4 requests, else least KV.
  std::size_t choose_rank(std::int64_t kv) const {
    double all = static_cast<double>(kv), requests = 1;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      all += static_cast<double>(kv_[rank]);
      requests += static_cast<double>(ranks_[rank].size());
    }
    const double line = all / static_cast<double>(ranks_.size()) + 2.4 * all / requests;
    const auto order = [&](std::size_t rank) {
      const bool above = static_cast<double>(kv_[rank] + kv) > line;
      return std::tuple(above, above ? 0 : ranks_[rank].size(), kv_[rank], rank);
    };
    std::size_t best = 0;
    for (std::size_t rank = 1; rank < ranks_.size(); ++rank)
      if (order(rank) < order(best)) best = rank;
    return best;
  }
  void draft(Request& request) {
    request.oldest = std::move(request.previous);
    request.previous = std::move(request.rates);
    request.rates.clear();
    const double round = model_.accept_round_sigma * rounds_.normal();
    double cumulative = 1;
    for (int j = 0; j < kDrafts; ++j) {
      const double logit = request.accept + round + model_.accept_position * j +
                           0.5 * model_.accept_round_sigma * rounds_.normal();
      cumulative *= 1 / (1 + std::exp(-logit));
      request.rates.push_back(static_cast<float>(cumulative));
    }
  }
  Model model_;
  base::Prng prng_, rounds_;
  std::vector<std::vector<Request>> ranks_;
  std::vector<std::int64_t> kv_;  // of each rank
};

inline StepCurve curve_of(const Model& model) {
  std::vector<CurvePoint> points;
  for (const std::int64_t rows : captured_graph_sizes(2 * model.requests_per_rank * (1 + kDrafts))) {
    const auto g = static_cast<double>(rows);
    const double ns = model.fixed_ns + model.row_ns * g + std::max(model.weights_ns, model.expert_row_ns * g);
    points.push_back({rows, Nanos{static_cast<std::int64_t>(ns)}});
  }
  return *StepCurve::make(std::move(points));
}

/// What a step really takes, without its sampler: `rows` of the largest padded batch, `mean` of all.
inline double forward_ns(const Model& model, double rows, double mean, double expert_peak,
                         std::int64_t kv_max) {
  const double work = model.expert_mean_share * mean + (1 - model.expert_mean_share) * rows;
  return model.fixed_ns + model.unprofiled_ns + model.row_ns * rows +
         std::max(model.weights_ns, model.expert_row_ns * work * expert_peak) +
         model.context_ns * static_cast<double>(kv_max);
}

/// kBound: the best common graph with the true time and the newest confidences. No rule can know either.
enum class Rule { kFixed, kPublished, kOurs, kBound };

/// One rule's totals and what it learnt.
class Player {
 public:
  Player(Rule rule, const Model& model, const StepCurve& curve)
      : rule_(rule), model_(model), curve_(curve), group_(curve), time_(curve) {
    for (std::uint32_t rank = 0; rank < model.ranks; ++rank) {
      verifiers_.emplace_back(curve);
      feedback_.emplace_back(curve);
    }
  }

  /// Rows of each rank in this step.
  const std::vector<std::int64_t>& choose(const std::vector<std::vector<DraftView>>& views,
                                          const std::vector<std::vector<double>>& expected,
                                          double expert_peak, const std::vector<std::int64_t>& kv) {
    rows_.assign(views.size(), 0);
    if (rule_ == Rule::kBound) return choose_best(views, expected, expert_peak, kv);
    if (rule_ == Rule::kOurs) {
      VerifySummary group;
      for (std::size_t rank = 0; rank < views.size(); ++rank)
        merge(group, group_.summarize(views[rank], kv[rank], last_step_));
      decision_ = decide_group(curve_, group_config_, group, time_, round_++);
      for (std::size_t rank = 0; rank < views.size(); ++rank)
        rows_[rank] = group_.fill(views[rank], decision_).total_tokens;
      return rows_;
    }
    for (std::size_t rank = 0; rank < views.size(); ++rank) {
      const auto requests = static_cast<std::int64_t>(views[rank].size());
      rows_[rank] =
          rule_ == Rule::kFixed
              ? requests * (1 + kDrafts)
              : verifiers_[rank].confidence(views[rank], feedback_[rank].correction(requests)).total_tokens;
    }
    return rows_;
  }

  /// The step is over: `expected` tokens; every rank saw the same time.
  void finish(const std::vector<std::vector<DraftView>>& views, const std::vector<std::int64_t>& kv,
              double expert_peak, double expected, double noise, bool counted) {
    std::int64_t rows_max = 0, padded = 0, requests = 0, total = 0, kv_max = 0;
    for (std::size_t rank = 0; rank < rows_.size(); ++rank) {
      const std::int64_t graph = curve_.points()[curve_.index_for(rows_[rank])].graph_tokens;
      rows_max = std::max(rows_max, graph);
      padded += graph;
      total += rows_[rank];
      requests += static_cast<std::int64_t>(views[rank].size());
      kv_max = std::max(kv_max, kv[rank]);
    }
    const double g = static_cast<double>(rows_max);
    const double mean = static_cast<double>(padded) / static_cast<double>(rows_.size());
    const double forward =
        (1 + model_.jitter_ratio * noise) * forward_ns(model_, g, mean, expert_peak, kv_max);
    const double sampler = model_.sampler_ns + model_.sampler_row_ns * g;
    if (rule_ == Rule::kPublished) {
      for (std::size_t rank = 0; rank < rows_.size(); ++rank) {
        const std::size_t graph = curve_.index_for(rows_[rank]);
        feedback_[rank].observe_forward(curve_.points()[graph].graph_tokens,
                                        Nanos{static_cast<std::int64_t>(forward)});
        feedback_[rank].observe_sampler(static_cast<std::int64_t>(views[rank].size()),
                                        Nanos{static_cast<std::int64_t>(sampler)});
      }
    }
    last_step_ = Nanos{static_cast<std::int64_t>(forward + sampler)};
    if (rule_ == Rule::kOurs) time_.observe(curve_.index_for(rows_max), kv_max, last_step_);
    if (!counted) return;
    tokens_ += expected;
    ns_ += forward + sampler;
    requests_ += static_cast<double>(requests);
    drafts_ += static_cast<double>(total - requests);
    ++steps_;
  }

  Outcome outcome() const {
    return {tokens_ / ns_ * 1e9, tokens_ / requests_, drafts_ / requests_, ns_ / steps_ * 1e-6};
  }

 private:
  const std::vector<std::int64_t>& choose_best(const std::vector<std::vector<DraftView>>& views,
                                               const std::vector<std::vector<double>>& expected,
                                               double expert_peak, const std::vector<std::int64_t>& kv) {
    const std::int64_t kv_max = *std::max_element(kv.begin(), kv.end());
    std::size_t requests_max = 0;
    for (const auto& rank : views) requests_max = std::max(requests_max, rank.size());
    double best = 0;
    std::vector<std::int64_t> rows(views.size());
    for (const CurvePoint& point : curve_.points()) {
      if (point.graph_tokens < static_cast<std::int64_t>(requests_max)) continue;
      double tokens = 0, sum = 0;
      for (std::size_t rank = 0; rank < views.size(); ++rank) {
        const auto drafts = std::min(static_cast<std::size_t>(point.graph_tokens) - views[rank].size(),
                                     expected[rank].size() - 1);
        rows[rank] = static_cast<std::int64_t>(views[rank].size() + drafts);
        tokens += expected[rank][drafts];
        sum += static_cast<double>(rows[rank]);
      }
      const auto g = static_cast<double>(point.graph_tokens);
      const double ratio =
          tokens / (forward_ns(model_, g, sum / static_cast<double>(rows.size()), expert_peak, kv_max) +
                    model_.sampler_ns + model_.sampler_row_ns * g);
      if (ratio > best) {
        best = ratio;
        rows_ = rows;
      }
    }
    return rows_;
  }
  Rule rule_;
  Model model_;
  const StepCurve& curve_;
  std::vector<RankVerifier> verifiers_;
  std::vector<StepFeedback> feedback_;
  GroupVerifier group_;
  GroupTimeModel time_;
  GroupConfig group_config_;
  std::int64_t round_ = 0;
  GroupDecision decision_;
  Nanos last_step_;
  std::vector<std::int64_t> rows_;
  double tokens_ = 0, ns_ = 0, requests_ = 0, drafts_ = 0, steps_ = 0;
};

struct Comparison {
  Outcome fixed, published, ours, bound;
  double expert_peak = 0;
  double published_gain() const { return published.tokens_per_s / fixed.tokens_per_s - 1; }
  double ours_gain() const { return ours.tokens_per_s / fixed.tokens_per_s - 1; }
  double bound_gain() const { return bound.tokens_per_s / fixed.tokens_per_s - 1; }
};

/// Expected tokens of a rank that verifies its likeliest rows, by the newest confidences: [k] for k drafts.
inline std::vector<double> expected_by_drafts(const std::vector<Request>& rank) {
  std::vector<float> rates;
  for (const Request& request : rank) rates.insert(rates.end(), request.rates.begin(), request.rates.end());
  std::sort(rates.begin(), rates.end(), std::greater<>());
  std::vector<double> sums{static_cast<double>(rank.size())};
  for (const float rate : rates) sums.push_back(sums.back() + rate);
  return sums;
}

inline Comparison run(const Model& model) {
  World world(model);
  const StepCurve curve = curve_of(model);
  Player players[] = {{Rule::kFixed, model, curve},
                      {Rule::kPublished, model, curve},
                      {Rule::kOurs, model, curve},
                      {Rule::kBound, model, curve}};
  base::Prng noise(model.seed, 2);
  for (std::int64_t step = 0; step < model.warm_steps + model.steps; ++step) {
    std::vector<std::vector<DraftView>> views(model.ranks);
    std::vector<std::vector<double>> expected;
    std::vector<std::int64_t> kv(model.ranks, 0);
    for (std::size_t rank = 0; rank < views.size(); ++rank) {
      for (const Request& request : world.ranks()[rank]) {
        views[rank].push_back({kDrafts, request.previous, request.oldest, true, step, step});
        kv[rank] += request.kv;
      }
      expected.push_back(expected_by_drafts(world.ranks()[rank]));
    }
    const double drawn = noise.normal();
    for (Player& player : players) {
      const auto& rows = player.choose(views, expected, world.expert_peak, kv);
      double tokens = 0;
      for (std::size_t rank = 0; rank < rows.size(); ++rank)
        tokens += expected[rank][static_cast<std::size_t>(rows[rank]) - views[rank].size()];
      player.finish(views, kv, world.expert_peak, tokens, drawn, step >= model.warm_steps);
    }
    world.step();
  }
  return {players[0].outcome(), players[1].outcome(), players[2].outcome(), players[3].outcome(),
          world.expert_peak};
}

}  // namespace trimtab::policy::study
