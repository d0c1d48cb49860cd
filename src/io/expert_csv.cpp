#include "io/expert_csv.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <optional>
#include <string_view>

namespace trimtab::io {

namespace {

constexpr std::size_t kLineBytesMax = 4U << 20;
constexpr std::int64_t kExpertsMax = 65'536;

tl::unexpected<base::Error> bad(std::string message) {
  return base::fail(base::Code::kInvalidArgument, std::move(message), "csv");
}

std::string quoted(std::string_view text) {
  std::string out(text.substr(0, 40));
  for (char& c : out) {
    if (c < ' ' || c > '~') c = '?';
  }
  return text.size() > 40 ? out + "..." : out;
}

std::string_view trimmed(std::string_view field) {
  while (!field.empty() && (field.front() == ' ' || field.front() == '"')) field.remove_prefix(1);
  while (!field.empty() && (field.back() == ' ' || field.back() == '"')) field.remove_suffix(1);
  return field;
}

std::optional<double> number(std::string_view field) {
  if (field.starts_with('+')) field.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value);
  if (field.empty() || error != std::errc{} || end != field.data() + field.size()) return std::nullopt;
  return value;
}

/// Lines of a source, one at a time.
class Lines {
 public:
  explicit Lines(ByteSource& source) : source_(source) {}

  /// False at the end. `ended()` says whether the line had a line end.
  base::Result<bool> next(std::string& line) {
    line.clear();
    while (true) {
      const std::string_view rest = std::string_view(buffer_).substr(at_, filled_ - at_);
      const std::size_t end = rest.find('\n');
      line.append(rest.substr(0, end));
      if (line.size() > kLineBytesMax) {
        return bad(
            fmt::format("line {} has more than {} bytes; is this a CSV file?", number_ + 1, kLineBytesMax));
      }
      if (end != std::string_view::npos) {
        at_ += end + 1;
        ended_ = true;
        break;
      }
      at_ = 0;
      const auto got = source_.read(std::as_writable_bytes(std::span(buffer_)));
      if (!got) return tl::unexpected(got.error());
      filled_ = *got;
      if (filled_ == 0) {
        if (line.empty()) return false;
        ended_ = false;
        break;
      }
    }
    ++number_;
    if (number_ == 1 && line.starts_with("\xEF\xBB\xBF")) line.erase(0, 3);
    if (line.ends_with('\r')) line.pop_back();
    return true;
  }

  /// The next line that holds fields; comments and empty lines are passed over.
  base::Result<bool> next_row(std::string& line) {
    while (true) {
      const auto got = next(line);
      if (!got || !*got) return got;
      const std::string_view text = trimmed(line);
      if (!text.empty() && text.front() != '#') return true;
    }
  }

  std::int64_t number() const { return number_; }
  bool ended() const { return ended_; }

 private:
  ByteSource& source_;
  std::string buffer_ = std::string(1U << 16, '\0');
  std::size_t at_ = 0, filled_ = 0;
  std::int64_t number_ = 0;
  bool ended_ = true;
};

std::vector<std::string_view> split(std::string_view line, char separator) {
  std::vector<std::string_view> out;
  while (true) {
    const std::size_t end = line.find(separator);
    out.push_back(trimmed(line.substr(0, end)));
    if (end == std::string_view::npos) return out;
    line.remove_prefix(end + 1);
  }
}

/// What the columns mean; -1: not there.
struct Header {
  std::int32_t step = -1, layer = -1, expert = -1, count = -1;
  std::vector<std::int32_t> wide;  // column of each expert
  bool named = false;
  std::size_t columns = 0;
};

std::optional<std::int64_t> expert_of(std::string_view name) {
  for (const std::string_view prefix : {"expert_", "expert", "e"}) {
    if (!name.starts_with(prefix)) continue;
    std::int64_t id = 0;
    const std::string_view digits = name.substr(prefix.size());
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), id);
    if (!digits.empty() && error == std::errc{} && end == digits.data() + digits.size()) return id;
  }
  return std::nullopt;
}

base::Status add_wide(Header& header, std::int64_t expert, std::int32_t column, std::size_t columns) {
  if (expert < 0 || expert >= static_cast<std::int64_t>(columns)) {
    return bad(fmt::format("line 1: column e{} among {} columns; name them e0, e1, ... without gaps", expert,
                           columns));
  }
  if (header.wide.size() <= static_cast<std::size_t>(expert)) {
    header.wide.resize(static_cast<std::size_t>(expert) + 1, -1);
  }
  if (header.wide[static_cast<std::size_t>(expert)] >= 0) {
    return bad(fmt::format("line 1: column e{} is there twice", expert));
  }
  header.wide[static_cast<std::size_t>(expert)] = column;
  return {};
}

