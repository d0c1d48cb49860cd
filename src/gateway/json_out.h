#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace trimtab::gateway {

/// Appends `text` as a JSON string with its quotes. Valid UTF-8 in, valid JSON out; the control characters
/// are escaped, everything else is kept.
void append_json_string(std::string& out, std::string_view text);

/// Appends JSON to a string: nothing is built, nothing is reordered. Commas are put where they belong; the
/// caller opens and closes what it should (a nesting error is a programmer's error that tests see at once).
class JsonOut {
 public:
  explicit JsonOut(std::string& out) : out_(out) {}

  JsonOut& open_object() { return open('{'); }
  JsonOut& close_object() { return close('}'); }
  JsonOut& open_array() { return open('['); }
  JsonOut& close_array() { return close(']'); }
  JsonOut& key(std::string_view name);
  JsonOut& string(std::string_view value);
  JsonOut& number(std::int64_t value);
  JsonOut& boolean(bool value);
  JsonOut& null();
  /// JSON that is known to be well formed.
  JsonOut& raw(std::string_view json);

  JsonOut& field(std::string_view name, std::string_view value) { return key(name).string(value); }
  JsonOut& field(std::string_view name, std::int64_t value) { return key(name).number(value); }

 private:
  JsonOut& open(char bracket);
  JsonOut& close(char bracket);
  void separate();

  std::string& out_;
  bool comma_ = false;
};

}  // namespace trimtab::gateway
