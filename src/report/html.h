#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "report/table.h"

/// A report that is one HTML file: no network, styles and the few lines of script inside, light and dark by
/// the reader's setting, readable on a telephone. The same content gives the same bytes.
namespace trimtab::report {

/// A piece of markup. Only functions of this room make one, from text that they escape.
class Html {
 public:
  Html() = default;
  const std::string& text() const { return text_; }
  Html& operator+=(const Html& other) {
    text_ += other.text_;
    return *this;
  }

  /// Markup that is known to be well formed.
  static Html trusted(std::string markup) {
    Html html;
    html.text_ = std::move(markup);
    return html;
  }

 private:
  std::string text_;
};

/// Text with nothing in it that a browser would take for markup; what is not UTF-8 becomes U+FFFD.
std::string escaped(std::string_view text);
/// A string literal of JSON, to be put into an attribute: quoted and escaped for both.
std::string json_escaped(std::string_view text);
/// Four digits of it, without an exponent while that is short: "0.0123", "1.5", "12340". "" when not finite.
std::string digits(double value);
/// The same for reading: "950", "12.3k", "4.1M".
std::string shortened_number(double value);

Html paragraph(std::string_view text);
/// Smaller and paler: how to read what is above.
Html remark(std::string_view text);
Html heading(std::string_view text);
/// Figures beside one another where the window is wide enough.
Html grid(const std::vector<Html>& figures);
/// Something to fold away.
Html folded(std::string_view summary, const Html& inner, bool open);

/// One cell. With a value, the best of its column is marked where the column says which way is better.
struct Cell {
  std::string text;
  std::optional<double> value;
};
enum class Better : std::uint8_t { kNeither, kLess, kMore };
struct HtmlColumn {
  std::string title;
  Align align = Align::kRight;
  Better better = Better::kNeither;
};
/// A table that scrolls inside itself when it is too wide. Rows may be shorter than the columns are many.
Html table(const std::vector<HtmlColumn>& columns, const std::vector<std::vector<Cell>>& rows);

class HtmlPage {
 public:
  HtmlPage(std::string title, std::string subtitle);
  /// `id`: of letters, to link to it; sections are listed at the top.
  void section(std::string_view id, std::string_view title, const Html& content);
  std::string text() const;

 private:
  std::string title_, subtitle_, contents_, body_;
};

}  // namespace trimtab::report
