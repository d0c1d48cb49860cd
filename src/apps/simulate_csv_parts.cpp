// What only some runs have, as CSV: faults, storage nodes, vision machines, networks, experts on their ranks.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "apps/simulate_output.h"
#include "apps/simulate_words.h"

namespace trimtab::apps {
namespace {

using KeyOf = std::string (*)(const Run&);

template <class... A>
void line(std::string& out, fmt::format_string<A...> format, A&&... values) {
  fmt::format_to(std::back_inserter(out), format, std::forward<A>(values)...);
  out += '\n';
}

std::string faults_csv(const std::vector<Run>& runs, KeyOf key) {
  std::string out;
  for (const Run& run : runs) {
    if (!run.recording) continue;
    const sim::Recording& r = *run.recording;
    for (const sim::FaultMark& fault : r.faults) {
      const std::string until =
          fault.until.value < 0 ? "" : fmt::format("{:.6f}", base::to_seconds(fault.until - r.origin));
      line(out, "{},{},{},{},{:.6f},{}", key(run), fault_word(fault.kind), fault_role(fault), fault.target,
           base::to_seconds(fault.from - r.origin), until);
    }
  }
  return out;
}

std::string storage_csv(const std::vector<Run>& runs, KeyOf key) {
  std::string out;
  for (const Run& run : runs) {
    const sim::StorageOutcome& storage = run.result.storage;
    for (std::size_t n = 0; n < storage.nodes.size(); ++n) {
      const sim::StorageNode& node = storage.nodes[n];
      line(out, "{},{},{:.0f},{},{:.9f},{:.9f},{},{}", key(run), n, storage.node_bytes[n], node.reads,
           node.delay.mean_s(), node.delay.quantile_s(0.99), node.asked, node.found);
    }
  }
  return out;
}

std::string vision_csv(const std::vector<Run>& runs, KeyOf key) {
  std::string out;
  for (const Run& run : runs) {
    if (run.result.vision.images == 0) continue;
    const double span = std::max(base::to_seconds(run.result.span), 1e-9);
    for (std::size_t m = 0; m < run.result.vision.machines.size(); ++m) {
      const sim::VisionMachine& machine = run.result.vision.machines[m];
      line(out, "{},{},{},{},{:.9f},{:.9f},{:.6f},{},{:.6f}", key(run), m, machine.images, machine.patches,
           machine.delay.mean_s(), machine.delay.quantile_s(0.99), machine.waiting_s / span,
           machine.queue_most, machine.busy);
    }
  }
  return out;
}

std::string networks_csv(const std::vector<Run>& runs, KeyOf key) {
  std::string out;
  for (const Run& run : runs) {
    const sim::NetworkOutcome& network = run.result.network;
    for (std::size_t m = 0; m < network.machine_bytes.size(); ++m) {
      const bool prefill = m < network.prefill_machines;
      line(out, "{},{},{},{:.0f},{:.6f}", key(run), prefill ? "prefill" : "decode",
           prefill ? m : m - network.prefill_machines, network.machine_bytes[m], network.machine_busy[m]);
    }
  }
  return out;
}

void placed_rows(std::string& out, const std::string& of, const sim::ExpertPicture& picture,
                 const std::vector<double>& placed, const char* when) {
  const std::size_t experts = picture.popularity.size();
  for (std::size_t at = 0; at < placed.size(); ++at) {
    if (placed[at] > 0) line(out, "{},{},{},{},{:.9f}", of, when, at / experts, at % experts, placed[at]);
  }
}

/// One row for each expert that a rank computes something of.
std::string experts_csv(const std::vector<Run>& runs, KeyOf key) {
  std::string out;
  for (const Run& run : runs) {
    if (!run.recording) continue;
    for (const auto& [role, picture] : {std::pair{"prefill", &run.recording->prefill_experts},
                                        std::pair{"decode", &run.recording->decode_experts}}) {
      const std::string of = fmt::format("{},{}", key(run), role);
      placed_rows(out, of, *picture, picture->before, "start");
      placed_rows(out, of, *picture, picture->after, "end");
    }
  }
  return out;
}

}  // namespace

std::vector<CsvFile> parts_csv(const std::vector<Run>& runs, KeyOf key, const std::string& names) {
  struct Part {
    const char *file, *columns;
    std::string rows;
  };
  const Part parts[] = {
      {"faults.csv", "kind,role,target,from_s,until_s", faults_csv(runs, key)},
      {"storage_nodes.csv", "node,bytes,reads,delay_mean_s,delay_p99_s,blocks_asked,blocks_found",
       storage_csv(runs, key)},
      {"vision_machines.csv", "machine,images,patches,delay_mean_s,delay_p99_s,waiting_mean,queue_most,busy",
       vision_csv(runs, key)},
      {"networks.csv", "role,machine,bytes,busy", networks_csv(runs, key)},
      {"experts.csv", "role,placed_at,rank,expert,share_of_choices", experts_csv(runs, key)}};
  std::vector<CsvFile> files;
  for (const Part& part : parts) {
    if (!part.rows.empty())
      files.push_back({part.file, fmt::format("{},{}\n", names, part.columns) + part.rows});
  }
  return files;
}

}  // namespace trimtab::apps
