#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>

#include "base/nearest.h"
#include "io/trace_lines.h"
#include "io/trace_reader.h"

namespace trimtab::io {
namespace {

using base::Nanos;

std::string_view trimmed(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '"'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

}  // namespace

std::vector<std::string_view> fields_of(std::string_view line) {
  std::vector<std::string_view> fields;
  bool quoted = false;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '"') quoted = !quoted;
    if (line[i] != ',' || quoted) continue;
    fields.push_back(trimmed(line.substr(begin, i - begin)));
    begin = i + 1;
  }
  fields.push_back(trimmed(line.substr(begin)));
  return fields;
}

std::optional<double> to_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

namespace {

/// Days since 1970-01-01 of a date of the Gregorian calendar (Hinnant's days_from_civil).
std::int64_t days_from_civil(std::int64_t year, std::int64_t month, std::int64_t day) {
  year -= month <= 2 ? 1 : 0;
  const std::int64_t era = (year >= 0 ? year : year - 399) / 400;
  const std::int64_t of_era = year - era * 400;
  const std::int64_t of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
  return era * 146'097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719'468;
}

/// "2023-11-16 18:17:03.9799600" or "2023-11-16T18:17:03Z" to seconds since 1970.
std::optional<double> timestamp_seconds(std::string_view text) {
  if (text.ends_with('Z')) text.remove_suffix(1);
  if (text.size() < 19 || text[4] != '-' || text[7] != '-' || text[13] != ':' || text[16] != ':')
    return std::nullopt;
  const auto part = [&](std::size_t from, std::size_t length) {
    return to_number(text.substr(from, length));
  };
  const auto year = part(0, 4), month = part(5, 2), day = part(8, 2), hour = part(11, 2),
             minute = part(14, 2);
  const auto second = part(17, text.size() - 17);
  if (!year || !month || !day || !hour || !minute || !second) return std::nullopt;
  const std::int64_t days = days_from_civil(
      static_cast<std::int64_t>(*year), static_cast<std::int64_t>(*month), static_cast<std::int64_t>(*day));
  return static_cast<double>(days) * 86'400 + *hour * 3'600 + *minute * 60 + *second;
}

/// A csv with a header: where the named columns are.
class Table {
 public:
  Table(std::string_view text, const std::string& name) : lines_(text), name_(name) {
    while (lines_.next() && lines_.line().empty()) {
    }
    header_ = fields_of(lines_.line());
  }
  /// `option`: the one that names another column; empty where the format fixes the names.
  base::Result<std::size_t> column(std::string_view wanted, std::string_view option) const {
    const auto found = std::ranges::find(header_, wanted);
    if (found != header_.end()) return static_cast<std::size_t>(found - header_.begin());
    if (header_.size() == 1 && header_[0].find_first_of(";\t") != std::string_view::npos) {
      return trace_error(
          name_, lines_.number(),
          fmt::format("the header has one column, '{}': fields are separated by commas, not by {}",
                      header_[0], header_[0].find(';') != std::string_view::npos ? "semicolons" : "tabs"));
    }
    const std::string close = base::nearest(wanted, header_);
    return trace_error(name_, lines_.number(),
                       fmt::format("there is no column '{}'{}: the header has {}{}", wanted,
                                   close.empty() ? "" : fmt::format(" (did you mean '{}'?)", close),
                                   fmt::join(header_, ", "),
                                   option.empty() ? "" : fmt::format("; {} names another", option)));
  }
  /// The next row with something in it.
  bool next() {
    while (lines_.next()) {
      if (lines_.line().empty()) continue;
      fields_ = fields_of(lines_.line());
      return true;
    }
    return false;
  }
  bool whole() const { return fields_.size() >= header_.size(); }
  /// More fields than the header has columns: a comma within a number would move every later value.
  bool overflows() const {
    return fields_.size() > header_.size() &&
           std::any_of(fields_.begin() + static_cast<std::ptrdiff_t>(header_.size()), fields_.end(),
                       [](std::string_view field) { return !field.empty(); });
  }
  bool unfinished() const { return lines_.unfinished(); }
  std::size_t number() const { return lines_.number(); }
  std::string_view field(std::size_t column) const { return fields_[column]; }
  std::size_t fields() const { return fields_.size(); }
  std::size_t columns() const { return header_.size(); }
  const std::string& name() const { return name_; }

