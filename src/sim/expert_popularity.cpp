#include "sim/expert_popularity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace trimtab::sim {
namespace {

enum Stream : std::uint64_t { kShared = 0x0e8be275, kOwn = 0x0e8be276 };

tl::unexpected<base::Error> bad(std::string message) {
  return base::fail(base::Code::kInvalidArgument, std::move(message), "simulation.experts");
}

/// Logarithms of one layer's popularity, of the model's skew times `scale`.
void draw_logs(const model::ExpertModel& model, base::Prng& prng, double scale, std::span<double> out) {
  if (model.skew == model::ExpertSkew::kLognormal) {
    for (double& value : out) value = scale * model.skew_amount * prng.normal();
    return;
  }
  std::vector<std::size_t> order(out.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  prng.shuffle(std::span(order));
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[order[i]] = -scale * model.skew_amount * std::log(static_cast<double>(i + 1));
  }
}

base::Status check(const model::ExpertModel& model) {
  if (model.experts < model.per_token || model.per_token < 1) {
    return bad(fmt::format("a token that chooses {} of {} experts: give experts and per_token",
                           model.per_token, model.experts));
  }
  const model::ExpertPopularity& recorded = model.popularity;
  if (recorded.shares.empty()) return {};
  if (recorded.experts != model.experts) {
    return bad(fmt::format("recorded routing of {} experts for a model of {}: set experts", recorded.experts,
                           model.experts));
  }
  for (std::int32_t domain = 0; domain < recorded.domains; ++domain) {
    for (std::int32_t layer = 0; layer < recorded.layers; ++layer) {
      double sum = 0;
      for (std::int32_t e = 0; e < recorded.experts; ++e) sum += recorded.of(domain, layer)[e];
      if (!(std::fabs(sum - 1) < 1e-6)) {
        return bad(fmt::format("shares of layer {} in text {} add up to {}, not 1", layer, domain, sum));
      }
    }
  }
  return {};
}

}  // namespace

base::Result<model::ExpertPopularity> make_popularity(const model::ExpertModel& model, std::uint64_t seed) {
  TRIMTAB_TRY(check(model));
  if (!model.popularity.shares.empty()) return model.popularity;
  model::ExpertPopularity out{model.domains, model.layers, model.experts, {}};
  const auto experts = static_cast<std::size_t>(model.experts);
  const auto layers = static_cast<std::size_t>(model.layers);
  out.shares.resize(static_cast<std::size_t>(model.domains) * layers * experts);
  base::Prng common(seed, kShared), own(seed, kOwn);
  std::vector<double> shared(layers * experts);
  const double shared_scale = std::sqrt(1 - model.domain_share), own_scale = std::sqrt(model.domain_share);
  for (std::size_t layer = 0; layer < layers; ++layer) {
    draw_logs(model, common, shared_scale, std::span(shared).subspan(layer * experts, experts));
  }
  for (std::size_t row = 0; row < out.shares.size() / experts; ++row) {
    const auto shares = std::span(out.shares).subspan(row * experts, experts);
    draw_logs(model, own, own_scale, shares);
    double sum = 0;
    for (std::size_t e = 0; e < experts; ++e) {
      shares[e] = std::exp(shares[e] + shared[row % layers * experts + e]);
      sum += shares[e];
    }
    for (double& share : shares) share /= sum;
  }
  return out;
}

TextMix::TextMix(const model::ExpertModel& model, const model::ExpertSide& side, std::uint64_t seed,
                 std::uint64_t stream)
    : prng_(seed, stream), logs_(static_cast<std::size_t>(model.popularity.domains)), weights_(logs_.size()) {
  if (side.drift_steps > 0) {
    keep_ = std::exp(-static_cast<double>(side.epoch_steps) / side.drift_steps);
    shock_ = model.mix_spread * std::sqrt(1 - keep_ * keep_);
  }
  for (double& value : logs_) value = model.mix_spread * prng_.normal();
  weigh();
}

void TextMix::advance() {
  if (shock_ == 0) return;
  for (double& value : logs_) value = keep_ * value + shock_ * prng_.normal();
  weigh();
}

void TextMix::weigh() {
  double sum = 0;
  for (std::size_t i = 0; i < logs_.size(); ++i) sum += weights_[i] = std::exp(logs_[i]);
  for (double& weight : weights_) weight /= sum;
}

void TextMix::shares(const model::ExpertPopularity& popularity, std::int32_t layer,
                     std::span<double> out) const {
  mixed_shares(popularity, layer, weights_, out);
}

void mixed_shares(const model::ExpertPopularity& popularity, std::int32_t layer,
                  std::span<const double> weights, std::span<double> out) {
  std::ranges::fill(out, 0.0);
  for (std::size_t domain = 0; domain < weights.size(); ++domain) {
    const double* own = popularity.of(static_cast<std::int32_t>(domain), layer);
    for (std::size_t e = 0; e < out.size(); ++e) out[e] += weights[domain] * own[e];
  }
}

}  // namespace trimtab::sim
