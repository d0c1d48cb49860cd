#include "apps/simulate_faults.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "apps/simulate_words.h"
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

namespace {

json node_json(double bytes, const sim::StorageNode& node) {
  return {{"bytes", bytes},
          {"reads", node.reads},
          {"delay_mean_s", node.delay.mean_s()},
          {"delay_p99_s", node.delay.quantile_s(0.99)},
          {"blocks_asked", node.asked},
          {"blocks_found", node.found}};
}

json machine_json(const sim::VisionMachine& machine, double span_s) {
  return {{"images", machine.images},
          {"patches", machine.patches},
          {"delay_mean_s", machine.delay.mean_s()},
          {"delay_p99_s", machine.delay.quantile_s(0.99)},
          {"waiting_mean", machine.waiting_s / span_s},
          {"queue_most", machine.queue_most},
          {"busy", machine.busy}};
}

json experts_json(const sim::ExpertPicture& picture) {
  return {{"plans", picture.plans},
          {"rank_loads_before", rank_loads(picture, picture.before)},
          {"rank_loads_after", rank_loads(picture, picture.after)}};
}

/// What only a recording knows.
void add_recorded(const sim::Recording& recording, json& all) {
  if (!recording.faults.empty()) {
    json marks = json::array();
    for (const sim::FaultMark& fault : recording.faults) {
      json mark{{"kind", fault_word(fault.kind)},
                {"target", fault.target},
                {"from_s", base::to_seconds(fault.from - recording.origin)}};
      if (!fault_role(fault).empty()) mark["role"] = fault_role(fault);
      if (fault.until.value >= 0) mark["until_s"] = base::to_seconds(fault.until - recording.origin);
      marks.push_back(std::move(mark));
    }
    all["fault_times"] = std::move(marks);
  }
  if (recording.decode_experts.ranks > 0) {
    all["experts"] = {{"prefill_engine_0", experts_json(recording.prefill_experts)},
                      {"decode_group_0", experts_json(recording.decode_experts)}};
  }
}

}  // namespace

json outcomes_json(const sim::Result& result, const sim::Recording* recording) {
  const sim::FaultOutcome& f = result.faults;
  json all{{"passes_repeated", f.passes_repeated}, {"outputs_cut", f.outputs_cut}};
  if (f.any()) {
    all["faults"] = {
        {"engines_lost", f.engines_lost},       {"engines_joined", f.engines_joined},
        {"engines_drained", f.engines_drained}, {"engine_down_s", base::to_seconds(f.engine_down)},
        {"steps_lost", f.steps_lost},           {"steps_lost_s", base::to_seconds(f.steps_lost_span)},
        {"storage_lost", f.storage_lost},       {"fallback_tokens", f.fallback_tokens},
        {"queue_stops", f.queue_stops},         {"entrypoints_lost", f.entrypoints_lost},
        {"requests_moved", f.requests_moved},   {"streams_broken", f.streams_broken},
        {"reports_lost", f.reports_lost}};
  }
  if (!result.storage.node_bytes.empty()) {
    all["storage"] = {{"node_bytes", result.storage.node_bytes}, {"hottest", result.storage.hottest()}};
    json& nodes = all["storage"]["nodes"] = json::array();
    for (std::size_t n = 0; n < result.storage.nodes.size(); ++n)
      nodes.push_back(node_json(result.storage.node_bytes[n], result.storage.nodes[n]));
  }
  if (const sim::VisionOutcome& v = result.vision; v.images > 0 || v.unencodable > 0) {
    all["vision"] = {{"images", v.images},
                     {"patches", v.patches},
                     {"delay_mean_s", v.delay.mean_s()},
                     {"delay_p99_s", v.delay.quantile_s(0.99)},
                     {"busy", v.busy},
                     {"unencodable", v.unencodable}};
    const double span = std::max(base::to_seconds(result.span), 1e-9);
    json& machines = all["vision"]["machines"] = json::array();
    for (const sim::VisionMachine& machine : v.machines) machines.push_back(machine_json(machine, span));
  }
  if (const sim::NetworkOutcome& network = result.network; !network.machine_bytes.empty()) {
    all["network"] = {{"prefill_machines", network.prefill_machines},
                      {"machine_bytes", network.machine_bytes},
                      {"machine_busy", network.machine_busy},
                      {"wait_mean_s", network.wait.mean_s()},
                      {"wait_p99_s", network.wait.quantile_s(0.99)}};
  }
  if (recording != nullptr) add_recorded(*recording, all);
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
        "        {} passes repeated, {} steps lost, {} tokens computed for want of storage, {} requests "
        "moved, "
        "{} streams broken, {} load reports lost\n",
        f.engines_lost, base::to_seconds(f.engine_down), f.engines_drained, f.engines_joined, f.storage_lost,
        f.entrypoints_lost, f.queue_stops, f.passes_repeated, f.steps_lost, f.fallback_tokens,
        f.requests_moved, f.streams_broken, f.reports_lost);
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
