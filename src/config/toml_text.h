#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace trimtab::config {

/// The line of the first byte beyond ASCII that is neither in a string nor in a comment, 0 when there is
/// none. TOML has no use for one.
std::size_t stray_byte_line(std::string_view text);

/// TOML text without a byte beyond ASCII. toml++ 3.3 runs into an unreachable statement on some characters,
/// wherever its parser stumbles over them (found by the fuzzers), so it never sees one: each such byte goes
/// in as `mark` and two hexadecimal digits, and comes back out of the strings that were read.
class AsciiForm {
 public:
  explicit AsciiForm(std::string_view text);
  const std::string& text() const { return text_; }
  void restore(std::string& value) const;

 private:
  std::string mark_, text_;
};

}  // namespace trimtab::config
