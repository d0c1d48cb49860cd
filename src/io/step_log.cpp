#include "io/step_log.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

#include "base/nearest.h"
#include "io/decision_log.h"
#include "io/record_file.h"
#include "io/trace_lines.h"

namespace trimtab::io {

namespace {

using base::Nanos;
using base::TokenCount;
using nlohmann::json;
using policy::SampleChunk;
using policy::StepSample;

struct Unit {
  std::string_view name;
  double ns;
};
constexpr Unit kUnits[] = {{"actual_ns", 1}, {"actual_us", 1e3}, {"actual_ms", 1e6}, {"actual_s", 1e9}};
constexpr double kActualMaxNs = 3600e9;  // an hour

/// One row: a chunk, or a whole step, and which step it belongs to.
struct Row {
  std::vector<SampleChunk> chunks;
  Nanos actual;
  std::optional<std::string> key;  // rows of one key are one step; none: a step by itself
};

base::Status check_chunk(const std::string& name, std::size_t line, double tokens, double computed) {
  const auto is_count = [](double value, double least) {
    return value >= least && value <= static_cast<double>(kTraceTokensMax) && value == std::floor(value);
  };
  if (!is_count(tokens, 1))
    return trace_error(name, line,
                       fmt::format("tokens is {}: a chunk computes 1 to {}", tokens, kTraceTokensMax));
  if (!is_count(computed, 0)) {
    return trace_error(
        name, line,
        fmt::format("computed is {}: 0 to {} tokens come before a chunk", computed, kTraceTokensMax));
  }
  return {};
}

base::Result<Nanos> actual_of(const std::string& name, std::size_t line, std::string_view field, double value,
                              double unit_ns) {
  const double ns = value * unit_ns;
  if (!(ns >= 1 && ns <= kActualMaxNs))
    return trace_error(name, line,
                       fmt::format("{} is {}: a step takes more than 0 and at most an hour", field, value));
  return Nanos{std::llround(ns)};
}

/// Gathers rows to steps.
class Steps {
 public:
  base::Status add(const std::string& name, std::size_t line, Row row) {
    if (row.key) {
      const auto [at, fresh] = index_.try_emplace(*row.key, log.steps.size());
      if (!fresh) {
        StepSample& step = log.steps[at->second];
        if (step.actual != row.actual) {
          return trace_error(
              name, line,
              fmt::format("step {} takes {} ns here and {} ns in an earlier row; chunks of one step "
                          "share its time, so give other steps (engines, ranks) other numbers",
                          *row.key, row.actual.value, step.actual.value));
        }
        step.chunks.insert(step.chunks.end(), row.chunks.begin(), row.chunks.end());
        return {};
      }
    }
    log.steps.push_back({std::move(row.chunks), row.actual});
    return {};
  }
  StepLog log;

