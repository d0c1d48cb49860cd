#include "apps/simulate_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "report/html.h"

namespace trimtab::apps {

void add_output_options(CLI::App& command, OutputOptions& options) {
  const std::string group = "Files";
  command
      .add_option("--report", options.report,
                  "write one HTML file that stands alone: tables, and charts over time")
      ->group(group);
  command
      .add_option("--csv", options.csv_dir,
                  "write runs, tiers and series over time as CSV files into this directory")
      ->group(group);
  command.add_option("--requests", options.requests, "write the times of every request as CSV")->group(group);
  CLI::Option* timeline =
      command
          .add_option("--timeline", options.timeline,
                      "write a slice of the (first) run for chrome://tracing or ui.perfetto.dev")
          ->group(group);
  command.add_option("--timeline-from", options.timeline_from_s, "s after the first arrival")
      ->capture_default_str()
      ->needs(timeline)
      ->group(group);
  command.add_option("--timeline-for", options.timeline_for_s, "s that the slice is long")
      ->capture_default_str()
      ->needs(timeline)
      ->group(group);
}

base::Status check_writable(const std::string& flag, const std::string& path) {
  if (path.empty()) return {};
  const bool was_there = std::filesystem::exists(path);
  std::ofstream file(path, std::ios::app);
  const int error = errno;
  const bool opened = file.is_open();
  file.close();
  std::error_code ignored;
  if (opened && !was_there) std::filesystem::remove(path, ignored);
  if (opened) return {};
  return base::fail(base::Code::kIo,
                    fmt::format("{} {}: cannot write: {}", flag, path, std::strerror(error)));
}

base::Status check_outputs(const OutputOptions& options) {
  TRIMTAB_TRY(check_writable("--report", options.report));
  TRIMTAB_TRY(check_writable("--requests", options.requests));
  TRIMTAB_TRY(check_writable("--timeline", options.timeline));
  const bool from_is_wrong = !(options.timeline_from_s >= 0) || options.timeline_from_s > 1e9;
  if (from_is_wrong || !(options.timeline_for_s > 0) || options.timeline_for_s > 1e9) {
    return base::fail(
        base::Code::kInvalidArgument,
        fmt::format("--timeline-from {:g} --timeline-for {:g}: give a start of 0 s or later and "
                    "a length above 0 s",
                    options.timeline_from_s, options.timeline_for_s));
  }
  if (options.csv_dir.empty()) return {};
  std::error_code error;
  std::filesystem::create_directories(options.csv_dir, error);
  if (error) {
    return base::fail(base::Code::kIo, fmt::format("--csv {}: cannot make the directory: {}", options.csv_dir,
                                                   error.message()));
  }
  return check_writable("--csv", options.csv_dir + "/runs.csv");
}

sim::RecorderOptions recorder_options(const OutputOptions& options) {
  sim::RecorderOptions recorder;
  if (!options.timeline.empty()) {
    recorder.timeline_from = base::Nanos{std::llround(options.timeline_from_s * 1e9)};
    recorder.timeline_span = base::Nanos{std::llround(options.timeline_for_s * 1e9)};
  }
  return recorder;
}

base::Status write_text(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (file) return {};
  return base::fail(base::Code::kIo, fmt::format("cannot write {}: {}", path, std::strerror(errno)));
}

base::Status write_outputs(const OutputOptions& options, const std::vector<Run>& runs,
                           const model::Trace& trace, const model::Scenario& scenario, bool capacity) {
  if (!options.report.empty())
    TRIMTAB_TRY(write_text(options.report, simulation_html(runs, trace, scenario, capacity)));
  if (!options.requests.empty()) TRIMTAB_TRY(write_text(options.requests, requests_csv(runs)));
  if (!options.csv_dir.empty()) {
    for (const CsvFile& file : simulation_csv(runs, scenario))
      TRIMTAB_TRY(write_text(options.csv_dir + "/" + file.name, file.text));
  }
  if (options.timeline.empty() || !runs.front().recording) return {};
  const sim::Recording& recording = *runs.front().recording;
  if (recording.spans.empty()) {
    return base::fail(base::Code::kNotFound,
                      fmt::format("nothing happened from {:g} s for {:g} s: the run is {:.1f} s long",
                                  options.timeline_from_s, options.timeline_for_s,
                                  base::to_seconds(runs.front().result.span)),
                      "--timeline-from");
  }
  if (recording.spans_left_out > 0) {
    fmt::print(stderr, "trimtab: the timeline holds the first {} slices; {} more were left out\n",
               recording.spans.size(), recording.spans_left_out);
  }
  return write_text(options.timeline, timeline_json(recording));
}

std::vector<std::string> tier_names(const std::vector<std::int64_t>& bounds) {
  const auto short_form = [](std::int64_t tokens) {
    return tokens % 1024 == 0 ? fmt::format("{}K", tokens / 1024)
                              : report::shortened_number(static_cast<double>(tokens));
  };
  if (bounds.empty()) return {"all"};
  std::vector<std::string> names{"below " + short_form(bounds.front())};
  for (std::size_t t = 1; t < bounds.size(); ++t)
    names.push_back(short_form(bounds[t - 1]) + " to " + short_form(bounds[t]));
  names.push_back(short_form(bounds.back()) + " and more");
  return names;
}

std::string run_name(const Run& run, const std::vector<Run>& runs) {
  const auto differs = [&](auto member) {
    return std::ranges::any_of(runs, [&](const Run& other) { return other.*member != run.*member; });
  };
  std::vector<std::string> parts;
  if (differs(&Run::decode_policy)) parts.push_back(run.decode_policy);
  if (differs(&Run::experts)) parts.push_back("experts " + run.experts);
  if (differs(&Run::verify)) parts.push_back("verify " + run.verify);
  if (differs(&Run::prefill)) parts.push_back(run.prefill);
  if (differs(&Run::rate)) parts.push_back(fmt::format("rate {:.4g}", run.rate));
  if (parts.empty()) return run.decode_policy;
  std::string name = parts.front();
  for (std::size_t i = 1; i < parts.size(); ++i) name += ", " + parts[i];
  return name;
}

}  // namespace trimtab::apps
