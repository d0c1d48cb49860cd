#include "sim/verify_group.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "policy/speculate/queue_key.h"

namespace trimtab::sim {
namespace {

using model::VerifyPolicy;
using policy::Nanos;

constexpr std::int64_t kRowsMax = 1 << 16;  // of one rank's largest graph
constexpr std::uint64_t kStream = 0xd2af75;

/// Sizes of the profile, else those that production captures, up to what the ranks may run.
policy::StepCurve curve_for(const model::Scenario& scenario, const DecodeStep& step) {
  std::vector<std::int64_t> sizes = scenario.profile.decode_step.graph_sizes;
  if (sizes.empty()) {
    const std::int64_t rows =
        static_cast<std::int64_t>(scenario.cluster.decode.max_running) * (1 + scenario.verify.drafts);
    sizes = policy::captured_graph_sizes(std::clamp<std::int64_t>(rows, 1, kRowsMax));
  }
  std::vector<policy::CurvePoint> points;
  for (const std::int64_t size : sizes) {
    const auto ns = static_cast<std::int64_t>(step.curve(static_cast<double>(size)));
    points.push_back({size, Nanos{std::max<std::int64_t>(ns, 1)}});
  }
  auto curve = policy::StepCurve::make(std::move(points));
  TRIMTAB_CHECK(curve.has_value(), curve.error().message);
  return std::move(*curve);
}

}  // namespace

VerifyGroup::VerifyGroup(const model::Scenario& scenario, std::uint32_t ranks)
    : model_(scenario.verify),
      seed_(scenario.seed),
      step_(DecodeStep::of(scenario)),
      curve_(curve_for(scenario, step_)),
      table_(model_),
      group_(curve_),
      time_(curve_),
      rows_(ranks),
      requests_(ranks),
      graphs_(ranks, curve_.size() - 1),
      thresholds_(ranks) {
  if (model_.policy != VerifyPolicy::kPublished) return;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    verifiers_.emplace_back(curve_);
    feedback_.emplace_back(curve_);
  }
}

double VerifyGroup::padded(double rows) const {
  const std::size_t graph = curve_.index_for(static_cast<std::int64_t>(std::ceil(rows)));
  return graph == curve_.size() ? rows : static_cast<double>(curve_.points()[graph].graph_tokens);
}

base::Prng VerifyGroup::stream_of(std::uint64_t request) const { return {seed_ ^ kStream, request}; }

std::span<float> VerifyGroup::rates(std::uint32_t draft, std::int32_t round) {
  const auto width = static_cast<std::size_t>(model_.drafts);
  return std::span(rates_).subspan((draft * std::size_t{3} + static_cast<std::size_t>(round % 3)) * width,
                                   width);
}

/// Rates of the round `age` rounds ago (0: the newest); empty when there was none.
std::span<const float> VerifyGroup::known(std::uint32_t draft, std::int32_t age) {
  const std::int32_t round = drafts_[draft].rounds - 1 - age;
  return round < 0 ? std::span<const float>{} : std::span<const float>(rates(draft, round));
}

void VerifyGroup::draft_next(std::uint32_t draft) {
  Draft& of = drafts_[draft];
  draw_round(model_, of.acceptance, of.prng, rates(draft, of.rounds));
  ++of.rounds;
}

std::uint32_t VerifyGroup::add(std::uint64_t request) {
  if (free_.empty()) {
    free_.push_back(static_cast<std::uint32_t>(drafts_.size()));
    drafts_.emplace_back();
    rates_.resize(drafts_.size() * 3 * static_cast<std::size_t>(model_.drafts));
  }
  const std::uint32_t draft = free_.back();
  free_.pop_back();
  Draft& of = drafts_[draft];
  of = Draft{};
  of.prng = stream_of(request);
  of.acceptance = draw_acceptance(model_, of.prng);
  draft_next(draft);
  return draft;
}

void VerifyGroup::remove(std::uint32_t draft) { free_.push_back(draft); }

