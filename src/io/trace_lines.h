#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "model/trace.h"

/// What the trace readers share: lines with their numbers, checked values, errors that say where.
namespace trimtab::io {

/// Lines of a text, without their ends ("\n" or "\r\n").
class LineScanner {
 public:
  explicit LineScanner(std::string_view text) : rest_(text) {}
  /// False at the end.
  bool next();
  std::string_view line() const { return line_; }
  std::size_t number() const { return number_; }  // from 1
  /// The line has no line end: it may have been cut short.
  bool unfinished() const { return unfinished_; }

 private:
  std::string_view rest_, line_;
  std::size_t number_ = 0;
  bool unfinished_ = false;
};

/// A line's fields between commas (those in quotes are none), without blanks and quotes around them.
std::vector<std::string_view> fields_of(std::string_view line);
/// A number that is the whole text; nothing otherwise. "nan" and "inf" are numbers.
std::optional<double> to_number(std::string_view text);
/// "FILE:12: the last line is cut short and was left out", for Trace::notes.
std::string cut_short_note(const std::string& name, std::size_t line);

/// "trace.jsonl:12: message".
tl::unexpected<base::Error> trace_error(const std::string& name, std::size_t line, std::string message);

inline constexpr std::int64_t kTraceTokensMax = 100'000'000;

/// Errors: prompt or output negative, prompt 0, more than kTraceTokensMax, arrival negative or not finite.
base::Status check_request(const std::string& name, std::size_t line, std::int64_t prompt,
                           std::int64_t output);
/// Seconds (or other units) to nanoseconds. Errors: not finite, negative, beyond 100 years.
base::Result<base::Nanos> trace_time(const std::string& name, std::size_t line, std::string_view what,
                                     double value, double unit_ns);

struct TraceOptions;
base::Result<model::Trace> parse_mooncake(std::string_view text, const std::string& name,
                                          const TraceOptions& options);
base::Result<model::Trace> parse_agentic(std::string_view text, const std::string& name,
                                         const TraceOptions& options);
base::Result<model::Trace> parse_azure(std::string_view text, const std::string& name,
                                       const TraceOptions& options);
base::Result<model::Trace> parse_csv(std::string_view text, const std::string& name,
                                     const TraceOptions& options);

}  // namespace trimtab::io