 private:
  std::map<std::string, std::size_t> index_;
};

// --- JSON lines
// ---------------------------------------------------------------------------------------------

base::Result<double> number_of(const std::string& name, std::size_t line, const json& object,
                               const char* field) {
  const auto at = object.find(field);
  if (at == object.end())
    return trace_error(name, line, fmt::format("no \"{}\": a chunk has \"tokens\" and \"computed\"", field));
  if (!at->is_number())
    return trace_error(name, line, fmt::format("\"{}\" is {}: it must be a number", field, at->dump()));
  return at->get<double>();
}

base::Result<SampleChunk> chunk_of(const std::string& name, std::size_t line, const json& object) {
  if (!object.is_object())
    return trace_error(name, line, fmt::format("a chunk is {}: it must be an object", object.dump()));
  const auto tokens = number_of(name, line, object, "tokens"),
             computed = number_of(name, line, object, "computed");
  if (!tokens) return tl::unexpected(tokens.error());
  if (!computed) return tl::unexpected(computed.error());
  TRIMTAB_TRY(check_chunk(name, line, *tokens, *computed));
  return SampleChunk{TokenCount{std::llround(*tokens)}, TokenCount{std::llround(*computed)}};
}

base::Result<Row> row_of(const std::string& name, std::size_t line, const json& object) {
  Row row;
  if (const auto chunks = object.find("chunks"); chunks != object.end()) {
    if (!chunks->is_array() || chunks->empty())
      return trace_error(name, line, "\"chunks\" must be a list of at least one chunk");
    for (const json& part : *chunks) {
      auto chunk = chunk_of(name, line, part);
      if (!chunk) return tl::unexpected(chunk.error());
      row.chunks.push_back(*chunk);
    }
  } else {
    auto chunk = chunk_of(name, line, object);
    if (!chunk) return tl::unexpected(chunk.error());
    row.chunks.push_back(*chunk);
  }
  for (const Unit& unit : kUnits) {
    const auto at = object.find(unit.name);
    if (at == object.end()) continue;
    if (!at->is_number())
      return trace_error(name, line, fmt::format("\"{}\" is {}: it must be a number", unit.name, at->dump()));
    auto actual = actual_of(name, line, unit.name, at->get<double>(), unit.ns);
    if (!actual) return tl::unexpected(actual.error());
    row.actual = *actual;
  }
  if (row.actual.value == 0)
    return trace_error(name, line, "no time: give \"actual_ms\" (or _ns, _us, _s), what the whole step took");
  if (object.contains("step")) {
    row.key = fmt::format("{} {} {}", object.value("engine", json()).dump(),
                          object.value("rank", json()).dump(), object["step"].dump());
  }
  return row;
}

base::Result<StepLog> parse_json_lines(std::string_view text, const std::string& name) {
  Steps steps;
  for (LineScanner lines(text); lines.next();) {
    if (lines.line().empty()) continue;
    const json object = json::parse(lines.line(), nullptr, /*allow_exceptions=*/false);
    if (object.is_discarded() && lines.unfinished()) {
      steps.log.last_line_torn = true;
      break;
    }
    if (!object.is_object())
      return trace_error(name, lines.number(), "not a JSON object; each line is one step or chunk");
    auto row = row_of(name, lines.number(), object);
    if (!row) return tl::unexpected(row.error());
    TRIMTAB_TRY(steps.add(name, lines.number(), std::move(*row)));
  }
  return std::move(steps.log);
}

// --- CSV
// ----------------------------------------------------------------------------------------------------

std::vector<std::string_view> cells_of(std::string_view line) {
  std::vector<std::string_view> cells;
  const auto trim = [](std::string_view cell) {
    const std::size_t first = cell.find_first_not_of(" \t\"");
    if (first == std::string_view::npos) return std::string_view{};
    return cell.substr(first, cell.find_last_not_of(" \t\"") - first + 1);
  };
  for (;;) {
    const std::size_t comma = line.find(',');
    cells.push_back(trim(line.substr(0, comma)));
    if (comma == std::string_view::npos) return cells;
    line.remove_prefix(comma + 1);
  }
}

struct Columns {
  std::map<std::string, std::size_t, std::less<>> by_name;
  std::size_t count = 0, time = 0;
  Unit unit{};
};

base::Result<Columns> columns_of(const std::string& name, std::size_t line, std::string_view header) {
  Columns columns;
  for (const std::string_view cell : cells_of(header)) columns.by_name.emplace(cell, columns.count++);
  for (const std::string_view needed : {"tokens", "computed"}) {
    if (!columns.by_name.contains(needed)) {
      return trace_error(name, line,
                         fmt::format("no column \"{}\" in the header \"{}\"; needed are tokens, computed and "
                                     "actual_ms (or _ns, _us, _s)",
                                     needed, header));
    }
  }
  for (const Unit& unit : kUnits) {
    if (const auto at = columns.by_name.find(unit.name); at != columns.by_name.end()) {
      columns.time = at->second;
      columns.unit = unit;
    }
  }
  if (columns.unit.ns == 0) {
    return trace_error(name, line,
                       fmt::format("no column with the step's time in the header \"{}\"; call it "
                                   "actual_ms, _ns, _us or _s",
                                   header));
  }
  return columns;
}

base::Result<Row> row_of(const std::string& name, std::size_t line, const Columns& columns,
                         const std::vector<std::string_view>& cells) {
  if (cells.size() != columns.count)
    return trace_error(name, line, fmt::format("{} cells under {} columns", cells.size(), columns.count));
  const auto number = [&](std::size_t column) -> base::Result<double> {
    const std::string_view cell = cells[column];
    double value = 0;
    const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
    if (error != std::errc{} || end != cell.data() + cell.size())
      return trace_error(name, line, fmt::format("\"{}\" is not a number", cell));
    return value;
  };
  const auto tokens = number(columns.by_name.find("tokens")->second);
  const auto computed = number(columns.by_name.find("computed")->second);
  const auto time = number(columns.time);
  for (const auto* value : {&tokens, &computed, &time})
    if (!*value) return tl::unexpected(value->error());
  TRIMTAB_TRY(check_chunk(name, line, *tokens, *computed));
  auto actual = actual_of(name, line, columns.unit.name, *time, columns.unit.ns);
  if (!actual) return tl::unexpected(actual.error());
  Row row{{{TokenCount{std::llround(*tokens)}, TokenCount{std::llround(*computed)}}}, *actual, {}};
  if (columns.by_name.contains("step")) {
    row.key.emplace();
    for (const char* part : {"engine", "rank", "step"}) {
      if (const auto at = columns.by_name.find(part); at != columns.by_name.end())
        *row.key += fmt::format("{}{}", row.key->empty() ? "" : " ", cells[at->second]);
    }
  }
  return row;
}

base::Result<StepLog> parse_csv_steps(std::string_view text, const std::string& name) {
  Steps steps;
  std::optional<Columns> columns;
  for (LineScanner lines(text); lines.next();) {
    if (lines.line().empty()) continue;
    if (!columns) {
      auto header = columns_of(name, lines.number(), lines.line());
      if (!header) return tl::unexpected(header.error());
      columns = std::move(*header);
      continue;
    }
    auto row = row_of(name, lines.number(), *columns, cells_of(lines.line()));
    if (!row && lines.unfinished()) {
      steps.log.last_line_torn = true;
      break;
    }
    if (!row) return tl::unexpected(row.error());
    TRIMTAB_TRY(steps.add(name, lines.number(), std::move(*row)));
  }
  return std::move(steps.log);
}

// --- Decision log
// -------------------------------------------------------------------------------------------

/// A step's chunks come from the records of their requests; a sampled log lacks some of them. What the
/// prediction of the step exceeds those of its chunks by is the step's fixed part, the same for every
/// complete step of one cost model.
base::Result<StepLog> read_decision_steps(const std::string& directory) {
  struct Seen {
    StepSample sample;
    std::int64_t unexplained_ns = 0;
  };
  std::vector<Seen> seen;
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint64_t, std::int64_t, std::int64_t>, std::size_t>
      index;
  const auto scan = read_log(directory, [&](const Entry& entry) {
    const auto* record = std::get_if<cluster::Record>(&entry.body);
    const auto* chunk = record == nullptr ? nullptr : std::get_if<cluster::ChunkRecord>(&record->body);
    if (chunk == nullptr || chunk->actual.value <= 0 || chunk->tokens.value <= 0) return;
    const auto [at, fresh] = index.try_emplace({chunk->rank.engine.value, chunk->rank.rank, chunk->step,
                                                chunk->actual.value, chunk->step_predicted.value},
                                               seen.size());
    if (fresh) seen.push_back({{{}, chunk->actual}, chunk->step_predicted.value});
    Seen& step = seen[at->second];
    step.sample.chunks.push_back({chunk->tokens, chunk->computed});
    step.unexplained_ns -= chunk->predicted.value;
  });
  if (!scan) return tl::unexpected(scan.error());
  std::map<std::int64_t, std::size_t> by_unexplained;
  for (const Seen& step : seen) ++by_unexplained[step.unexplained_ns];
  StepLog log;
  log.last_line_torn = scan->bytes_torn > 0;
  for (Seen& step : seen) {
    // A cluster that was calibrated anew has two fixed parts; missing chunks are not alike so often.
    const std::size_t alike = by_unexplained[step.unexplained_ns];
    const bool is_fixed_part =
        step.unexplained_ns == by_unexplained.begin()->first || (alike >= 10 && alike * 10 >= seen.size());
    if (is_fixed_part) {
      log.steps.push_back(std::move(step.sample));
    } else {
      ++log.steps_partial;
    }
  }
  return log;
}

}  // namespace

base::Result<StepLog> parse_step_log(std::string_view text, const std::string& name) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos)
    return trace_error(name, 0, "no step in it; record some (docs/policies/cost.md says in which form)");
  return text[first] == '{' ? parse_json_lines(text, name) : parse_csv_steps(text, name);
}

base::Result<StepLog> read_step_log(const std::string& path) {
  if (std::error_code error; std::filesystem::is_directory(path, error)) return read_decision_steps(path);
  const auto bytes = read_file(path);
  if (!bytes) return tl::unexpected(bytes.error());
  return parse_step_log({reinterpret_cast<const char*>(bytes->data()), bytes->size()}, path);
}

}  // namespace trimtab::io
