#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace trimtab::report {

/// What the reader's terminal can show.
struct Style {
  int width = 100;      // columns
  bool utf8 = true;     // else ASCII only
  bool colour = false;  // escape sequences
};

/// The value of an environment variable, or empty.
using Environment = std::function<std::string(const char*)>;

/// COLUMNS, else the terminal's own width, else 100 (`tty_width` 0: no terminal). UTF-8 by the first of
/// LC_ALL, LC_CTYPE and LANG that is set. Colour only on a terminal, never with NO_COLOR (no-color.org) or
/// TERM=dumb.
Style style_of(const Environment& environment, bool is_tty, int tty_width);

/// style_of this process for a file descriptor.
Style terminal_style(int fd);

/// Columns that UTF-8 text takes: one a code point, none for combining marks and escape sequences.
std::size_t display_width(std::string_view text);

/// At most `width` columns of it; what is cut ends in an ellipsis.
std::string shortened(std::string_view text, std::size_t width, const Style& style);

/// Colours by meaning; plain text without `style.colour`.
enum class Tone { kBold, kDim, kGood, kBad };
std::string toned(std::string_view text, Tone tone, const Style& style);

}  // namespace trimtab::report
