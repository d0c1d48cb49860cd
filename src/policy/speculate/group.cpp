#include "policy/speculate/group.h"

#include <algorithm>

#include "base/check.h"
#include "policy/speculate/queue_key.h"

namespace trimtab::policy {

namespace {

/// A draft that the request cannot use any more: with k tokens left, one comes without drafts.
std::int32_t usable_drafts(const DraftView& view) {
  TRIMTAB_CHECK(view.tokens_left >= 1, std::to_string(view.tokens_left) + " tokens left");
  return std::min(view.drafts, view.tokens_left - 1);
}

/// The graph about `ratio` above or below, at least the next one.
std::size_t explored(const StepCurve& curve, std::size_t graph, double ratio, bool up) {
  const auto rows = static_cast<double>(curve.points()[graph].graph_tokens);
  if (!up) {
    const std::size_t lower = curve.index_for(static_cast<std::int64_t>(rows * (1 - ratio)));
    return std::min(lower, graph - std::min<std::size_t>(graph, 1));
  }
  return std::max(curve.index_for(static_cast<std::int64_t>(rows * (1 + ratio))), graph + 1);
}

double tokens(std::int64_t expected) {
  return static_cast<double>(expected) / static_cast<double>(kExpectedUnit);
}

}  // namespace

void merge(VerifySummary& into, const VerifySummary& other) {
  into.requests += other.requests;
  into.drafts += other.drafts;
  into.requests_max = std::max(into.requests_max, other.requests_max);
  into.rows_max = std::max(into.rows_max, other.rows_max);
  into.kv_tokens_max = std::max(into.kv_tokens_max, other.kv_tokens_max);
  into.last_step = std::max(into.last_step, other.last_step);
  if (into.expected.empty()) {
    into.expected = other.expected;
  } else if (!other.expected.empty()) {
    TRIMTAB_CHECK(into.expected.size() == other.expected.size(), "summaries of different curves");
    for (std::size_t i = 0; i < into.expected.size(); ++i) into.expected[i] += other.expected[i];
  }
}

GroupDecision decide_group(const StepCurve& curve, const GroupConfig& config, const VerifySummary& group,
                           const GroupTimeModel& time, std::int64_t round) {
  GroupDecision decision;
  const std::size_t first = curve.index_for(group.requests_max);
  if (first == curve.size() || group.expected.empty()) {
    decision.graph = curve.size();
    decision.rule = VerifyRule::kNoGraph;
    decision.expected_tokens = static_cast<double>(group.requests);
    return decision;
  }
  TRIMTAB_CHECK(group.expected.size() == curve.size(), "the summary is of another curve");
  const auto take = [&](std::size_t graph, double step) {
    decision.graph = graph;
    decision.graph_tokens = curve.points()[graph].graph_tokens;
    decision.expected_tokens = tokens(group.expected[graph]);
    decision.step_ns = step;
  };
  const auto step_at = [&](std::size_t graph) { return time.predict_ns(graph, group.kv_tokens_max); };
  // The graph that holds every draft of every rank; more than the largest is not captured.
  const std::size_t all = std::min(curve.index_for(group.rows_max), curve.size() - 1);
  const double limit = static_cast<double>(config.gap_limit.value);
  double best_ratio = 0, refused_ratio = 0;
  for (std::size_t graph = first; graph <= all; ++graph) {
    const double step = step_at(graph);
    const double ratio = static_cast<double>(group.expected[graph]) / step;
    if (limit > 0 && step > limit && graph > first) {
      refused_ratio = std::max(refused_ratio, ratio);
    } else if (ratio > best_ratio) {
      best_ratio = ratio;
      take(graph, step);
    }
  }
  decision.rule = refused_ratio > best_ratio ? VerifyRule::kGapLimit : VerifyRule::kGroup;
  decision.all_expected_tokens = tokens(group.expected[all]);
  decision.all_step_ns = step_at(all);
  const bool all_allowed = limit <= 0 || decision.all_step_ns <= limit || all == first;
  const double all_ratio = static_cast<double>(group.expected[all]) / decision.all_step_ns;
  if (all_allowed && best_ratio <= all_ratio * (1 + config.gain_min_ratio)) {
    take(all, decision.all_step_ns);
    decision.rule = VerifyRule::kVerifyAll;
  }
  if (config.explore_every > 0 && round % config.explore_every == 0) {
    const bool up = round / config.explore_every % 2 == 0;
    const std::size_t other = explored(curve, decision.graph, config.explore_ratio, up);
    const double step = step_at(std::clamp(other, first, all));
    if (limit <= 0 || step <= limit) {
      take(std::clamp(other, first, all), step);
      decision.rule = VerifyRule::kExplore;
    }
  }
  return decision;
}

const VerifySummary& GroupVerifier::summarize(std::span<const DraftView> batch, std::int64_t kv_tokens,
                                              Nanos last_step) {
  const auto requests = static_cast<std::int64_t>(batch.size());
  histogram_.assign(static_cast<std::size_t>(kExpectedUnit) + 1, 0);
  std::int64_t drafts = 0;
  for (const DraftView& view : batch) {
    const queue_key::Rates rates = queue_key::rates_of(view, /*previous=*/true);
    const std::int32_t usable = usable_drafts(view);
    for (std::int32_t j = 0; j < usable; ++j) {
      const float rate = rates[static_cast<std::size_t>(j)];
      if (rate <= 0) break;  // nor can those after it
      ++histogram_[static_cast<std::size_t>(rate * static_cast<float>(kExpectedUnit) + 0.5F)];
      ++drafts;
    }
  }
  summary_ = {
      requests, drafts, requests, requests + drafts, kv_tokens, last_step, std::move(summary_.expected)};
  summary_.expected.resize(curve_->size());
  // Graphs in ascending order take from the histogram's top what the one before left.
  auto bucket = static_cast<std::size_t>(kExpectedUnit);
  std::int64_t left = histogram_[bucket];
  std::int64_t rows = requests, expected = requests * kExpectedUnit;
  for (std::size_t graph = 0; graph < curve_->size(); ++graph) {
    const std::int64_t size = curve_->points()[graph].graph_tokens;
    while (rows < size) {
      if (left == 0) {
        if (bucket == 0) break;
        left = histogram_[--bucket];
        continue;
      }
      const std::int64_t taken = std::min(left, size - rows);
      rows += taken;
      left -= taken;
      expected += taken * static_cast<std::int64_t>(bucket);
    }
    summary_.expected[graph] = expected;
  }
  return summary_;
}

const VerifyPlan& GroupVerifier::fill(std::span<const DraftView> batch, const GroupDecision& decision) {
  const auto requests = static_cast<std::int64_t>(batch.size());
  plan_.query_tokens.assign(batch.size(), 1);
  queue_.clear();
  double all = static_cast<double>(requests);
  for (std::uint32_t request = 0; request < batch.size(); ++request) {
    const queue_key::Rates rates = queue_key::rates_of(batch[request], /*previous=*/false);
    const std::int32_t usable = usable_drafts(batch[request]);
    for (std::uint32_t j = 0; j < static_cast<std::uint32_t>(usable); ++j) {
      if (rates[j] <= 0) break;
      queue_.push_back(queue_key::make(rates[j], request, j));
      all += rates[j];
    }
  }
  const std::int64_t room = std::max<std::int64_t>(decision.graph_tokens - requests, 0);
  const std::size_t drafts = std::min(static_cast<std::size_t>(room), queue_.size());
  queue_key::count_likeliest(queue_, drafts, plan_.query_tokens);
  plan_.total_tokens = requests + static_cast<std::int64_t>(drafts);
  plan_.expected_tokens = static_cast<double>(requests);
  for (std::size_t i = 0; i < drafts; ++i) plan_.expected_tokens += queue_key::rate(queue_[i]);
  plan_.all_expected_tokens = all;
  plan_.step_ns = decision.step_ns;
  plan_.all_step_ns = decision.all_step_ns;
  const std::size_t graph = curve_->index_for(plan_.total_tokens);
  plan_.graph_tokens = graph < curve_->size() ? curve_->points()[graph].graph_tokens : 0;
  plan_.rule = decision.rule;
  return plan_;
}

}  // namespace trimtab::policy
