#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace trimtab::text {

/// What stands at one position of a byte string.
struct Utf8Step {
  enum class Kind { kCharacter, kBroken, kUnfinished } kind = Kind::kCharacter;
  /// Bytes of the character, or of the maximal part that could have begun one (at least 1).
  std::size_t length = 1;
};

/// Examines `bytes` at `at` (< size) by the table of well-formed sequences of the Unicode standard (3.9).
/// `kUnfinished`: the bytes end inside a sequence that further bytes could complete.
Utf8Step utf8_step(std::string_view bytes, std::size_t at);

/// Length of the longest well-formed prefix.
std::size_t valid_utf8_prefix(std::string_view bytes);

/// Replaces broken UTF-8 by U+FFFD, one per maximal broken part: the rule for text that goes out.
std::string repair_utf8(std::string_view bytes);

/// Replaces every byte that belongs to no character by U+FFFD: the rule for text that is tokenized
/// (llama.cpp's).
std::string replace_broken_bytes(std::string_view bytes);

inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

}  // namespace trimtab::text
