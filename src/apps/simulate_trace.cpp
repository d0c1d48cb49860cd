#include "apps/simulate_trace.h"

#include <fmt/format.h>

#include <cstdio>

#include "sim/workload_mix.h"
#include "sim/workload_resample.h"

namespace trimtab::apps {

void add_trace_options(CLI::App& command, TraceSource& source) {
  command
      .add_option(
          "--trace", source.paths,
          "requests: Mooncake or agentic jsonl, Azure csv, any csv, a directory of ServeGen client models, "
          "STATE_DIR/decisions of `trimtab serve`; give it several times to mix")
      ->allow_extra_args(false)
      ->required();
  command
      .add_option("--trace-format", source.format,
                  "auto, mooncake, agentic, azure, csv, servegen or decisions")
      ->capture_default_str();
  io::CsvColumns& columns = source.reader.columns;
  command.add_option("--csv-arrival", columns.arrival, "csv: column of the arrival")->capture_default_str();
  command.add_option("--csv-arrival-unit-s", columns.arrival_unit_s, "csv: seconds that one unit of it is")
      ->capture_default_str();
  command.add_option("--csv-prompt", columns.prompt, "csv: column of the prompt's tokens")
      ->capture_default_str();
  command.add_option("--csv-output", columns.output, "csv: column of the answer's tokens")
      ->capture_default_str();
  command.add_option("--csv-conversation", columns.conversation,
                     "csv: column that names the conversation; without one, every request is one");
  io::TraceOptions& reader = source.reader;
  command.add_option("--from-s", reader.from_s, "only what arrives from here on")->capture_default_str();
  command.add_option("--for-s", reader.for_s, "and only for so long; 0: to the end")->capture_default_str();
  command.add_option("--clients", reader.clients, "client models: only so many, the busiest; 0: all")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1'000'000}))
      ->capture_default_str();
  command.add_option("--trace-seed", reader.seed, "client models: seed of the drawn requests")
      ->capture_default_str();
  command.add_option("--mix", source.shares,
                     "several traces: the share of the requests of each; without it, their recorded rates");
  command
      .add_option("--resample", source.resample_seed,
                  "make the trace stationary: its conversations shuffled by this seed, at its mean rate")
      ->check(CLI::Range(std::int64_t{0}, INT64_MAX));
  command.add_option("--resample-arrivals", source.arrivals, "poisson, or even")
      ->check(CLI::IsMember({"poisson", "even"}))
      ->capture_default_str();
  command
      .add_option("--start-span-s", source.start_span_s,
                  "closed loop: conversations start evenly over this time")
      ->capture_default_str();
  command.add_flag(
      "--stationary", source.stationary,
      "closed loop: begin as if it had always run at this rate: conversations are under way, with "
      "their earlier blocks in the pool; each period of --start-span-s / --rate has every turn once");
}

base::Result<model::Trace> load_trace(const TraceSource& source) {
  io::TraceOptions options = source.reader;
  const auto format = io::trace_format(source.format);
  if (!format) return tl::unexpected<base::Error>(format.error());
  options.format = *format;
  if (!(source.start_span_s > 0 && source.start_span_s < 1e9)) {
    return base::fail(base::Code::kInvalidArgument,
                      fmt::format("conversations cannot start over {} s: more than 0, less than 1e9 s",
                                  source.start_span_s),
                      "--start-span-s");
  }
  std::vector<model::Trace> traces;
  for (const std::string& path : source.paths) {
    auto trace = io::read_trace(path, options);
    if (!trace) return trace;
    traces.push_back(std::move(*trace));
  }
  model::Trace trace;
  if (traces.size() > 1 || !source.shares.empty()) {
    auto mixed = sim::mix(traces, {source.shares, source.start_span()});
    if (!mixed) return mixed;
    trace = std::move(*mixed);
  } else {
    trace = std::move(traces.front());
  }
  for (const std::string& note : trace.notes) fmt::print(stderr, "trimtab: {}\n", note);
  if (source.resample_seed < 0) return trace;
  using Arrivals = sim::ResampleOptions::Arrivals;
  return sim::resample(
      trace, {static_cast<std::uint64_t>(source.resample_seed),
              source.arrivals == "even" ? Arrivals::kEven : Arrivals::kPoisson, source.start_span()});
}

}  // namespace trimtab::apps
