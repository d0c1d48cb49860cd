#include "agents/shadow_decode.h"

#include <utility>

namespace trimtab::agents {

base::Result<std::optional<ShadowDecode>> ShadowDecode::make(const model::ClusterConfig& config) {
  const std::string& name = config.shadow.decode_policy;
  if (name.empty()) return std::optional<ShadowDecode>();
  policy::DecodeConfig placement = policy::decode_config(config.decode);
  placement.policy = name;
  const policy::DecodeCapacity capacity{base::TokenCount{config.decode.kv_blocks * model::kBlockTokens},
                                        config.decode.max_running};
  auto replay = shadow::DecodeReplay::make(placement, capacity);
  if (!replay) {
    replay.error().message = "shadow.decode_policy: " + replay.error().message;
    return tl::unexpected(replay.error());
  }
  return std::optional<ShadowDecode>(ShadowDecode(name, std::move(*replay)));
}

void ShadowDecode::describe_metrics(obs::Registry& registry) {
  registry.describe("trimtab_shadow_decode_decisions_total",
                    "Decode placements that the shadow policy decided too.");
  registry.describe("trimtab_shadow_decode_changed_total",
                    "Of them, those it would have put on another rank.");
  registry.describe("trimtab_shadow_decode_held_total", "Of them, those it would have let wait.");
  registry.describe("trimtab_shadow_decode_peak_over_mean",
                    "Busiest decode rank over the mean since the start, in the live and the shadow account.");
  registry.describe(
      "trimtab_shadow_decode_peak_over_mean_seconds_total",
      "The same, summed over the seconds with work: rate() over that of the seconds is a window's.");
  registry.describe("trimtab_shadow_decode_seconds_total", "Seconds with work on the decode ranks.");
}

void ShadowDecode::sample(base::Metrics& metrics) {
  const shadow::DecodeReplayReport now = replay_.report();
  const auto grown = [](std::uint64_t from, std::uint64_t to) { return static_cast<double>(to - from); };
  metrics.add("trimtab_shadow_decode_decisions_total", grown(told_.decisions, now.decisions));
  metrics.add("trimtab_shadow_decode_changed_total", grown(told_.changed, now.changed));
  metrics.add("trimtab_shadow_decode_held_total", grown(told_.held, now.held));
  metrics.add("trimtab_shadow_decode_seconds_total", now.recorded.seconds - told_.recorded.seconds);
  const auto account = [&](const std::string& name, const shadow::Evenness& before,
                           const shadow::Evenness& after) {
    const auto one = [&](const std::string& of, double shadow::Evenness::*ratio) {
      const base::Labels labels = {{"account", name}, {"of", of}};
      metrics.set("trimtab_shadow_decode_peak_over_mean", after.*ratio, labels);
      metrics.add("trimtab_shadow_decode_peak_over_mean_seconds_total",
                  after.*ratio * after.seconds - before.*ratio * before.seconds, labels);
    };
    one("kv", &shadow::Evenness::kv_peak_over_mean);
    one("running", &shadow::Evenness::running_peak_over_mean);
  };
  account("live", told_.recorded, now.recorded);
  account("shadow", told_.replayed, now.replayed);
  told_ = now;
}

}  // namespace trimtab::agents
