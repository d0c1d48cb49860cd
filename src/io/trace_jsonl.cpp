#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <map>
#include <string>

#include "io/trace_lines.h"
#include "io/trace_reader.h"

namespace trimtab::io {
namespace {

using base::Nanos;
namespace dom = simdjson::dom;

/// One line, with errors that name the field.
class JsonLine {
 public:
  JsonLine(const std::string& name, std::size_t number) : name_(name), number_(number) {}
  /// False: the line is not a JSON object.
  bool parse(dom::parser& parser, std::string_view line) {
    return parser.parse(line.data(), line.size()).get_object().get(object_) == simdjson::SUCCESS;
  }
  bool has(std::string_view key) const { return object_[key].error() == simdjson::SUCCESS; }
  base::Result<double> number(std::string_view key) const {
    double value = 0;
    if (object_[key].get_double().get(value) != simdjson::SUCCESS) return missing(key, "a number");
    return value;
  }
  base::Result<std::int64_t> integer(std::string_view key) const {
    std::int64_t value = 0;
    if (object_[key].get_int64().get(value) != simdjson::SUCCESS) return missing(key, "a whole number");
    return value;
  }
  base::Result<std::string> text(std::string_view key) const {
    std::string_view value;
    if (object_[key].get_string().get(value) != simdjson::SUCCESS) return missing(key, "a string");
    return std::string(value);
  }
  base::Result<dom::array> array(std::string_view key) const {
    dom::array value;
    if (object_[key].get_array().get(value) != simdjson::SUCCESS) return missing(key, "a list");
    return value;
  }

