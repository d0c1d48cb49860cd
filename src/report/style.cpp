#include "report/style.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

namespace trimtab::report {

namespace {

constexpr int kWidthMin = 40, kWidthDefault = 100, kWidthMax = 400;

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U; }

/// Bytes of the escape sequence that `text` begins with; 0 when it does not.
std::size_t escape_length(std::string_view text) {
  if (!text.starts_with("\x1b[")) return 0;
  const std::size_t end = text.find('m');
  return end == std::string_view::npos ? text.size() : end + 1;
}

/// Bytes of the first code point, and whether it takes a column.
struct Glyph {
  std::size_t bytes = 1;
  bool wide = true;
};

Glyph glyph_of(std::string_view text) {
  if (const std::size_t escape = escape_length(text); escape > 0) return {escape, false};
  Glyph glyph;
  while (glyph.bytes < text.size() && is_continuation(text[glyph.bytes])) ++glyph.bytes;
  // U+0300 to U+036F combine with the letter before them.
  glyph.wide = !(text.starts_with("\xCC") ||
                 (text.size() > 1 && text.starts_with("\xCD") && static_cast<unsigned char>(text[1]) < 0xB0));
  return glyph;
}

}  // namespace

Style style_of(const Environment& environment, bool is_tty, int tty_width) {
  Style style;
  style.width = tty_width > 0 ? tty_width : kWidthDefault;
  const std::string columns = environment("COLUMNS");
  int asked = 0;
  const auto [end, error] = std::from_chars(columns.data(), columns.data() + columns.size(), asked);
  if (error == std::errc{} && end == columns.data() + columns.size() && asked > 0) style.width = asked;
  style.width = std::clamp(style.width, kWidthMin, kWidthMax);
  std::string locale;
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    locale = environment(name);
    if (!locale.empty()) break;
  }
  std::transform(locale.begin(), locale.end(), locale.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  style.utf8 = locale.find("utf-8") != std::string::npos || locale.find("utf8") != std::string::npos;
  const std::string terminal = environment("TERM");
  style.colour = is_tty && environment("NO_COLOR").empty() && terminal != "dumb";
  return style;
}

Style terminal_style(int fd) {
  winsize size{};
  const bool is_tty = ::isatty(fd) == 1;
  const int width = is_tty && ::ioctl(fd, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
  return style_of(
      [](const char* name) {
        const char* value = std::getenv(name);
        return std::string(value == nullptr ? "" : value);
      },
      is_tty, width);
}

std::size_t display_width(std::string_view text) {
  std::size_t width = 0;
  while (!text.empty()) {
    const Glyph glyph = glyph_of(text);
    width += glyph.wide ? 1 : 0;
    text.remove_prefix(glyph.bytes);
  }
  return width;
}

std::string shortened(std::string_view text, std::size_t width, const Style& style) {
  if (display_width(text) <= width) return std::string(text);
  const std::string_view mark = style.utf8 ? "…" : "...";
  const std::size_t room = width - std::min(width, display_width(mark));
  std::string out;
  for (std::size_t used = 0; !text.empty();) {
    const Glyph glyph = glyph_of(text);
    used += glyph.wide ? 1 : 0;
    if (used > room) break;
    out += text.substr(0, glyph.bytes);
    text.remove_prefix(glyph.bytes);
  }
  return width == 0 ? "" : out + std::string(mark);
}

std::string toned(std::string_view text, Tone tone, const Style& style) {
  if (!style.colour) return std::string(text);
  const char* code = tone == Tone::kBold ? "1" : tone == Tone::kDim ? "2" : tone == Tone::kGood ? "32" : "31";
  return fmt::format("\x1b[{}m{}\x1b[0m", code, text);
}

}  // namespace trimtab::report
