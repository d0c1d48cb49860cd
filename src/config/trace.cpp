#include "config/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <sstream>

namespace trimtab::config {
namespace {

using base::Code;

constexpr std::int64_t kTokensMax = 1 << 24;

/// The text after `"key":`, without leading blanks.
std::optional<std::string_view> after_key(std::string_view line, std::string_view key) {
  const std::size_t at = line.find(fmt::format("\"{}\"", key));
  if (at == std::string_view::npos) return {};
  line.remove_prefix(at + key.size() + 2);
  const std::size_t colon = line.find_first_not_of(" \t");
  if (colon == std::string_view::npos || line[colon] != ':') return {};
  line.remove_prefix(colon + 1);
  const std::size_t value = line.find_first_not_of(" \t");
  return value == std::string_view::npos ? std::string_view{} : line.substr(value);
}

/// Reads a whole number off the front; a fraction behind it is dropped.
std::optional<std::int64_t> take_integer(std::string_view& text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{}) return {};
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

std::optional<std::int64_t> integer(std::string_view line, std::string_view key) {
  auto value = after_key(line, key);
  return value ? take_integer(*value) : std::nullopt;
}

/// A list of whole numbers; nothing when it is broken.
std::optional<std::vector<std::int64_t>> integers(std::string_view list) {
  std::vector<std::int64_t> values;
  if (list.empty() || list.front() != '[') return {};
  list.remove_prefix(1);
  while (true) {
    list.remove_prefix(std::min(list.find_first_not_of(" \t,"), list.size()));
    if (!list.empty() && list.front() == ']') return values;
    const auto value = take_integer(list);
    if (!value) return {};
    values.push_back(*value);
  }
}

base::Result<TraceRequest> parse_line(std::string_view line, const std::string& where) {
  TraceRequest request;
  const auto read = [&](std::string_view key, std::int64_t least, std::int64_t most,
                        std::int64_t& out) -> base::Status {
    const auto value = integer(line, key);
    if (!value)
      return base::fail(Code::kInvalidArgument, fmt::format("\"{}\" is missing or is no number", key), where);
    if (*value < least || *value > most) {
      return base::fail(Code::kInvalidArgument,
                        fmt::format("\"{}\" is {}: {} to {} is possible", key, *value, least, most), where);
    }
    out = *value;
    return {};
  };
  TRIMTAB_TRY(read("timestamp", 0, std::int64_t{1} << 40, request.arrival_ms));
  TRIMTAB_TRY(read("input_length", 1, kTokensMax, request.input_tokens));
  TRIMTAB_TRY(read("output_length", 0, kTokensMax, request.output_tokens));
  if (const auto list = after_key(line, "hash_ids")) {
    auto blocks = integers(*list);
    if (!blocks) return base::fail(Code::kInvalidArgument, "\"hash_ids\" is no list of numbers", where);
    request.blocks = std::move(*blocks);
  }
  return request;
}

}  // namespace

base::Result<std::vector<TraceRequest>> parse_trace(std::string_view text, const std::string& origin) {
  std::vector<TraceRequest> requests;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    auto request = parse_line(line, fmt::format("{}:{}", origin, number));
    if (!request) return tl::unexpected(request.error());
    requests.push_back(std::move(*request));
  }
  if (requests.empty()) return base::fail(Code::kInvalidArgument, "the trace holds no request", origin);
  return requests;
}

base::Result<std::vector<TraceRequest>> load_trace(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  if (!in || !(text << in.rdbuf())) return base::fail(Code::kIo, "cannot read the trace", path);
  return parse_trace(text.str(), path);
}

}  // namespace trimtab::config
