#include "apps/simulate_faults.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "config/fault_plan.h"

namespace trimtab::apps {

using nlohmann::json;

void add_fault_option(CLI::App& command, std::string& path) {
  command
      .add_option(
          "--faults", path,
          "TOML: what breaks and when; added to the scenario's own [[fault]] tables (docs/simulation.md)")
      ->check(CLI::ExistingFile);
}

base::Status add_faults(model::Scenario& scenario, const std::string& path) {
  if (path.empty()) return {};
  auto plan = config::load_fault_plan(path);
  if (!plan) return tl::unexpected<base::Error>(plan.error());
  std::vector<model::Fault>& faults = scenario.faults.faults;
  faults.insert(faults.end(), plan->faults.begin(), plan->faults.end());
  scenario.faults.seed = plan->seed;
  return {};
}

json outcomes_json(const sim::Result& result) {
  const sim::FaultOutcome& f = result.faults;
  json all{{"passes_repeated", f.passes_repeated}, {"outputs_cut", f.outputs_cut}};
  if (f.any()) {
    all["faults"] = {
        {"engines_lost", f.engines_lost},       {"engines_joined", f.engines_joined},
        {"engines_drained", f.engines_drained}, {"engine_down_s", base::to_seconds(f.engine_down)},
        {"storage_lost", f.storage_lost},       {"fallback_tokens", f.fallback_tokens},
        {"queue_stops", f.queue_stops},         {"entrypoints_lost", f.entrypoints_lost},
        {"requests_moved", f.requests_moved},   {"streams_broken", f.streams_broken},
        {"reports_lost", f.reports_lost}};
  }
  if (!result.storage.node_bytes.empty()) {
    all["storage"] = {{"node_bytes", result.storage.node_bytes}, {"hottest", result.storage.hottest()}};
  }
  if (const sim::VisionOutcome& v = result.vision; v.images > 0 || v.unencodable > 0) {
    all["vision"] = {{"images", v.images},
                     {"patches", v.patches},
                     {"delay_mean_s", v.delay.mean_s()},
                     {"delay_p99_s", v.delay.quantile_s(0.99)},
                     {"busy", v.busy},
                     {"unencodable", v.unencodable}};
  }
  return all;
}

std::string outcomes_text(const sim::Result& result) {
  std::string text;
  const sim::FaultOutcome& f = result.faults;
  if (f.any()) {
    text += fmt::format(
        "faults: {} engines lost ({:.1f} s away in all), {} drained, {} joined; {} storage nodes, {} "
        "entrypoints, {} "
        "stops of the queue\n"
        "        {} passes repeated, {} tokens computed for want of storage, {} requests moved, {} streams "
        "broken, {} "
        "load reports lost\n",
        f.engines_lost, base::to_seconds(f.engine_down), f.engines_drained, f.engines_joined, f.storage_lost,
        f.entrypoints_lost, f.queue_stops, f.passes_repeated, f.fallback_tokens, f.requests_moved,
        f.streams_broken, f.reports_lost);
  }
  if (!result.storage.node_bytes.empty()) {
    double bytes = 0;
    for (const double one : result.storage.node_bytes) bytes += one;
    text += fmt::format("storage: {:.1f} GB read from {} nodes, the hottest {:.2f} x the mean\n",
                        bytes * 1e-9, result.storage.node_bytes.size(), result.storage.hottest());
  }
  if (const sim::VisionOutcome& v = result.vision; v.images > 0 || v.unencodable > 0) {
    text += fmt::format(
        "vision: {} images of {} patches, encoded in {:.3f} s (p99 {:.3f}), encoders {:.1f} % busy\n",
        v.images, v.patches / std::max<std::int64_t>(static_cast<std::int64_t>(v.images), 1),
        v.delay.mean_s(), v.delay.quantile_s(0.99), 100 * v.busy);
  }
  if (f.outputs_cut > 0)
    text += fmt::format("{} answers were cut at the model's context limit\n", f.outputs_cut);
  return text.empty() ? text : "\n" + text;
}

}  // namespace trimtab::apps
