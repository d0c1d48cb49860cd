#include "policy/speculate/feedback.h"

#include <algorithm>

namespace trimtab::policy {

namespace {

double median_of_sorted(const std::vector<double>& values) {
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return median_of_sorted(values);
}

void push(std::deque<double>& window, double value, std::size_t size_max) {
  window.push_back(value);
  if (window.size() > size_max) window.pop_front();
}

}  // namespace

StepFeedback::StepFeedback(const StepCurve& curve, FeedbackConfig config)
    : curve_(&curve), config_(config), sorted_by_size_(curve.size()) {}

void StepFeedback::observe_forward(std::int64_t graph_tokens, Nanos forward) {
  const std::size_t size = curve_->index_for(graph_tokens);
  if (size == curve_->size() || curve_->points()[size].graph_tokens != graph_tokens) return;
  const double excess = static_cast<double>((forward - curve_->points()[size].base).value);
  const double row_ns = excess / static_cast<double>(graph_tokens);
  forwards_.push_back({static_cast<std::uint32_t>(size), row_ns});
  auto& sorted = sorted_by_size_[size];
  sorted.insert(std::upper_bound(sorted.begin(), sorted.end(), row_ns), row_ns);
  if (forwards_.size() <= config_.forwards_window) return;
  const Forward oldest = forwards_.front();
  forwards_.pop_front();
  auto& of_oldest = sorted_by_size_[oldest.size];
  of_oldest.erase(std::lower_bound(of_oldest.begin(), of_oldest.end(), oldest.row_ns));
}

void StepFeedback::observe_sampler(std::int64_t requests, Nanos span) {
  const auto value = static_cast<double>(span.value);
  push(sampler_by_requests_[requests], value, config_.sampler_window);
  push(sampler_all_, value, config_.sampler_window);
}

double StepFeedback::slope() const {
  std::vector<double> medians;
  for (const auto& samples : sorted_by_size_)
    if (!samples.empty() && samples.size() >= config_.forwards_per_size)
      medians.push_back(median_of_sorted(samples));
  return medians.empty() ? 0.0 : std::max(0.0, median(std::move(medians)));
}

StepCorrection StepFeedback::correction(std::int64_t requests) const {
  StepCorrection result;
  result.row_ns = slope();
  const auto enough = [this](const std::deque<double>& window) {
    return !window.empty() && window.size() >= config_.sampler_samples_min;
  };
  const auto same = sampler_by_requests_.find(requests);
  const std::deque<double>* window = nullptr;
  if (same != sampler_by_requests_.end() && enough(same->second)) {
    window = &same->second;
  } else if (enough(sampler_all_)) {
    window = &sampler_all_;
  }
  if (window != nullptr) result.sampler_ns = median({window->begin(), window->end()});
  return result;
}

}  // namespace trimtab::policy
