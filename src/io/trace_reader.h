#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "model/trace.h"

namespace trimtab::io {

enum class TraceFormat : std::uint8_t {
  kAuto,
  kMooncake,  // jsonl: timestamp ms, input_length, output_length, hash_ids of 512 tokens
  kAgentic,  // jsonl: conversation, t_s, think_s, input_tokens, output_tokens, blocks [[first, count] ...] of
             // 64
  kAzure,    // csv: TIMESTAMP, ContextTokens, GeneratedTokens
  kCsv,      // csv with a column map
  kServegen,     // directory of client models: *-trace.csv, *-dataset.json; a trace is drawn from them
  kDecisionLog,  // directory of a decision log, as `trimtab serve` keeps it
};
/// "auto", "mooncake", "agentic", "azure", "csv", "servegen", "decisions"; an unknown name is an error that
/// offers the nearest.
base::Result<TraceFormat> trace_format(std::string_view name);

/// Which columns of a generic csv hold what. A column that is not in the header is an error that names the
/// header's.
struct CsvColumns {
  std::string arrival = "arrival_s";
  std::string prompt = "prompt_tokens";
  std::string output = "output_tokens";
  std::string conversation;  // optional: none when empty
  double arrival_unit_s = 1.0;
};

struct TraceOptions {
  TraceFormat format = TraceFormat::kAuto;
  CsvColumns columns;
  /// Mooncake records arrivals in steps of this many milliseconds; those of one step are spread evenly over
  /// it, in the order of the file. 0: taken as they are.
  std::int64_t step_ms = 3'000;
  std::int64_t block_tokens = 0;          // 0: the format's own
  std::int64_t requests_max = INT64_MAX;  // later ones are left out
  /// Only what arrives in this slice, which then begins at 0. `for_s` 0: to the end. Not of closed loops,
  /// whose turns have no time of their own.
  double from_s = 0, for_s = 0;
  std::int64_t clients = 0;  // client models: only the busiest so many; 0: all
  std::uint64_t seed = 1;    // of what is drawn from client models
};

/// A whole trace. Errors name file, line, value and fix: not JSON, a missing or negative length, NaN, time
/// that goes back in a conversation, no request at all. A last line without its end that does not parse is
/// left out, with a note: recorders die in the middle of a line. A directory is a decision log or client
/// models, told apart by its files.
base::Result<model::Trace> read_trace(const std::string& path, const TraceOptions& options);

/// The same from text in memory, for the formats that are files; `name` stands for the file in messages.
base::Result<model::Trace> parse_trace(std::string_view text, const std::string& name,
                                       const TraceOptions& options);

}  // namespace trimtab::io
