#include "text/canonical_json.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/utf8.h"

namespace trimtab::text {

namespace {

int nesting_depth(std::string_view text) {
  int depth = 0;
  int deepest = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      deepest = std::max(deepest, ++depth);
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return deepest;
}

}  // namespace

base::Result<nlohmann::json> parse_json(std::string_view text, std::string_view what) {
  const int depth = nesting_depth(text);
  if (depth > kJsonDepthMax) {
    return base::fail(base::Code::kInvalidArgument,
                      fmt::format("{} nests {} levels deep, {} are allowed", what, depth, kJsonDepthMax),
                      "text");
  }
  nlohmann::json value = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) {
    constexpr std::size_t kShown = 60;
    return base::fail(base::Code::kInvalidArgument,
                      fmt::format("{} is not valid JSON: {}", what, repair_utf8(text.substr(0, kShown))),
                      "text");
  }
  return value;
}

}  // namespace trimtab::text
