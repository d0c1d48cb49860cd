#include "experts_eval/synthetic_loads.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

namespace trimtab::experts_eval {
namespace {

tl::unexpected<base::Error> bad(std::string message) {
  return base::fail(base::Code::kInvalidArgument, std::move(message), "experts_eval");
}

/// Independent streams, so that another draw of counts leaves rates and bursts as they are.
enum Stream : std::uint64_t { kPopularity = 1, kBursts = 2, kCounts = 3 };

struct Burst {
  std::int64_t end_step = 0;
  std::vector<bool> hit;  // [layers * experts]
};

base::Status check(const SyntheticConfig& config) {
  for (const auto& [name, value] : {std::pair{"steps", config.steps},
                                    {"layers", config.layers},
                                    {"experts", config.experts},
                                    {"top_k", config.top_k},
                                    {"tokens", config.tokens}}) {
    if (value < 1) return bad(fmt::format("{} = {}: must be at least 1", name, value));
  }
  if (config.top_k > config.experts) {
    return bad(fmt::format("top_k = {} is more than the {} experts", config.top_k, config.experts));
  }
  for (const auto& [name, value] : {std::pair{"drift", config.drift},
                                    {"burst_probability", config.burst_probability},
                                    {"burst_share", config.burst_share}}) {
    if (!(value >= 0 && value <= 1)) return bad(fmt::format("{} = {}: must lie in 0 to 1", name, value));
  }
  if (!(config.sigma >= 0) || !(config.zipf.value_or(0) >= 0) || !(config.burst_mean_steps >= 0)) {
    return bad(fmt::format("sigma = {}, zipf = {}, burst_mean_steps = {}: none may be negative", config.sigma,
                           config.zipf.value_or(0), config.burst_mean_steps));
  }
  return {};
}

std::vector<double> base_popularity(const SyntheticConfig& config, base::Prng& prng) {
  const auto experts = static_cast<std::size_t>(config.experts);
  std::vector<double> base(experts * static_cast<std::size_t>(config.layers));
  if (!config.zipf) {
    for (double& value : base) value = config.sigma * prng.normal();
    return base;
  }
  std::vector<std::size_t> order(experts);
  for (std::size_t first = 0; first < base.size(); first += experts) {
    std::iota(order.begin(), order.end(), std::size_t{0});
    prng.shuffle(std::span(order));
    double mean = 0;
    for (std::size_t e = 0; e < experts; ++e) {
      base[first + e] = -*config.zipf * std::log(static_cast<double>(order[e]) + 1.0);
      mean += base[first + e] / static_cast<double>(experts);
    }
    for (std::size_t e = 0; e < experts; ++e) base[first + e] -= mean;
  }
  return base;
}

double deviation_of(const std::vector<double>& values) {
  const auto count = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return std::sqrt(squares / count);
}

/// Log popularity to token counts of one layer and step.
void draw_counts(const SyntheticConfig& config, std::span<double> z, base::Prng& prng, std::int32_t* out) {
  const double highest = *std::ranges::max_element(z);
  double sum = 0;
  for (double& value : z) sum += value = std::exp(value - highest);
  // A token chooses an expert once at most: no expert gets more than one of the token's top_k.
  double capped = 0;
  for (double& value : z) capped += value = std::min(value / sum * config.top_k, 1.0);
  const double tokens = static_cast<double>(config.tokens) * config.top_k;
  for (std::size_t e = 0; e < z.size(); ++e) {
    out[e] = static_cast<std::int32_t>(
        std::min<std::int64_t>(poisson(prng, z[e] / capped * tokens), config.tokens));
  }
}

}  // namespace

base::Result<experts::LoadWindow> Loads::window(std::int32_t layer, std::int32_t first,
                                                std::int32_t count) const {
  if (layer < 0 || layer >= layers || first < 0 || count < 1 || first > steps - count) {
    return bad(fmt::format("steps {} to {} of layer {} are not in loads of {} steps and {} layers", first,
                           first + count, layer, steps, layers));
  }
  return experts::LoadWindow::make(at(first, layer), count, experts, step_stride());
}

std::int64_t poisson(base::Prng& prng, double mean) {
  if (mean <= 0) return 0;
  if (mean < 10) {
    double left = prng.uniform(), term = std::exp(-mean);
    std::int64_t k = 0;
    // The sum of the terms ends a rounding error below 1: stop where terms no longer count.
    while (left >= term && (term > 1e-300 || static_cast<double>(k) < mean)) {
      left -= term;
      term *= mean / static_cast<double>(++k);
      if (static_cast<double>(k) > mean && term < 1e-18) break;
    }
    return k;
  }
  const double b = 0.931 + 2.53 * std::sqrt(mean), a = -0.059 + 0.02483 * b;
  const double inverse_alpha = 1.1239 + 1.1328 / (b - 3.4), v_r = 0.9277 - 3.6224 / (b - 2);
  for (;;) {
    const double u = prng.uniform() - 0.5, v = prng.uniform();
    const double us = 0.5 - std::fabs(u);
    if (us <= 0) continue;
    const double k = std::floor((2 * a / us + b) * u + mean + 0.43);
    if (us >= 0.07 && v <= v_r) return static_cast<std::int64_t>(k);
    if (k < 0 || (us < 0.013 && v > us)) continue;
    if (std::log(v) + std::log(inverse_alpha) - std::log(a / (us * us) + b) <=
        k * std::log(mean) - mean - std::lgamma(k + 1)) {
      return static_cast<std::int64_t>(k);
    }
  }
}

base::Result<Loads> generate(const SyntheticConfig& config) {
  TRIMTAB_TRY(check(config));
  base::Prng popularity(config.seed, kPopularity), bursting(config.seed, kBursts);
  base::Prng counting(config.seed, kCounts + config.draw);
  const std::vector<double> base = base_popularity(config, popularity);
  const double shock = std::sqrt(2 * config.drift) * 0.5 * deviation_of(base);
  std::vector<double> x = base, z(base.size());
  std::vector<Burst> bursts;
  const auto experts = static_cast<std::size_t>(config.experts);
  Loads out{config.steps, config.layers, config.experts, {}};
  out.counts.resize(static_cast<std::size_t>(config.steps) * base.size());
  for (std::int32_t step = 0; step < config.steps; ++step) {
    for (std::size_t i = 0; i < x.size(); ++i)
      x[i] += -config.drift * (x[i] - base[i]) + shock * popularity.normal();
    if (bursting.uniform() < config.burst_probability) {
      Burst burst{step + static_cast<std::int64_t>(bursting.exponential(config.burst_mean_steps)) + 5, {}};
      burst.hit.resize(base.size());
      for (std::size_t i = 0; i < base.size(); ++i) burst.hit[i] = bursting.uniform() < config.burst_share;
      bursts.push_back(std::move(burst));
    }
    std::erase_if(bursts, [&](const Burst& burst) { return burst.end_step <= step; });
    z = x;
    for (const Burst& burst : bursts) {
      for (std::size_t i = 0; i < z.size(); ++i) z[i] += burst.hit[i] ? config.burst_amplitude : 0.0;
    }
    std::int32_t* row = out.counts.data() + static_cast<std::size_t>(step) * base.size();
    for (std::size_t first = 0; first < z.size(); first += experts) {
      draw_counts(config, std::span(z).subspan(first, experts), counting, row + first);
    }
  }
  return out;
}

}  // namespace trimtab::experts_eval
