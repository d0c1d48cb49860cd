#include "policy/speculate/confidence.h"

#include <algorithm>

#include "base/check.h"
#include "policy/speculate/queue_key.h"

namespace trimtab::policy {

void RankVerifier::fill_queue(std::vector<std::uint64_t>& queue, std::span<const DraftView> batch,
                              bool previous) {
  queue.clear();
  for (std::uint32_t request = 0; request < batch.size(); ++request) {
    const queue_key::Rates rates = queue_key::rates_of(batch[request], previous);
    for (std::uint32_t j = 0; j < static_cast<std::uint32_t>(batch[request].drafts); ++j)
      queue.push_back(queue_key::make(rates[j], request, j));
  }
}

/// Over the prefixes of the sorted size queue.
RankVerifier::Best RankVerifier::search(std::int64_t requests, const StepCorrection& correction,
                                        bool early_stop) const {
  Best best{requests, static_cast<double>(requests), 0.0, curve_.index_for(requests)};
  if (best.graph == curve_.size()) return best;  // not even one row a request fits
  best.time = step_ns(curve_.points()[best.graph], correction);
  double ratio = best.expected / best.time;
  double expected = best.expected;
  for (std::int64_t total = requests + 1; const std::uint64_t key : size_queue_) {
    expected += queue_key::rate(key);
    const std::size_t graph = curve_.index_for(total);
    if (graph == curve_.size()) break;  // nor do more rows
    const double time = step_ns(curve_.points()[graph], correction);
    if (expected / time > ratio) {
      ratio = expected / time;
      best = {total, expected, time, graph};
    } else if (early_stop) {
      best.stopped = true;
      break;
    }
    ++total;
  }
  return best;
}

void RankVerifier::finish(std::span<const DraftView> batch, const Best& best,
                          const StepCorrection& correction, VerifyRule rule) {
  const auto requests = static_cast<std::int64_t>(batch.size());
  TRIMTAB_CHECK(best.total >= requests, std::to_string(best.total));
  plan_.query_tokens.assign(batch.size(), 1);
  queue_key::count_likeliest(share_queue_, static_cast<std::size_t>(best.total - requests),
                             plan_.query_tokens);
  plan_.total_tokens = best.total;
  plan_.expected_tokens = best.expected;
  plan_.step_ns = best.time;
  const bool fits = best.graph < curve_.size();
  plan_.graph_tokens = fits ? curve_.points()[best.graph].graph_tokens : 0;
  plan_.rule = fits ? rule : VerifyRule::kNoGraph;
  plan_.all_expected_tokens = static_cast<double>(requests);
  for (const std::uint64_t key : size_queue_) plan_.all_expected_tokens += queue_key::rate(key);
  const std::size_t all = curve_.index_for(requests + static_cast<std::int64_t>(size_queue_.size()));
  plan_.all_step_ns = all < curve_.size() ? step_ns(curve_.points()[all], correction) : 0;
}

const VerifyPlan& RankVerifier::confidence(std::span<const DraftView> batch,
                                           const StepCorrection& correction) {
  fill_queue(size_queue_, batch, /*previous=*/true);
  fill_queue(share_queue_, batch, /*previous=*/false);
  std::sort(size_queue_.begin(), size_queue_.end());
  const Best best = search(static_cast<std::int64_t>(batch.size()), correction, /*early_stop=*/false);
  finish(batch, best, correction, VerifyRule::kConfidence);
  return plan_;
}

const VerifyPlan& RankVerifier::greedy(std::span<const DraftView> batch, const StepCorrection& correction,
                                       bool early_stop) {
  fill_queue(size_queue_, batch, /*previous=*/false);
  std::sort(size_queue_.begin(), size_queue_.end());
  share_queue_ = size_queue_;
  const Best best = search(static_cast<std::int64_t>(batch.size()), correction, early_stop);
  finish(batch, best, correction, best.stopped ? VerifyRule::kGreedyStopped : VerifyRule::kConfidence);
  return plan_;
}

const VerifyPlan& RankVerifier::fixed(std::span<const DraftView> batch, std::int32_t drafts,
                                      const StepCorrection& correction) {
  TRIMTAB_CHECK(drafts >= 0, std::to_string(drafts));
  fill_queue(size_queue_, batch, /*previous=*/false);
  Best best{static_cast<std::int64_t>(batch.size()), static_cast<double>(batch.size()), 0.0, 0};
  std::vector<std::int32_t> rows(batch.size(), 1);
  for (std::uint32_t request = 0; request < batch.size(); ++request) {
    const std::int32_t verified = std::min(drafts, batch[request].drafts);
    const queue_key::Rates rates = queue_key::rates_of(batch[request], /*previous=*/false);
    for (std::int32_t j = 0; j < verified; ++j) best.expected += rates[static_cast<std::size_t>(j)];
    rows[request] += verified;
    best.total += verified;
  }
  best.graph = curve_.index_for(best.total);
  if (best.graph < curve_.size()) best.time = step_ns(curve_.points()[best.graph], correction);
  share_queue_ = size_queue_;
  finish(batch, best, correction, VerifyRule::kFixed);
  plan_.query_tokens = std::move(rows);  // of everyone alike, not of the likeliest
  return plan_;
}

std::vector<std::int32_t> share_by_newest(std::span<const FreshDraft> batch, std::int64_t total_tokens) {
  const std::int64_t drafts = total_tokens - static_cast<std::int64_t>(batch.size());
  TRIMTAB_CHECK(drafts >= 0, std::to_string(total_tokens) + " rows for " + std::to_string(batch.size()));
  std::vector<std::uint64_t> queue;
  for (std::uint32_t request = 0; request < batch.size(); ++request) {
    const FreshDraft& draft = batch[request];
    TRIMTAB_CHECK(draft.confidences.size() <= kDraftsMax, std::to_string(draft.confidences.size()));
    float rate = draft.matched ? 1.0F : 0.0F;
    for (std::uint32_t j = 0; j < draft.confidences.size(); ++j)
      queue.push_back(queue_key::make(rate *= draft.confidences[j], request, j));
  }
  std::vector<std::int32_t> rows(batch.size(), 1);
  queue_key::count_likeliest(queue, static_cast<std::size_t>(drafts), rows);
  return rows;
}

}  // namespace trimtab::policy
