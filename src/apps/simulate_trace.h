#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "io/trace_reader.h"
#include "model/trace.h"

namespace trimtab::apps {

/// Where a simulation's requests come from: one trace or several mixed, as recorded or resampled.
struct TraceSource {
  std::vector<std::string> paths;
  std::string format = "auto", arrivals = "poisson";
  io::TraceOptions reader;
  std::vector<double> shares;
  std::int64_t resample_seed = -1;  // negative: as recorded
  double start_span_s = 8 * 3600;
  bool stationary = false;

  base::Nanos start_span() const { return base::Nanos{static_cast<std::int64_t>(start_span_s * 1e9)}; }
};

/// --trace, --trace-format, --csv-..., --from-s, --for-s, --clients, --trace-seed, --mix, --resample,
/// --start-span-s, --stationary.
void add_trace_options(CLI::App& command, TraceSource& source);

/// Reads, mixes and resamples; prints the readers' notes on stderr.
base::Result<model::Trace> load_trace(const TraceSource& source);

}  // namespace trimtab::apps
