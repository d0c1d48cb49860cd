#include "gateway/json_in.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace trimtab::gateway {
namespace {

// One huge body must not keep its memory for ever.
constexpr std::size_t kKeptCapacityBytes = 4 << 20;

std::string explain(simdjson::error_code error) {
  switch (error) {
    case simdjson::UTF8_ERROR:
      return "the body is not valid UTF-8";
    case simdjson::DEPTH_ERROR:
      return fmt::format("the body is nested deeper than {} levels", JsonParser::kDepthMax);
    case simdjson::EMPTY:
      return "the body is empty; a JSON object is expected";
    case simdjson::UNCLOSED_STRING:
      return "the body is malformed JSON: a string is not closed (truncated?)";
    case simdjson::UNESCAPED_CHARS:
      return "the body is malformed JSON: a control character in a string is not escaped";
    case simdjson::STRING_ERROR:
      return "the body is malformed JSON: a string has a broken escape or surrogate";
    case simdjson::NUMBER_ERROR:
      return "the body is malformed JSON: a number is malformed or out of range";
    default:
      return "the body is malformed JSON (truncated?)";
  }
}

}  // namespace

JsonParser::JsonParser() {
  TRIMTAB_CHECK(parser_.allocate(64 << 10, kDepthMax) == simdjson::SUCCESS, "out of memory");
}

base::Result<JsonObject> JsonParser::parse(std::string& body) {
  if (parser_.capacity() > kKeptCapacityBytes && body.size() < kKeptCapacityBytes) {
    parser_ = simdjson::dom::parser();
  }
  if (parser_.capacity() < body.size() || parser_.max_depth() != kDepthMax) {
    if (parser_.allocate(std::max<std::size_t>(body.size(), 64 << 10), kDepthMax) != simdjson::SUCCESS)
      return base::fail(base::Code::kResourceExhausted, "out of memory for this body", "gateway");
  }
  const std::size_t size = body.size();
  body.resize(size + simdjson::SIMDJSON_PADDING);
  JsonValue root;
  const auto error = parser_.parse(body.data(), size, false).get(root);
  body.resize(size);
  if (error != simdjson::SUCCESS) return base::fail(base::Code::kInvalidArgument, explain(error));
  JsonObject object;
  if (root.get(object) != simdjson::SUCCESS)
    return base::fail(base::Code::kInvalidArgument,
                      fmt::format("the body is {}; a JSON object is expected", kind_of(root)));
  return object;
}

std::optional<JsonValue> member(const JsonObject& object, std::string_view name) {
  JsonValue value;
  if (object.at_key(name).get(value) != simdjson::SUCCESS || value.is_null()) return std::nullopt;
  return value;
}

tl::unexpected<base::Error> bad_member(const std::string& where, std::string_view message) {
  return base::fail(base::Code::kInvalidArgument, fmt::format("{}: {}", where, message), where);
}

base::Result<std::optional<std::string_view>> string_member(const JsonObject& object, std::string_view name,
                                                            const std::string& where) {
  const auto value = member(object, name);
  if (!value) return std::nullopt;
  std::string_view text;
  if (value->get(text) != simdjson::SUCCESS)
    return bad_member(where + std::string(name), fmt::format("expected a string, got {}", kind_of(*value)));
  return text;
}

base::Result<std::optional<bool>> bool_member(const JsonObject& object, std::string_view name) {
  const auto value = member(object, name);
  if (!value) return std::nullopt;
  bool flag = false;
  if (value->get(flag) != simdjson::SUCCESS)
    return bad_member(std::string(name), fmt::format("expected true or false, got {}", kind_of(*value)));
  return flag;
}

base::Result<std::optional<double>> number_member(const JsonObject& object, std::string_view name) {
  const auto value = member(object, name);
  if (!value) return std::nullopt;
  double number = 0;
  if (value->get(number) != simdjson::SUCCESS)
    return bad_member(std::string(name), fmt::format("expected a number, got {}", kind_of(*value)));
  return number;
}

base::Result<std::optional<std::int64_t>> integer_member(const JsonObject& object, std::string_view name) {
  const auto value = member(object, name);
  if (!value) return std::nullopt;
  std::int64_t integer = 0;
  if (value->get(integer) == simdjson::SUCCESS) return integer;
  double number = 0;
  if (value->get(number) != simdjson::SUCCESS)
    return bad_member(std::string(name), fmt::format("expected an integer, got {}", kind_of(*value)));
  if (std::trunc(number) != number || std::abs(number) > 9.0e15)
    return bad_member(std::string(name), fmt::format("expected an integer, got {}", number));
  return static_cast<std::int64_t>(number);
}

base::Result<JsonObject> as_object(JsonValue value, const std::string& where) {
  JsonObject object;
  if (value.get(object) != simdjson::SUCCESS)
    return bad_member(where, fmt::format("expected an object, got {}", kind_of(value)));
  return object;
}

base::Result<JsonArray> as_array(JsonValue value, const std::string& where) {
  JsonArray array;
  if (value.get(array) != simdjson::SUCCESS)
    return bad_member(where, fmt::format("expected an array, got {}", kind_of(value)));
  return array;
}

std::string_view kind_of(JsonValue value) {
  switch (value.type()) {
    case simdjson::dom::element_type::ARRAY:
      return "an array";
    case simdjson::dom::element_type::OBJECT:
      return "an object";
    case simdjson::dom::element_type::STRING:
      return "a string";
    case simdjson::dom::element_type::BOOL:
      return "a boolean";
    case simdjson::dom::element_type::NULL_VALUE:
      return "null";
    default:
      return "a number";
  }
}

bool is_json(std::string_view text) {
  simdjson::dom::parser parser;
  if (parser.allocate(std::max<std::size_t>(text.size(), 64), JsonParser::kDepthMax) != simdjson::SUCCESS)
    return false;
  JsonValue value;
  return parser.parse(text.data(), text.size()).get(value) == simdjson::SUCCESS;
}

std::string compact(JsonValue value) { return simdjson::minify(value); }

}  // namespace trimtab::gateway