base::Result<Header> parse_header(const std::vector<std::string_view>& fields) {
  Header header;
  header.columns = fields.size();
  header.named = std::any_of(fields.begin(), fields.end(), [](std::string_view f) { return !number(f); });
  if (!header.named) return header;
  std::string names;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    std::string name(fields[i]);
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    const auto column = static_cast<std::int32_t>(i);
    if (names.size() < 200) names += (i > 0 ? ", " : "") + quoted(name);
    if (name == "step" || name == "iteration" || name == "forward_pass_id") {
      header.step = column;
    } else if (name == "layer" || name == "layer_id" || name == "layer_idx") {
      header.layer = column;
    } else if (name == "expert" || name == "expert_id" || name == "expert_idx" || name == "logical_expert") {
      header.expert = column;
    } else if (name == "count" || name == "counts" || name == "num_tokens" || name == "load") {
      header.count = column;
    } else if (const auto expert = expert_of(name)) {
      TRIMTAB_TRY(add_wide(header, *expert, column, fields.size()));
    }
  }
  const bool is_long = header.expert >= 0 && header.count >= 0;
  if (is_long) header.wide.clear();
  if (!is_long && header.wide.empty()) {
    return bad(
        fmt::format("line 1: the columns {} name no counts: name step, layer, expert and count, or one "
                    "column per expert e0, e1, ...; or leave the header out for a plain matrix",
                    names));
  }
  const auto gap = std::find(header.wide.begin(), header.wide.end(), -1);
  if (gap != header.wide.end()) {
    return bad(fmt::format("line 1: column e{} is missing", gap - header.wide.begin()));
  }
  return header;
}

/// One row of whichever form: where it belongs and its values.
struct Entry {
  std::int64_t step = 0, layer = 0, expert = 0;
  std::int64_t line = 0;
  double value = 0;
};

class CsvReader {
 public:
  CsvReader(ByteSource& source, std::int64_t elements_max) : lines_(source), elements_max_(elements_max) {}

  base::Result<CsvCounts> read() {
    std::string line;
    auto more = lines_.next_row(line);
    if (!more) return tl::unexpected(more.error());
    if (!*more) return bad("the file is empty; dump the counts again");
    for (const char candidate : {',', ';', '\t', ' '}) {
      separator_ = candidate;
      if (line.find(candidate) != std::string::npos) break;
    }
    auto header = parse_header(split(line, separator_));
    if (!header) return tl::unexpected(header.error());
    header_ = std::move(*header);
    if (!header_.named) TRIMTAB_TRY(row(line));
    while (true) {
      more = lines_.next_row(line);
      if (!more) return tl::unexpected(more.error());
      if (!*more) break;
      TRIMTAB_TRY(row(line));
    }
    CsvCounts out;
    if (!lines_.ended()) {
      out.notes.push_back(
          "the last line has no line end; if the file was cut while it was written, its last "
          "count may lack digits");
    }
    auto array = placed() ? scattered() : matrix();
    if (!array) return tl::unexpected(array.error());
    out.array = std::move(*array);
    return out;
  }

 private:
  bool is_long() const { return header_.named && header_.wide.empty(); }
  bool placed() const { return is_long() || header_.step >= 0 || header_.layer >= 0; }

  base::Result<double> field(const std::vector<std::string_view>& fields, std::size_t column) const {
    const auto value = number(fields[column]);
    if (value) return *value;
    return bad(fmt::format("line {}, field {}: \"{}\" is no number{}", lines_.number(), column + 1,
                           quoted(fields[column]),
                           lines_.ended() ? "" : " (the last line: was the file cut while it was written?)"));
  }

  base::Result<std::int64_t> id(const std::vector<std::string_view>& fields, std::int32_t column,
                                std::string_view what) const {
    if (column < 0) return 0;
    const auto value = field(fields, static_cast<std::size_t>(column));
    if (!value) return tl::unexpected(value.error());
    if (!(*value >= 0 && *value <= 9e15) || *value != std::floor(*value)) {
      return bad(fmt::format("line {}: {} {} is no whole number from 0 up", lines_.number(), what,
                             quoted(fields[static_cast<std::size_t>(column)])));
    }
    return static_cast<std::int64_t>(*value);
  }

