#pragma once

#include <CLI/CLI.hpp>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "apps/simulate_report.h"
#include "base/error.h"
#include "report/html.h"
#include "sim/recorder.h"

namespace trimtab::apps {

/// What `trimtab simulate` writes besides what it prints.
struct OutputOptions {
  std::string report, csv_dir, requests, timeline;  // paths; empty: not written
  double timeline_from_s = 0, timeline_for_s = 10;

  bool records() const { return !report.empty() || !csv_dir.empty() || !timeline.empty(); }
};

/// --report, --csv, --requests, --timeline, --timeline-from, --timeline-for.
void add_output_options(CLI::App& command, OutputOptions& options);
/// Before the work rather than after it. Errors: a place that cannot be written to, a slice without length.
base::Status check_outputs(const OutputOptions& options);
sim::RecorderOptions recorder_options(const OutputOptions& options);
/// Runs that were recorded when options.records(). `capacity`: their rates are found ones.
base::Status write_outputs(const OutputOptions& options, const std::vector<Run>& runs,
                           const model::Trace& trace, const model::Scenario& scenario, bool capacity);

/// The page of --report.
std::string simulation_html(const std::vector<Run>& runs, const model::Trace& trace,
                            const model::Scenario& scenario, bool capacity);
// Sections of it, empty where no run has anything to show there.
report::Html experts_section(const std::vector<Run>& runs);
report::Html faults_section(const std::vector<Run>& runs);
report::Html storage_section(const std::vector<Run>& runs);
report::Html vision_section(const std::vector<Run>& runs);
report::Html network_section(const std::vector<Run>& runs);
/// Chrome's trace format (chrome://tracing, ui.perfetto.dev): engines' steps as slices, requests' phases as
/// async slices, and a flow from each request's prefill to its decode.
std::string timeline_json(const sim::Recording& recording);

struct CsvFile {
  std::string name, text;
};
/// runs.csv, tiers.csv, series.csv, tier_series.csv and ranks.csv, and parts_csv.
std::vector<CsvFile> simulation_csv(const std::vector<Run>& runs, const model::Scenario& scenario);
/// faults.csv, storage_nodes.csv, vision_machines.csv, networks.csv and experts.csv; only those that a run
/// has rows for. What a row's run was stands first in it: `key` has its fields, `names` their names.
std::vector<CsvFile> parts_csv(const std::vector<Run>& runs, std::string (*key)(const Run&),
                               const std::string& names);
std::string requests_csv(const std::vector<Run>& runs);

/// The parts that a step's time falls into, in the order in which they are shown.
inline constexpr std::array<std::pair<const char*, double sim::StepTimes::*>, 8> kTimeParts = {{
    {"ideal", &sim::StepTimes::ideal},
    {"attention wait", &sim::StepTimes::attention_wait},
    {"batch wait", &sim::StepTimes::batch_wait},
    {"padding", &sim::StepTimes::padding},
    {"experts", &sim::StepTimes::expert_imbalance},
    {"expert drift", &sim::StepTimes::expert_drift},
    {"expert moves", &sim::StepTimes::expert_moves},
    {"expert copies", &sim::StepTimes::expert_copies},
}};
/// "below 16k", "16k to 64k", ..., "262k and more" for the tiers that `bounds` separate.
std::vector<std::string> tier_names(const std::vector<std::int64_t>& bounds);
/// "waterline, pull fifo, x 2": what tells a run from the others beside it.
std::string run_name(const Run& run, const std::vector<Run>& runs);

/// Writes a file whole. Errors: kIo, with the path and why.
base::Status write_text(const std::string& path, const std::string& text);
/// Errors: kIo when no file of that name can be made.
base::Status check_writable(const std::string& flag, const std::string& path);

}  // namespace trimtab::apps
