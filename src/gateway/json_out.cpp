#include "gateway/json_out.h"

#include <charconv>

namespace trimtab::gateway {
namespace {

constexpr char kHex[] = "0123456789abcdef";

void append_escape(std::string& out, unsigned char c) {
  switch (c) {
    case '"':
      out += "\\\"";
      return;
    case '\\':
      out += "\\\\";
      return;
    case '\n':
      out += "\\n";
      return;
    case '\r':
      out += "\\r";
      return;
    case '\t':
      out += "\\t";
      return;
    default:
      out += "\\u00";
      out += kHex[c >> 4];
      out += kHex[c & 15];
  }
}

}  // namespace

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  std::size_t plain = 0;  // start of the run that needs no escape
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c >= 0x20 && c != '"' && c != '\\' && c != 0x7f) continue;
    out.append(text, plain, i - plain);
    append_escape(out, c);
    plain = i + 1;
  }
  out.append(text, plain);
  out += '"';
}

void JsonOut::separate() {
  if (comma_) out_ += ',';
  comma_ = true;
}

JsonOut& JsonOut::open(char bracket) {
  separate();
  out_ += bracket;
  comma_ = false;
  return *this;
}

JsonOut& JsonOut::close(char bracket) {
  out_ += bracket;
  comma_ = true;
  return *this;
}

JsonOut& JsonOut::key(std::string_view name) {
  separate();
  append_json_string(out_, name);
  out_ += ':';
  comma_ = false;
  return *this;
}

JsonOut& JsonOut::string(std::string_view value) {
  separate();
  append_json_string(out_, value);
  return *this;
}

JsonOut& JsonOut::number(std::int64_t value) {
  separate();
  char digits[24];
  out_.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
  return *this;
}

JsonOut& JsonOut::boolean(bool value) { return raw(value ? "true" : "false"); }
JsonOut& JsonOut::null() { return raw("null"); }

JsonOut& JsonOut::raw(std::string_view json) {
  separate();
  out_ += json;
  return *this;
}

}  // namespace trimtab::gateway
