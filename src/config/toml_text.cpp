#include "config/toml_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace trimtab::config {

std::size_t stray_byte_line(std::string_view text) {
  enum class In { kPlain, kComment, kString } in = In::kPlain;
  std::string_view quote;  // that ends the string: one or three of ' or "
  std::size_t line = 1;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\n') {
      ++line;
      if (in != In::kString || quote.size() == 1) in = In::kPlain;
    } else if (in == In::kString) {
      if (c == '\\' && quote[0] == '"') {
        // An escaped newline counts all the same.
        if (i + 1 < text.size() && text[i + 1] != '\n') ++i;
      } else if (text.substr(i, quote.size()) == quote) {
        i += quote.size() - 1;
        in = In::kPlain;
      }
    } else if (in == In::kPlain) {
      if (static_cast<unsigned char>(c) >= 0x80) return line;
      if (c == '#') in = In::kComment;
      if (c != '"' && c != '\'') continue;
      in = In::kString;
      const std::string_view triple = c == '"' ? "\"\"\"" : "'''";
      quote = text.substr(i, 3) == triple ? triple : triple.substr(0, 1);
      i += quote.size() - 1;
    }
  }
  return 0;
}

AsciiForm::AsciiForm(std::string_view text) : mark_("~u") {
  while (text.find(mark_) != std::string_view::npos) mark_.insert(1, "~");
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    text_ += byte < 0x80 ? std::string(1, c) : fmt::format("{}{:02x}", mark_, byte);
  }
}

void AsciiForm::restore(std::string& value) const {
  for (std::size_t at = 0; (at = value.find(mark_, at)) != std::string::npos; ++at) {
    unsigned byte = 0;
    const char* digits = value.data() + at + mark_.size();
    const auto parsed =
        std::from_chars(digits, value.data() + std::min(value.size(), at + mark_.size() + 2), byte, 16);
    // Anything else was spelled by escapes of the file itself.
    if (parsed.ptr == digits + 2 && byte >= 0x80)
      value.replace(at, mark_.size() + 2, 1, static_cast<char>(byte));
  }
}

}  // namespace trimtab::config