 private:
  tl::unexpected<base::Error> missing(std::string_view key, std::string_view kind) const {
    const bool there = has(key);
    return trace_error(name_, number_,
                       there ? fmt::format("\"{}\" is {}, not {}", key,
                                           std::string(simdjson::minify(object_[key].value())), kind)
                             : fmt::format("\"{}\" is missing: it should be {}", key, kind));
  }
  const std::string& name_;
  std::size_t number_;
  dom::object object_;
};

/// Adds a run, or lengthens the last one of this request.
void add_block(model::Trace& trace, model::TraceRequest& request, std::uint64_t id) {
  if (id != 0 && request.runs_count > 0 && trace.runs.back().first + trace.runs.back().count == id) {
    ++trace.runs.back().count;
    return;
  }
  trace.runs.push_back({id, 1});
  ++request.runs_count;
}

/// Arrivals that were recorded in steps, spread evenly over their step in the order of the file.
void spread(model::Trace& trace, Nanos step) {
  if (step.value <= 0) return;
  for (const model::TraceRequest& request : trace.requests) {
    if (request.arrival.value % step.value != 0) return;  // recorded finer than that
  }
  for (std::size_t begin = 0, end = 0; begin < trace.requests.size(); begin = end) {
    while (end < trace.requests.size() && trace.requests[end].arrival == trace.requests[begin].arrival) ++end;
    const auto count = static_cast<std::int64_t>(end - begin);
    for (std::int64_t i = 0; i < count; ++i) {
      trace.requests[begin + static_cast<std::size_t>(i)].arrival +=
          Nanos{step.value * (2 * i + 1) / (2 * count)};
    }
  }
}

/// Reads lines with `one` until the end; a last line that was cut short is a note.
template <class One>
base::Result<model::Trace> each_line(std::string_view text, const std::string& name,
                                     const TraceOptions& options, const One& one) {
  model::Trace trace;
  dom::parser parser;
  LineScanner lines(text);
  while (lines.next() && static_cast<std::int64_t>(trace.requests.size()) < options.requests_max) {
    if (lines.line().find_first_not_of(" \t") == std::string_view::npos) continue;
    JsonLine line(name, lines.number());
    if (!line.parse(parser, lines.line())) {
      if (lines.unfinished()) {
        trace.notes.push_back(cut_short_note(name, lines.number()));
        break;
      }
      return trace_error(name, lines.number(), "not a JSON object: one request a line is expected");
    }
    if (auto read = one(trace, line, lines.number()); !read) return tl::unexpected<base::Error>(read.error());
  }
  return trace;
}

base::Status mooncake_line(model::Trace& trace, const JsonLine& line, const std::string& name,
                           std::size_t number) {
  const auto at = line.number("timestamp");
  const auto prompt = line.integer("input_length");
  const auto output = line.integer("output_length");
  for (const base::Error* error :
       {at ? nullptr : &at.error(), prompt ? nullptr : &prompt.error(), output ? nullptr : &output.error()}) {
    if (error != nullptr) return tl::unexpected<base::Error>(*error);
  }
  TRIMTAB_TRY(check_request(name, number, *prompt, *output));
  const auto arrival = trace_time(name, number, "timestamp", *at, 1e6);
  if (!arrival) return tl::unexpected<base::Error>(arrival.error());
  model::TraceRequest request;
  request.arrival = *arrival;
  request.prompt_tokens = *prompt;
  request.output_tokens = *output;
  request.conversation = trace.conversations++;
  request.runs_begin = static_cast<std::uint32_t>(trace.runs.size());
  if (line.has("hash_ids")) {
    const auto ids = line.array("hash_ids");
    if (!ids) return tl::unexpected<base::Error>(ids.error());
    for (const dom::element id : *ids) {
      std::uint64_t value = 0;
      if (id.get_uint64().get(value) != simdjson::SUCCESS) {
        return trace_error(name, number,
                           "\"hash_ids\" holds something other than whole numbers that are not negative");
      }
      add_block(trace, request, value);
    }
  }
  trace.requests.push_back(request);
  return {};
}

/// Agents of one conversation run beside one another: each is a loop of its own, over the blocks of all.
struct Conversations {
  std::map<std::string, std::uint32_t, std::less<>> ids;     // by conversation and agent
  std::map<std::string, std::uint32_t, std::less<>> blocks;  // by conversation: whose block ids
  std::vector<std::uint32_t> turns;
  std::vector<Nanos> last;      // start of the turn before
  std::vector<Nanos> answered;  // its end, as far as it was recorded
  std::int64_t derived_thinks = 0;
};

/// The recorded pause; where the recorder has none, the gap since the answer before.
base::Result<Nanos> think_of(const JsonLine& line, const std::string& name, std::size_t number, Nanos gap,
                             Conversations& seen) {
  if (!line.has("think_s")) {
    ++seen.derived_thinks;
    return gap;
  }
  const auto think = line.number("think_s");
  if (!think) return tl::unexpected<base::Error>(think.error());
  return trace_time(name, number, "think_s", *think, 1e9);
}

base::Status agentic_line(model::Trace& trace, Conversations& seen, const JsonLine& line,
                          const std::string& name, std::size_t number) {
  const auto conversation = line.text("conversation");
  if (!conversation) return tl::unexpected<base::Error>(conversation.error());
  const auto prompt = line.integer("input_tokens");
  const auto output = line.integer("output_tokens");
  const auto start = line.number("t_s");
  const auto blocks = line.array("blocks");
  for (const base::Error* error : {prompt ? nullptr : &prompt.error(), output ? nullptr : &output.error(),
                                   start ? nullptr : &start.error(), blocks ? nullptr : &blocks.error()}) {
    if (error != nullptr) return tl::unexpected<base::Error>(*error);
  }
  TRIMTAB_TRY(check_request(name, number, *prompt, *output));
  const auto arrival = trace_time(name, number, "t_s", *start, 1e9);
  if (!arrival) return tl::unexpected<base::Error>(arrival.error());
  std::string agent;
  if (line.has("agent")) {
    const auto named = line.text("agent");
    if (!named) return tl::unexpected<base::Error>(named.error());
    agent = *named;
  }
  const auto [found, fresh] = seen.ids.emplace(*conversation + '\n' + agent, trace.conversations);
  const std::uint64_t space =
      seen.blocks.emplace(*conversation, static_cast<std::uint32_t>(seen.blocks.size())).first->second;
  if (fresh) {
    ++trace.conversations;
    seen.turns.push_back(0);
    seen.last.push_back(Nanos{});
    seen.answered.push_back(Nanos{});
  }
  const std::uint32_t id = found->second;
  if (*arrival < seen.last[id]) {
    return trace_error(
        name, number,
        fmt::format("t_s {} of conversation {} lies before the turn above it", *start, *conversation));
  }
  const auto think = think_of(line, name, number, std::max(Nanos{}, *arrival - seen.answered[id]), seen);
  if (!think) return tl::unexpected<base::Error>(think.error());
  const auto spent = line.has("api_s") ? line.number("api_s") : base::Result<double>(0.0);
  if (!spent) return tl::unexpected<base::Error>(spent.error());
  const auto answer = trace_time(name, number, "api_s", *spent, 1e9);
  if (!answer) return tl::unexpected<base::Error>(answer.error());
  seen.answered[id] = *arrival + *answer;
  seen.last[id] = *arrival;
  model::TraceRequest request;
  request.arrival = *arrival;
  request.think = *think;
  request.prompt_tokens = *prompt;
  request.output_tokens = *output;
  request.conversation = id;
  request.turn = seen.turns[id]++;
  request.runs_begin = static_cast<std::uint32_t>(trace.runs.size());
  for (const dom::element pair : *blocks) {
    std::uint64_t first = 0, count = 0;
    if (pair.at(0).get_uint64().get(first) != simdjson::SUCCESS ||
        pair.at(1).get_uint64().get(count) != simdjson::SUCCESS || first >> 32U != 0 || count > UINT32_MAX) {
      return trace_error(name, number, "\"blocks\" should be a list of [first, count] with 32-bit numbers");
    }
    // Ids are local to a conversation: the upper half keeps them apart.
    trace.runs.push_back({(space + 1) << 32U | first, static_cast<std::uint32_t>(count)});
    ++request.runs_count;
  }
  trace.requests.push_back(request);
  return {};
}

}  // namespace

base::Result<model::Trace> parse_mooncake(std::string_view text, const std::string& name,
                                          const TraceOptions& options) {
  auto trace =
      each_line(text, name, options, [&](model::Trace& into, const JsonLine& line, std::size_t number) {
        return mooncake_line(into, line, name, number);
      });
  if (!trace) return trace;
  trace->block_tokens = options.block_tokens > 0 ? options.block_tokens : 512;
  std::ranges::stable_sort(trace->requests, {}, &model::TraceRequest::arrival);
  spread(*trace, Nanos{options.step_ms * 1'000'000});
  return trace;
}

base::Result<model::Trace> parse_agentic(std::string_view text, const std::string& name,
                                         const TraceOptions& options) {
  Conversations seen;
  auto trace =
      each_line(text, name, options, [&](model::Trace& into, const JsonLine& line, std::size_t number) {
        return agentic_line(into, seen, line, name, number);
      });
  if (!trace) return trace;
  trace->closed_loop = true;
  if (seen.derived_thinks > 0) {
    trace->notes.push_back(
        fmt::format("{}: {} turns have no think_s: the gap since the answer before stands for it", name,
                    seen.derived_thinks));
  }
  trace->block_tokens = options.block_tokens > 0 ? options.block_tokens : 64;
  std::ranges::stable_sort(trace->requests, [](const model::TraceRequest& a, const model::TraceRequest& b) {
    return std::pair(a.conversation, a.turn) < std::pair(b.conversation, b.turn);
  });
  return trace;
}

}  // namespace trimtab::io
