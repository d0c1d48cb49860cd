#include "io/servegen_model.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "io/record_file.h"
#include "io/trace_lines.h"

namespace trimtab::io {
namespace {

namespace dom = simdjson::dom;
constexpr double kTimeMaxS = 100.0 * 365 * 86'400;
constexpr double kRateMax = 1e6;             // of one client, per second
constexpr double kVariationMax = 100;        // beyond it a window is one burst
constexpr std::int64_t kImagesMax = 10'000;  // of one request

/// "{136: 0.25, 372: 0.75}". `what` names it in errors.
base::Result<LengthTable> parse_table(std::string_view text, const std::string& name, const std::string& what,
                                      std::int64_t most) {
  const auto bad = [&](const std::string& why) {
    return trace_error(
        name, 0,
        fmt::format("{}: {}; a table reads {{length: probability, length: probability}}", what, why));
  };
  std::vector<std::pair<std::uint32_t, double>> entries;
  if (text.size() < 2 || text.front() != '{' || text.back() != '}') return bad("there are no braces");
  text = text.substr(1, text.size() - 2);
  if (text.find_first_not_of(' ') == std::string_view::npos) return LengthTable{};
  for (const std::string_view entry : fields_of(text)) {
    const std::size_t colon = entry.find(':');
    const auto value = to_number(entry.substr(0, colon));
    std::string_view after = colon == std::string_view::npos ? std::string_view{} : entry.substr(colon + 1);
    after.remove_prefix(std::min(after.find_first_not_of(' '), after.size()));
    const auto weight = to_number(after);
    if (!value || !weight) return bad(fmt::format("'{}' is no entry", entry));
    if (!(*value >= 0 && *value <= static_cast<double>(most)) || *value != std::floor(*value))
      return bad(fmt::format("a length of {} (0 to {} is possible)", *value, most));
    if (!(*weight >= 0) || !std::isfinite(*weight)) return bad(fmt::format("a probability of {}", *weight));
    entries.emplace_back(static_cast<std::uint32_t>(*value), *weight);
  }
  LengthTable table(entries);
  if (table.empty()) return bad("all probabilities are 0");
  return table;
}

base::Result<ServegenLengths> lengths_of(const dom::object& window, double begin_s, const std::string& name) {
  ServegenLengths lengths;
  lengths.begin_s = begin_s;
  const auto table = [&](std::string_view key, LengthTable& into) -> base::Status {
    std::string_view text;
    const std::string what = fmt::format("window {}, \"{}\"", begin_s, key);
    if (window[key].get_string().get(text) != simdjson::SUCCESS)
      return trace_error(name, 0, what + " is missing or is no text");
    auto parsed = parse_table(text, name, what, key == "image_count" ? kImagesMax : kTraceTokensMax);
    if (!parsed) return tl::unexpected<base::Error>(parsed.error());
    into = std::move(*parsed);
    return {};
  };
  const bool images = window["image_tokens"].error() == simdjson::SUCCESS;
  TRIMTAB_TRY(table(window["text_tokens"].error() == simdjson::SUCCESS ? "text_tokens" : "input_tokens",
                    lengths.text));
  TRIMTAB_TRY(table("output_tokens", lengths.output));
  if (!images) return lengths;
  TRIMTAB_TRY(table("image_tokens", lengths.image));
  TRIMTAB_TRY(table("image_count", lengths.images));
  return lengths;
}

/// Windows end where the next begins; the last is as long as the one before it.
void close_windows(std::vector<ServegenWindow>& windows) {
  for (std::size_t i = 0; i + 1 < windows.size(); ++i) windows[i].end_s = windows[i + 1].begin_s;
  const std::size_t count = windows.size();
  constexpr double kAloneS = 600;
  const double length = count > 1 ? windows[count - 2].end_s - windows[count - 2].begin_s : kAloneS;
  if (count > 0) windows.back().end_s = windows.back().begin_s + length;
}

base::Result<ServegenWindow> window_of(const std::vector<std::string_view>& fields, const std::string& name,
                                       std::size_t line) {
  const auto number = [&](std::size_t field, std::string_view what, double most) -> base::Result<double> {
    const auto value = to_number(fields[field]);
    if (!value || !(*value >= 0 && *value <= most))
      return trace_error(name, line,
                         fmt::format("{} is '{}': 0 to {:g} is possible", what, fields[field], most));
    return *value;
  };
  const auto begin = number(0, "the window's begin in s", kTimeMaxS);
  const auto rate = number(1, "the rate in 1/s", kRateMax);
  const auto variation = number(2, "the coefficient of variation", kVariationMax);
  for (const auto* value : {&begin, &rate, &variation}) {
    if (!*value) return tl::unexpected<base::Error>(value->error());
  }
  ServegenWindow window;
  window.begin_s = *begin;
  window.rate = *rate;
  if (*rate == 0) return window;
  const std::string_view shape = fields[3];
  if (shape == "Gamma") {
    if (*variation <= 0) return trace_error(name, line, "gaps that do not vary at all are no Gamma gaps");
    window.shape = GapShape::kGamma;
    window.k = 1 / (*variation * *variation);
  } else if (shape == "Weibull") {
    const auto k = number(4, "the shape of Weibull", 1e3);
    if (!k) return tl::unexpected<base::Error>(k.error());
    if (*k < 0.05)
      return trace_error(name, line, fmt::format("the shape of Weibull is {}: 0.05 or more is possible", *k));
    window.shape = GapShape::kWeibull;
    window.k = *k;
  } else if (!shape.empty() && shape != "Exponential") {
    return trace_error(name, line,
                       fmt::format("'{}' is no distribution of gaps: Gamma, Weibull or Exponential", shape));
  }
  return window;
}

}  // namespace

LengthTable::LengthTable(const std::vector<std::pair<std::uint32_t, double>>& entries) {
  double sum = 0, weighted = 0;
  for (const auto& [value, weight] : entries) {
    if (weight <= 0) continue;
    sum += weight;
    weighted += weight * value;
    values_.push_back(value);
    cumulated_.push_back(sum);
  }
  mean_ = sum > 0 ? weighted / sum : 0;
}

std::uint32_t LengthTable::draw(base::Prng& prng) const {
  const double at = prng.uniform() * cumulated_.back();
  const auto found = std::ranges::upper_bound(cumulated_, at) - cumulated_.begin();
  return values_[std::min(static_cast<std::size_t>(found), values_.size() - 1)];
}

base::Result<std::vector<ServegenWindow>> parse_servegen_windows(std::string_view text,
                                                                 const std::string& name,
                                                                 std::vector<std::string>& notes) {
  std::vector<ServegenWindow> windows;
  LineScanner lines(text);
  while (lines.next()) {
    if (lines.line().empty()) continue;
    const auto fields = fields_of(lines.line());
    if (fields.size() != 6) {
      if (lines.unfinished() && fields.size() < 6) {
        notes.push_back(cut_short_note(name, lines.number()));
        break;
      }
      return trace_error(
          name, lines.number(),
          fmt::format("{} fields: a window has 6 (begin s, rate, variation, distribution, its two "
                      "parameters)",
                      fields.size()));
    }
    const auto window = window_of(fields, name, lines.number());
    if (!window) return tl::unexpected<base::Error>(window.error());
    if (!windows.empty() && window->begin_s <= windows.back().begin_s) {
      return trace_error(name, lines.number(),
                         fmt::format("the window begins at {} s, not after the one above it ({} s)",
                                     window->begin_s, windows.back().begin_s));
    }
    windows.push_back(*window);
  }
  close_windows(windows);
  return windows;
}

base::Result<std::vector<ServegenLengths>> parse_servegen_lengths(std::string_view text,
                                                                  const std::string& name) {
  dom::parser parser;
  dom::object windows;
  if (parser.parse(text.data(), text.size()).get_object().get(windows) != simdjson::SUCCESS)
    return trace_error(name, 0, "not a JSON object of windows");
  std::vector<ServegenLengths> all;
  for (const auto [key, value] : windows) {
    const auto begin = to_number(key);
    dom::object window;
    if (!begin || !(*begin >= 0 && *begin <= kTimeMaxS) ||
        value.get_object().get(window) != simdjson::SUCCESS)
      return trace_error(name, 0, fmt::format("\"{}\" is no window: its begin in s, and an object", key));
    auto lengths = lengths_of(window, *begin, name);
    if (!lengths) return tl::unexpected<base::Error>(lengths.error());
    all.push_back(std::move(*lengths));
  }
  std::ranges::stable_sort(all, {}, &ServegenLengths::begin_s);
  return all;
}

base::Result<std::vector<ServegenClient>> read_servegen(const std::string& directory) {
  constexpr std::string_view kEnd = "-trace.csv";
  std::error_code error;
  std::set<std::pair<std::size_t, std::string>> names;  // chunk-2 before chunk-10: shorter names first
  for (std::filesystem::directory_iterator at(directory, error), end; !error && at != end;
       at.increment(error)) {
    const std::string file = at->path().filename().string();
    if (file.ends_with(kEnd)) names.emplace(file.size(), file.substr(0, file.size() - kEnd.size()));
  }
  if (error) return trace_error(directory, 0, "cannot be listed: " + error.message());
  if (names.empty())
    return trace_error(directory, 0,
                       "there is no *-trace.csv in it: a directory of ServeGen client models has them");
  const auto text_of = [](const std::vector<std::byte>& bytes) {
    return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  std::vector<ServegenClient> clients;
  for (const auto& [length, name] : names) {
    ServegenClient client{name, {}, {}, {}};
    const std::string stem = (std::filesystem::path(directory) / name).string();
    const auto csv = read_file(stem + std::string(kEnd));
    if (!csv) return tl::unexpected<base::Error>(csv.error());
    auto windows = parse_servegen_windows(text_of(*csv), stem + std::string(kEnd), client.notes);
    if (!windows) return tl::unexpected<base::Error>(windows.error());
    client.windows = std::move(*windows);
    const auto json = read_file(stem + "-dataset.json");
    if (!json && json.error().code != base::Code::kNotFound) return tl::unexpected<base::Error>(json.error());
    if (json) {
      auto lengths = parse_servegen_lengths(text_of(*json), stem + "-dataset.json");
      if (!lengths) return tl::unexpected<base::Error>(lengths.error());
      client.lengths = std::move(*lengths);
    }
    clients.push_back(std::move(client));
  }
  return clients;
}

}  // namespace trimtab::io