  base::Status row(std::string_view line) {
    const auto fields = split(line, separator_);
    if (fields.size() != header_.columns) {
      if (!lines_.ended()) {
        return bad(
            fmt::format("line {}, the last, is cut short: {} of {} fields; the file was truncated while it "
                        "was written: delete that line or dump again",
                        lines_.number(), fields.size(), header_.columns));
      }
      return bad(fmt::format("line {} has {} fields and the first has {}; every line needs as many",
                             lines_.number(), fields.size(), header_.columns));
    }
    Entry entry;
    entry.line = lines_.number();
    const auto step = id(fields, header_.step, "step");
    const auto layer = id(fields, header_.layer, "layer");
    const auto expert = id(fields, header_.expert, "expert");
    for (const auto* part : {&step, &layer, &expert}) {
      if (!*part) return tl::unexpected(part->error());
    }
    if (*expert >= kExpertsMax) {
      return bad(fmt::format("line {}: expert {} (at most {})", entry.line, *expert, kExpertsMax - 1));
    }
    entry.step = *step, entry.layer = *layer, entry.expert = *expert;
    const std::size_t width = is_long() ? 1 : header_.named ? header_.wide.size() : fields.size();
    if (static_cast<std::int64_t>((placed() ? entries_.size() : values_.size()) + width) > elements_max_) {
      return bad(fmt::format("line {}: more than {} counts; dump fewer steps", entry.line, elements_max_));
    }
    for (std::size_t i = 0; i < width; ++i) {
      const std::size_t column = is_long()       ? static_cast<std::size_t>(header_.count)
                                 : header_.named ? static_cast<std::size_t>(header_.wide[i])
                                                 : i;
      const auto value = field(fields, column);
      if (!value) return tl::unexpected(value.error());
      if (!placed()) {
        values_.push_back(*value);
        continue;
      }
      entry.value = *value;
      if (!is_long()) entry.expert = static_cast<std::int64_t>(i);
      entries_.push_back(entry);
    }
    ++rows_;
    return {};
  }

  base::Result<ExpertArray> matrix() {
    if (rows_ == 0) return bad("the header is there and no row; dump the counts again");
    const auto columns = static_cast<std::int64_t>(values_.size()) / rows_;
    return ExpertArray{"", {rows_, columns}, std::move(values_)};
  }

  static std::vector<std::int64_t> distinct(std::vector<std::int64_t> ids) {
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    return ids;
  }

  base::Result<ExpertArray> scattered() {
    if (entries_.empty()) return bad("the header is there and no row; dump the counts again");
    std::vector<std::int64_t> steps, layers;
    std::int64_t experts = 0;
    for (const Entry& entry : entries_) {
      if (steps.empty() || steps.back() != entry.step) steps.push_back(entry.step);
      if (layers.empty() || layers.back() != entry.layer) layers.push_back(entry.layer);
      experts = std::max(experts, entry.expert + 1);
    }
    steps = distinct(std::move(steps));
    layers = distinct(std::move(layers));
    ExpertArray array;
    array.shape = {static_cast<std::int64_t>(steps.size()), static_cast<std::int64_t>(layers.size()),
                   experts};
    const auto count = element_count(array.shape, elements_max_);
    if (!count) return tl::unexpected(count.error());
    // Rows may be few and ids many: dense memory only in proportion to the file.
    if (*count > (std::int64_t{1} << 22) && *count / 4096 > static_cast<std::int64_t>(entries_.size())) {
      return bad(fmt::format("{} rows spread over shape {}; most counts are missing", entries_.size(),
                             shape_text(array.shape)));
    }
    array.values.assign(static_cast<std::size_t>(*count), 0);
    std::vector<bool> seen(array.values.size());
    for (const Entry& entry : entries_) {
      const auto step = std::lower_bound(steps.begin(), steps.end(), entry.step) - steps.begin();
      const auto layer = std::lower_bound(layers.begin(), layers.end(), entry.layer) - layers.begin();
      const auto at = static_cast<std::size_t>((step * array.shape[1] + layer) * experts + entry.expert);
      if (seen[at]) {
        return bad(fmt::format("line {} repeats step {}, layer {}, expert {}; give every count once",
                               entry.line, entry.step, entry.layer, entry.expert));
      }
      seen[at] = true;
      array.values[at] = entry.value;
    }
    return array;
  }

  Lines lines_;
  std::int64_t elements_max_;
  char separator_ = ',';
  Header header_;
  std::int64_t rows_ = 0;
  std::vector<double> values_;
  std::vector<Entry> entries_;
};

}  // namespace

base::Result<CsvCounts> read_csv(ByteSource& source, std::int64_t elements_max) {
  return CsvReader(source, elements_max).read();
}

}  // namespace trimtab::io