 private:
  LineScanner lines_;
  const std::string& name_;
  std::vector<std::string_view> header_, fields_;
};

struct Places {
  std::size_t arrival = 0, prompt = 0, output = 0;
  std::optional<std::size_t> conversation;
};

base::Result<Places> places_of(const Table& table, const CsvColumns& columns, bool named) {
  Places places;
  for (const auto& [name, place, option] : {std::tuple(&columns.arrival, &places.arrival, "--csv-arrival"),
                                            std::tuple(&columns.prompt, &places.prompt, "--csv-prompt"),
                                            std::tuple(&columns.output, &places.output, "--csv-output")}) {
    const auto found = table.column(*name, named ? option : "");
    if (!found) return tl::unexpected<base::Error>(found.error());
    *place = *found;
  }
  if (!columns.conversation.empty()) {
    const auto found = table.column(columns.conversation, "");
    if (!found) return tl::unexpected<base::Error>(found.error());
    places.conversation = *found;
  }
  return places;
}

base::Result<std::int64_t> tokens(const Table& table, std::size_t column) {
  const auto value = to_number(table.field(column));
  if (!value || *value != std::floor(*value) || std::abs(*value) > 1e15) {
    return trace_error(table.name(), table.number(),
                       fmt::format("'{}' is no whole number of tokens", table.field(column)));
  }
  return static_cast<std::int64_t>(*value);
}

/// `clock` turns the arrival field into seconds; `named`: the columns' names are the caller's.
template <class Clock>
base::Result<model::Trace> read_table(std::string_view text, const std::string& name,
                                      const TraceOptions& options, const CsvColumns& columns, bool named,
                                      const Clock& clock) {
  Table table(text, name);
  const auto places = places_of(table, columns, named);
  if (!places) return tl::unexpected<base::Error>(places.error());
  model::Trace trace;
  std::map<std::string, std::uint32_t, std::less<>> conversations;
  std::optional<double> first;
  std::vector<double> arrivals;
  while (static_cast<std::int64_t>(trace.requests.size()) < options.requests_max && table.next()) {
    if (!table.whole()) {
      if (table.unfinished()) {
        trace.notes.push_back(cut_short_note(name, table.number()));
        break;
      }
      return trace_error(name, table.number(),
                         fmt::format("{} fields, the header has {}", table.fields(), table.columns()));
    }
    if (table.overflows()) {
      return trace_error(name, table.number(),
                         fmt::format("{} fields, the header has {}: is there a comma within a number? Quote "
                                     "the field, or write a point",
                                     table.fields(), table.columns()));
    }
    const auto at = clock(table.field(places->arrival));
    if (!at || !std::isfinite(*at)) {
      return trace_error(name, table.number(),
                         fmt::format("'{}' is no time: a number, or a date like 2026-01-31 18:17:03.5",
                                     table.field(places->arrival)));
    }
    const auto prompt = tokens(table, places->prompt);
    const auto output = tokens(table, places->output);
    if (!prompt) return tl::unexpected<base::Error>(prompt.error());
    if (!output) return tl::unexpected<base::Error>(output.error());
    TRIMTAB_TRY(check_request(name, table.number(), *prompt, *output));
    model::TraceRequest request;
    request.prompt_tokens = *prompt;
    request.output_tokens = *output;
    request.conversation = trace.conversations;
    if (places->conversation) {
      request.conversation =
          conversations.emplace(table.field(*places->conversation), trace.conversations).first->second;
    }
    if (request.conversation == trace.conversations) ++trace.conversations;
    first = std::min(first.value_or(*at), *at);
    arrivals.push_back(*at);
    trace.requests.push_back(request);
  }
  for (std::size_t i = 0; i < arrivals.size(); ++i) {
    const auto arrival = trace_time(name, 0, "the span of arrivals", arrivals[i] - *first, 1e9);
    if (!arrival) return tl::unexpected<base::Error>(arrival.error());
    trace.requests[i].arrival = *arrival;
  }
  std::ranges::stable_sort(trace.requests, {}, &model::TraceRequest::arrival);
  return trace;
}

}  // namespace

base::Result<model::Trace> parse_azure(std::string_view text, const std::string& name,
                                       const TraceOptions& options) {
  const CsvColumns columns{"TIMESTAMP", "ContextTokens", "GeneratedTokens", "", 1.0};
  return read_table(text, name, options, columns, false, timestamp_seconds);
}

base::Result<model::Trace> parse_csv(std::string_view text, const std::string& name,
                                     const TraceOptions& options) {
  const double unit = options.columns.arrival_unit_s;
  if (!std::isfinite(unit) || unit <= 0) {
    return trace_error(name, 0, fmt::format("an arrival unit of {} s: it must be positive", unit));
  }
  return read_table(text, name, options, options.columns, true,
                    [unit](std::string_view field) -> std::optional<double> {
                      const auto value = to_number(field);
                      if (!value) return timestamp_seconds(field);
                      return *value * unit;
                    });
}

}  // namespace trimtab::io
