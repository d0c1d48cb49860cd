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

base::Status check_windows(const model::ExpertModel& model) {
  const model::ExpertPopularity& recorded = model.popularity;
  const bool named = recorded.texts.size() == static_cast<std::size_t>(recorded.domains) &&
                     *std::ranges::min_element(recorded.texts) >= 0;
  if (!named || model.routing_windows < 1) {
    return bad(
        fmt::format("{} recorded windows, {} of which have a text, {} read at a time: each has one, and "
                    "at least one is read",
                    recorded.domains, recorded.texts.size(), model.routing_windows));
  }
  const std::int32_t texts = 1 + *std::ranges::max_element(recorded.texts);
  for (std::int32_t text = 0; text < texts; ++text) {
    if (std::ranges::find(recorded.texts, text) == recorded.texts.end())
      return bad(fmt::format("text {} of {} has no recorded window", text, texts));
  }
  return {};
}

base::Status check(const model::ExpertModel& model) {
  if (model.experts < model.per_token || model.per_token < 1) {
    return bad(fmt::format("a token that chooses {} of {} experts: give experts and per_token",
                           model.per_token, model.experts));
  }
  const model::ExpertPopularity& recorded = model.popularity;
  if (recorded.shares.empty()) {
    if (model.routing.empty()) return {};
    return bad(fmt::format("routing {} was not read: its shares belong into popularity", model.routing));
  }
  if (!recorded.texts.empty()) TRIMTAB_TRY(check_windows(model));
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
  model::ExpertPopularity out{model.domains, model.layers, model.experts, {}, {}, 0};
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
    : prng_(seed, stream), weights_(static_cast<std::size_t>(model.popularity.domains)) {
  const std::vector<std::int32_t>& texts = model.popularity.texts;
  for (std::size_t window = 0; window < texts.size(); ++window) {
    const auto text = static_cast<std::size_t>(texts[window]);
    windows_.resize(std::max(windows_.size(), text + 1));
    windows_[text].push_back(static_cast<std::uint32_t>(window));
  }
  logs_.resize(texts.empty() ? weights_.size() : windows_.size());
  texts_.resize(windows_.size());
  reading_.resize(texts.empty() ? 0 : static_cast<std::size_t>(model.routing_windows));
  const std::int64_t tokens = side.whole_windows ? 1 : model.popularity.window_tokens;
  replaced_ = std::min(
      static_cast<double>(side.epoch_steps) / static_cast<double>(std::max<std::int64_t>(tokens, 1)), 1.0);
  if (side.drift_steps > 0) {
    keep_ = std::exp(-static_cast<double>(side.epoch_steps) / side.drift_steps);
    shock_ = model.mix_spread * std::sqrt(1 - keep_ * keep_);
  }
  for (double& value : logs_) value = model.mix_spread * prng_.normal();
  weigh();
  if (!reading_.empty()) draw_windows(1);
}

void TextMix::advance() {
  if (shock_ > 0) {
    for (double& value : logs_) value = keep_ * value + shock_ * prng_.normal();
    weigh();
  }
  if (!reading_.empty()) draw_windows(replaced_);
}

void TextMix::weigh() {
  std::vector<double>& out = reading_.empty() ? weights_ : texts_;
  double sum = 0;
  for (std::size_t i = 0; i < logs_.size(); ++i) sum += out[i] = std::exp(logs_[i]);
  for (double& weight : out) weight /= sum;
}

/// Each of the windows under way has ended with the probability `replaced`, and another is read instead.
void TextMix::draw_windows(double replaced) {
  std::ranges::fill(weights_, 0.0);
  for (std::uint32_t& window : reading_) {
    if (prng_.uniform() < replaced) {
      double left = prng_.uniform();
      std::size_t text = 0;
      while (text + 1 < texts_.size() && left >= texts_[text]) left -= texts_[text++];
      window = windows_[text][prng_.below(windows_[text].size())];
    }
    weights_[window] += 1.0 / static_cast<double>(reading_.size());
  }
}

void TextMix::shares(const model::ExpertPopularity& popularity, std::int32_t layer,
                     std::span<double> out) const {
  mixed_shares(popularity, layer, weights_, out);
}

void mixed_shares(const model::ExpertPopularity& popularity, std::int32_t layer,
                  std::span<const double> weights, std::span<double> out) {
  std::ranges::fill(out, 0.0);
  for (std::size_t domain = 0; domain < weights.size(); ++domain) {
    if (weights[domain] == 0) continue;  // of many recorded windows few are read at a time
    const double* own = popularity.of(static_cast<std::int32_t>(domain), layer);
    for (std::size_t e = 0; e < out.size(); ++e) out[e] += weights[domain] * own[e];
  }
}

}  // namespace trimtab::sim
