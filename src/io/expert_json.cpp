#include "io/expert_json.h"

#include <fmt/format.h>

#include <utility>

namespace trimtab::io {

namespace {

constexpr std::size_t kJsonBytesMax = std::size_t{1} << 30;
constexpr std::size_t kDimensionsMax = 8;

tl::unexpected<base::Error> bad(std::string message) {
  return base::fail(base::Code::kInvalidArgument, std::move(message), "json");
}

base::Status append(const nlohmann::json& value, std::size_t depth, std::int64_t elements_max,
                    ExpertArray& array) {
  if (depth == array.shape.size()) {
    if (!value.is_number()) {
      return bad(fmt::format("a {} stands where the numbers of shape {} are; every list needs the same depth",
                             value.type_name(), shape_text(array.shape)));
    }
    if (static_cast<std::int64_t>(array.values.size()) >= elements_max) {
      return base::fail(base::Code::kTooLarge,
                        fmt::format("more than {} numbers; dump fewer steps", elements_max), "json");
    }
    array.values.push_back(value.get<double>());
    return {};
  }
  if (!value.is_array() || static_cast<std::int64_t>(value.size()) != array.shape[depth]) {
    return bad(
        fmt::format("a {} of {} stands beside lists of {} in dimension {}; give every list the same length",
                    value.type_name(), value.size(), array.shape[depth], depth));
  }
  for (const auto& item : value) TRIMTAB_TRY(append(item, depth + 1, elements_max, array));
  return {};
}

}  // namespace

base::Result<nlohmann::json> parse_json(ByteSource& source) {
  const auto bytes = read_all(source, kJsonBytesMax);
  if (!bytes) return tl::unexpected(bytes.error());
  const char* begin = reinterpret_cast<const char*>(bytes->data());
  try {
    return nlohmann::json::parse(begin, begin + bytes->size());
  } catch (const nlohmann::json::exception& error) {
    // The library's words carry line, column and what stands there; raw bytes are not for a terminal.
    std::string text = error.what();
    for (char& c : text) {
      if (c < ' ' || c > '~') c = '?';
    }
    return bad(
        fmt::format("no JSON ({}); if the file is whole it should end with }} or ]", text.substr(0, 200)));
  }
}

base::Result<ExpertArray> json_array(const nlohmann::json& value, std::int64_t elements_max) {
  ExpertArray array;
  for (const nlohmann::json* at = &value; at->is_array(); at = &at->front()) {
    if (array.shape.size() == kDimensionsMax) {
      return bad(fmt::format("lists more than {} deep; counts have at most 3", kDimensionsMax));
    }
    array.shape.push_back(static_cast<std::int64_t>(at->size()));
    if (at->empty()) break;
  }
  TRIMTAB_TRY(append(value, 0, elements_max, array));
  return array;
}

}  // namespace trimtab::io