void VerifyGroup::view(std::span<const std::uint32_t> drafts) {
  views_.clear();
  for (const std::uint32_t draft : drafts) {
    policy::DraftView view;
    view.drafts = model_.drafts;
    view.rates = known(draft, 1);
    view.previous_rates = known(draft, 2);
    view.has_draft = true;
    views_.push_back(view);
  }
}

/// The device's split of a rank's rows, by the newest rates.
void VerifyGroup::share(std::span<const std::uint32_t> drafts, std::int64_t rows) {
  queue_.clear();
  for (std::uint32_t i = 0; i < drafts.size(); ++i) {
    const auto newest = known(drafts[i], 0);
    for (std::uint32_t j = 0; j < newest.size(); ++j)
      queue_.push_back(policy::queue_key::make(newest[j], i, j));
  }
  shares_.assign(drafts.size(), 1);
  policy::queue_key::count_likeliest(queue_, static_cast<std::size_t>(rows) - drafts.size(), shares_);
  for (std::size_t i = 0; i < drafts.size(); ++i) drafts_[drafts[i]].rows = shares_[i];
}

const std::vector<double>& VerifyGroup::choose(std::span<const std::vector<std::uint32_t>> drafts,
                                               std::span<const double> kv) {
  policy::GroupDecision decision;
  if (model_.policy == VerifyPolicy::kGroup) {
    policy::VerifySummary all;
    for (std::size_t rank = 0; rank < drafts.size(); ++rank) {
      view(drafts[rank]);
      policy::merge(all, group_.summarize(views_, static_cast<std::int64_t>(kv[rank]), last_step_));
    }
    decision = policy::decide_group(curve_, {}, all, time_, round_);
  }
  for (std::size_t rank = 0; rank < drafts.size(); ++rank) {
    const auto requests = static_cast<std::int64_t>(drafts[rank].size());
    std::int64_t rows = requests * (1 + model_.drafts);
    if (requests > 0 && model_.policy != VerifyPolicy::kFixed) {
      view(drafts[rank]);
      rows = model_.policy == VerifyPolicy::kGroup
                 ? group_.fill(views_, decision).total_tokens
                 : verifiers_[rank].confidence(views_, feedback_[rank].correction(requests)).total_tokens;
    }
    share(drafts[rank], rows);
    rows_[rank] = static_cast<double>(rows);
    requests_[rank] = requests;
  }
  ++round_;
  rows_most_ = *std::ranges::max_element(rows_);
  return rows_;
}

std::int64_t VerifyGroup::take(std::uint32_t draft) {
  Draft& of = drafts_[draft];
  const auto newest = known(draft, 0);
  const double drawn = of.prng.uniform();
  std::int64_t tokens = 1;
  // Cumulative rates: the number below which the drawn value stays is how many were accepted in a row.
  while (tokens < of.rows && drawn < static_cast<double>(newest[static_cast<std::size_t>(tokens - 1)]))
    ++tokens;
  draft_next(draft);
  return tokens;
}

void VerifyGroup::learn(const VerifiedStep& step) {
  const Nanos forward{static_cast<std::int64_t>(step.forward_ns)};
  const Nanos sampler{static_cast<std::int64_t>(step.sampler_ns)};
  last_step_ = forward + sampler;
  double most = 0;
  for (std::size_t rank = 0; rank < rows_.size(); ++rank) {
    most = std::max(most, rows_[rank]);
    if (model_.policy != VerifyPolicy::kPublished || requests_[rank] == 0) continue;
    feedback_[rank].observe_forward(static_cast<std::int64_t>(padded(rows_[rank])), forward);
    feedback_[rank].observe_sampler(requests_[rank], sampler);
  }
  if (model_.policy != VerifyPolicy::kGroup) return;
  const std::size_t graph = curve_.index_for(static_cast<std::int64_t>(most));
  if (graph < curve_.size()) time_.observe(graph, step.kv_most, last_step_);
}

}  // namespace trimtab::sim
