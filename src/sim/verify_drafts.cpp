#include "sim/verify_drafts.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

namespace trimtab::sim {
namespace {

constexpr int kClasses = 25, kRounds = 192;
constexpr double kEnds = 3;  // classes lie within so many deviations
constexpr std::size_t kKnots = 256;
constexpr std::uint64_t kSeed = 0x0d2af7;

double at_knot(const std::vector<double>& values, double place) {
  const double end = static_cast<double>(values.size() - 1);
  place = std::clamp(place, 0.0, end);
  const auto below = std::min(static_cast<std::size_t>(place), values.size() - 2);
  const double part = place - static_cast<double>(below);
  return values[below] + part * (values[below + 1] - values[below]);
}

}  // namespace

double draw_acceptance(const model::VerifyModel& model, base::Prng& prng) {
  return model.accept_mean + model.accept_request_sigma * prng.normal();
}

void draw_round(const model::VerifyModel& model, double acceptance, base::Prng& prng,
                std::span<float> rates) {
  const double round = model.accept_round_sigma * prng.normal();
  double cumulative = 1;
  for (std::size_t j = 0; j < rates.size(); ++j) {
    const double logit = acceptance + round + model.accept_position * static_cast<double>(j) +
                         0.5 * model.accept_round_sigma * prng.normal();
    cumulative *= 1 / (1 + std::exp(-logit));
    rates[j] = static_cast<float>(cumulative);
  }
}

DraftTable::DraftTable(const model::VerifyModel& model) : rounds_(kRounds), drafts_(model.drafts) {
  base::Prng prng(kSeed);
  const auto drafts = static_cast<std::size_t>(drafts_);
  double weights = 0;
  for (int i = 0; i < kClasses; ++i) {
    const double z = kEnds * (2.0 * i / (kClasses - 1) - 1);
    Class one;
    one.acceptance = model.accept_mean + model.accept_request_sigma * z;
    one.rates.resize(static_cast<std::size_t>(kRounds) * drafts);
    for (std::size_t round = 0; round < kRounds; ++round) {
      draw_round(model, one.acceptance, prng, std::span(one.rates).subspan(round * drafts, drafts));
    }
    one.rounds = one.rates;
    std::ranges::sort(one.rates, std::greater{});
    one.sums.push_back(0);
    for (const float rate : one.rates) one.sums.push_back(one.sums.back() + static_cast<double>(rate));
    // A request is in the batch for as long as its answer takes.
    one.weight = std::exp(-0.5 * z * z) / tokens_of(one, 0);
    weights += one.weight;
    classes_.push_back(std::move(one));
  }
  std::vector<std::pair<float, double>> all;  // rate, drafts a request that it stands for
  for (Class& one : classes_) {
    one.weight /= weights;
    for (const float rate : one.rates) all.emplace_back(rate, one.weight / kRounds);
  }
  std::ranges::sort(all, std::greater{});
  tokens_.push_back(1);
  thresholds_.push_back(1);
  double verified = 0, tokens = 1;
  for (const auto& [rate, part] : all) {
    verified += part;
    tokens += part * static_cast<double>(rate);
    const double knot = static_cast<double>(drafts_) * static_cast<double>(tokens_.size()) / kKnots;
    if (verified >= knot - 1e-9 && tokens_.size() <= kKnots) {
      tokens_.push_back(tokens);
      thresholds_.push_back(static_cast<double>(rate));
    }
  }
  tokens_.resize(kKnots + 1, tokens);
  thresholds_.resize(kKnots + 1, 0);
  thresholds_.back() = 0;
  for (std::size_t knot = 0; knot <= kKnots; ++knot) variances_.push_back(variance_at(thresholds_[knot]));
}

double DraftTable::variance_at(double threshold) const {
  double first = 0, second = 0;
  for (const Class& one : classes_) {
    for (std::size_t round = 0; round < kRounds; ++round) {
      double count = 0;
      for (std::int32_t j = 0; j < drafts_; ++j) {
        const std::size_t at = round * static_cast<std::size_t>(drafts_) + static_cast<std::size_t>(j);
        count += static_cast<double>(one.rounds[at]) >= threshold ? 1 : 0;
      }
      first += one.weight / kRounds * count;
      second += one.weight / kRounds * count * count;
    }
  }
  return std::max(second - first * first, 0.0);
}

double DraftTable::variance(double drafts) const {
  return at_knot(variances_, drafts / static_cast<double>(drafts_) * kKnots);
}

double DraftTable::tokens(double drafts) const {
  return at_knot(tokens_, drafts / static_cast<double>(drafts_) * kKnots);
}

double DraftTable::threshold(double drafts) const {
  return at_knot(thresholds_, drafts / static_cast<double>(drafts_) * kKnots);
}

double DraftTable::tokens_of(const Class& of, double threshold) const {
  const auto end = std::ranges::partition_point(
      of.rates, [&](float rate) { return static_cast<double>(rate) >= threshold; });
  return 1 + of.sums[static_cast<std::size_t>(end - of.rates.begin())] / rounds_;
}

double DraftTable::tokens_of(double acceptance, double threshold) const {
  const double least = classes_.front().acceptance, most = classes_.back().acceptance;
  if (!(most > least)) return tokens_of(classes_.front(), threshold);
  const double place =
      std::clamp((acceptance - least) / (most - least), 0.0, 1.0) * static_cast<double>(classes_.size() - 1);
  const auto below = std::min(static_cast<std::size_t>(place), classes_.size() - 2);
  const double low = tokens_of(classes_[below], threshold), high = tokens_of(classes_[below + 1], threshold);
  return low + (place - static_cast<double>(below)) * (high - low);
}

}  // namespace trimtab::sim
