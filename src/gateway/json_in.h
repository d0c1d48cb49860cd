#pragma once

#include <simdjson.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace trimtab::gateway {

using JsonValue = simdjson::dom::element;
using JsonObject = simdjson::dom::object;
using JsonArray = simdjson::dom::array;

/// Parses request bodies with bounds: nesting of at most `kDepthMax`, valid UTF-8, whole. The value lives
/// until the next `parse`.
class JsonParser {
 public:
  static constexpr std::size_t kDepthMax = 128;

  JsonParser();
  /// Appends padding to `body` while it parses. Errors (kInvalidArgument) say what is wrong in words.
  base::Result<JsonObject> parse(std::string& body);

 private:
  simdjson::dom::parser parser_;
};

/// The member, unless it is absent or null: clients send null for "not given".
std::optional<JsonValue> member(const JsonObject& object, std::string_view name);

/// Typed members; absent and null give an empty optional, another type is kInvalidArgument with `where` +
/// name as origin.
base::Result<std::optional<std::string_view>> string_member(const JsonObject& object, std::string_view name,
                                                            const std::string& where = {});
base::Result<std::optional<bool>> bool_member(const JsonObject& object, std::string_view name);
/// Integers, also when written as 16.0.
base::Result<std::optional<std::int64_t>> integer_member(const JsonObject& object, std::string_view name);
base::Result<std::optional<double>> number_member(const JsonObject& object, std::string_view name);

base::Result<JsonObject> as_object(JsonValue value, const std::string& where);
base::Result<JsonArray> as_array(JsonValue value, const std::string& where);

/// "a string", "an object", ... for messages.
std::string_view kind_of(JsonValue value);

/// True when `text` is one well-formed JSON value.
bool is_json(std::string_view text);
/// The value without white space.
std::string compact(JsonValue value);

/// A kInvalidArgument error about the member at `where`.
tl::unexpected<base::Error> bad_member(const std::string& where, std::string_view message);

}  // namespace trimtab::gateway
