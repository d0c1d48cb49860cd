#include "io/trace_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>

#include "base/nearest.h"
#include "io/decision_log.h"
#include "io/logged_trace.h"
#include "io/record_file.h"
#include "io/servegen.h"
#include "io/trace_lines.h"

namespace trimtab::io {
namespace {

constexpr std::array<std::string_view, 7> kFormats = {"auto", "mooncake", "agentic",  "azure",
                                                      "csv",  "servegen", "decisions"};

/// What the bytes are when they are no text, in words with the way out; empty when they may be one.
std::string_view no_text(std::string_view bytes) {
  if (bytes.starts_with("\x1f\x8b")) return "this is gzip: unpack it first (gunzip)";
  if (bytes.starts_with("\x28\xb5\x2f\xfd")) return "this is zstd: unpack it first (zstd -d)";
  if (bytes.starts_with("PK\x03\x04")) return "this is a zip or a spreadsheet: save it as csv";
  if (bytes.starts_with("PAR1")) return "this is parquet: save it as csv";
  if (bytes.starts_with("\xff\xfe") || bytes.starts_with("\xfe\xff"))
    return "this is UTF-16: save it as UTF-8 (iconv -f UTF-16 -t UTF-8)";
  const auto control = [](char c) { return static_cast<unsigned char>(c) < 0x20 && c != '\t' && c != '\r'; };
  const std::string_view first = bytes.substr(0, bytes.find('\n'));
  return std::ranges::any_of(first, control) ? "this is no text: its first line has control characters" : "";
}

/// The first line tells: each format has a name of a field that no other has.
TraceFormat detect(std::string_view text) {
  LineScanner lines(text);
  while (lines.next() && lines.line().empty()) {
  }
  const std::string_view first = lines.line();
  if (first.find("\"conversation\"") != std::string_view::npos) return TraceFormat::kAgentic;
  if (first.find('{') == first.find_first_not_of(" \t")) return TraceFormat::kMooncake;
  if (first.find("ContextTokens") != std::string_view::npos) return TraceFormat::kAzure;
  return TraceFormat::kCsv;
}

base::Result<model::Trace> finished(base::Result<model::Trace> trace, const std::string& name) {
  if (!trace) return trace;
  if (trace->requests.empty()) return trace_error(name, 0, "the trace has no request");
  trace->name = name;
  return trace;
}

/// The slice that the options ask for, of a trace that was recorded.
base::Result<model::Trace> sliced(base::Result<model::Trace> trace, const std::string& name,
                                  const TraceOptions& options) {
  if (!trace) return trace;
  if (options.clients != 0)
    return trace_error(
        name, 0, fmt::format("{} clients were asked for: only client models have them", options.clients));
  if (options.from_s == 0 && options.for_s == 0) return trace;
  const auto from = trace_time(name, 0, "the slice's begin in s", options.from_s, 1e9);
  const auto length = trace_time(name, 0, "the slice's length in s", options.for_s, 1e9);
  if (!from) return tl::unexpected<base::Error>(from.error());
  if (!length) return tl::unexpected<base::Error>(length.error());
  if (trace->closed_loop)
    return trace_error(name, 0, "a closed loop has no slices: its turns start when the ones before them end");
  const base::Nanos end = options.for_s > 0 ? *from + *length : base::kForever;
  std::erase_if(trace->requests,
                [&](const model::TraceRequest& r) { return r.arrival < *from || r.arrival >= end; });
  for (model::TraceRequest& request : trace->requests) request.arrival = request.arrival - *from;
  if (options.for_s > 0) trace->span = *length;
  if (trace->requests.empty())
    return trace_error(
        name, 0,
        fmt::format("no request arrives in the slice from {:g} s for {:g} s", options.from_s, options.for_s));
  return trace;
}

base::Result<model::Trace> read_directory(const std::string& path, const TraceOptions& options) {
  TraceFormat format = options.format;
  std::error_code ignored;
  if (format == TraceFormat::kAuto) {
    const bool log = std::filesystem::exists(log_path(path), ignored) ||
                     std::filesystem::exists(older_log_path(path), ignored);
    format = log ? TraceFormat::kDecisionLog : TraceFormat::kServegen;
  }
  if (format == TraceFormat::kDecisionLog)
    return finished(sliced(read_logged_trace(path, options), path, options), path);
  const auto clients = read_servegen(path);
  if (!clients) return tl::unexpected<base::Error>(clients.error());
  return finished(
      generate_servegen(*clients,
                        {options.from_s, options.for_s, options.clients, options.seed, options.requests_max},
                        path),
      path);
}

}  // namespace

bool LineScanner::next() {
  if (rest_.empty()) return false;
  const std::size_t end = rest_.find('\n');
  unfinished_ = end == std::string_view::npos;
  line_ = rest_.substr(0, end);
  rest_ = unfinished_ ? std::string_view{} : rest_.substr(end + 1);
  if (!line_.empty() && line_.back() == '\r') line_.remove_suffix(1);
  ++number_;
  return true;
}

std::string cut_short_note(const std::string& name, std::size_t line) {
  return fmt::format("{}:{}: the last line is cut short and was left out", name, line);
}

tl::unexpected<base::Error> trace_error(const std::string& name, std::size_t line, std::string message) {
  const std::string where = line == 0 ? name : fmt::format("{}:{}", name, line);
  return base::fail(base::Code::kInvalidArgument, where + ": " + message, where);
}

base::Status check_request(const std::string& name, std::size_t line, std::int64_t prompt,
                           std::int64_t output) {
  if (prompt < 1 || prompt > kTraceTokensMax) {
    return trace_error(name, line,
                       fmt::format("a prompt of {} tokens: a request has 1 to {}", prompt, kTraceTokensMax));
  }
  if (output < 0 || output > kTraceTokensMax) {
    return trace_error(name, line,
                       fmt::format("an output of {} tokens: a request has 0 to {}", output, kTraceTokensMax));
  }
  return {};
}

base::Result<base::Nanos> trace_time(const std::string& name, std::size_t line, std::string_view what,
                                     double value, double unit_ns) {
  const double ns = value * unit_ns;
  if (!std::isfinite(ns) || ns < 0 || ns > 3.2e18) {
    return trace_error(
        name, line,
        fmt::format("{} is {}: times are finite, not negative, and less than 100 years", what, value));
  }
  return base::Nanos{std::llround(ns)};
}

base::Result<TraceFormat> trace_format(std::string_view name) {
  for (std::size_t i = 0; i < kFormats.size(); ++i) {
    if (name == kFormats[i]) return static_cast<TraceFormat>(i);
  }
  const std::string close = base::nearest(name, kFormats);
  return base::fail(base::Code::kInvalidArgument,
                    fmt::format("'{}' is no trace format{}: it is one of {}", name,
                                close.empty() ? "" : fmt::format(" (did you mean '{}'?)", close),
                                fmt::join(kFormats, ", ")));
}

base::Result<model::Trace> parse_trace(std::string_view text, const std::string& name,
                                       const TraceOptions& options) {
  if (const std::string_view what = no_text(text); !what.empty())
    return trace_error(name, 0, std::string(what));
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);  // spreadsheets mark UTF-8 so
  const TraceFormat format = options.format == TraceFormat::kAuto ? detect(text) : options.format;
  if (format == TraceFormat::kServegen || format == TraceFormat::kDecisionLog) {
    return trace_error(name, 0,
                       fmt::format("the format '{}' is a directory, not a file",
                                   kFormats[static_cast<std::size_t>(format)]));
  }
  base::Result<model::Trace> trace = [&] {
    switch (format) {
      case TraceFormat::kMooncake:
        return parse_mooncake(text, name, options);
      case TraceFormat::kAgentic:
        return parse_agentic(text, name, options);
      case TraceFormat::kAzure:
        return parse_azure(text, name, options);
      default:
        return parse_csv(text, name, options);
    }
  }();
  return finished(sliced(std::move(trace), name, options), name);
}

base::Result<model::Trace> read_trace(const std::string& path, const TraceOptions& options) {
  const bool wants_directory =
      options.format == TraceFormat::kServegen || options.format == TraceFormat::kDecisionLog;
  std::error_code ignored;
  if (wants_directory ||
      (options.format == TraceFormat::kAuto && std::filesystem::is_directory(path, ignored)))
    return read_directory(path, options);
  const auto bytes = read_file(path);
  if (!bytes) return tl::unexpected<base::Error>(bytes.error());
  return parse_trace({reinterpret_cast<const char*>(bytes->data()), bytes->size()}, path, options);
}

}  // namespace trimtab::io
