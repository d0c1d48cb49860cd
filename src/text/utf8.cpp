#include "text/utf8.h"

#include <cstdint>
#include <cstring>

namespace trimtab::text {

namespace {

struct Lead {
  std::size_t length = 0;  // 0: no sequence begins with this byte
  unsigned char second_min = 0x80;
  unsigned char second_max = 0xBF;
};

// The second byte's range excludes overlong forms, surrogates and values above U+10FFFF.
Lead lead_of(unsigned char byte) {
  if (byte < 0x80) return {1};
  if (byte < 0xC2) return {};
  if (byte < 0xE0) return {2};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {};
}

std::string replace(std::string_view bytes, bool every_byte) {
  std::string text;
  text.reserve(bytes.size() + 16);
  for (std::size_t at = 0; at < bytes.size();) {
    const Utf8Step step = utf8_step(bytes, at);
    const bool whole = step.kind == Utf8Step::Kind::kCharacter;
    const std::size_t length = whole || !every_byte ? step.length : 1;
    text += whole ? bytes.substr(at, length) : kReplacement;
    at += length;
  }
  return text;
}

}  // namespace

Utf8Step utf8_step(std::string_view bytes, std::size_t at) {
  const Lead lead = lead_of(static_cast<unsigned char>(bytes[at]));
  if (lead.length == 0) return {Utf8Step::Kind::kBroken, 1};
  for (std::size_t i = 1; i < lead.length; ++i) {
    if (at + i == bytes.size()) return {Utf8Step::Kind::kUnfinished, i};
    const auto byte = static_cast<unsigned char>(bytes[at + i]);
    const unsigned char low = i == 1 ? lead.second_min : 0x80;
    const unsigned char high = i == 1 ? lead.second_max : 0xBF;
    if (byte < low || byte > high) return {Utf8Step::Kind::kBroken, i};
  }
  return {Utf8Step::Kind::kCharacter, lead.length};
}

std::size_t valid_utf8_prefix(std::string_view bytes) {
  std::size_t at = 0;
  while (at < bytes.size()) {
    // Eight ASCII bytes at a time: most text is.
    std::uint64_t word = 0;
    if (at + sizeof word <= bytes.size()) {
      std::memcpy(&word, bytes.data() + at, sizeof word);
      if ((word & 0x8080808080808080ULL) == 0) {
        at += sizeof word;
        continue;
      }
    }
    const Utf8Step step = utf8_step(bytes, at);
    if (step.kind != Utf8Step::Kind::kCharacter) return at;
    at += step.length;
  }
  return at;
}

std::string repair_utf8(std::string_view bytes) { return replace(bytes, false); }
std::string replace_broken_bytes(std::string_view bytes) { return replace(bytes, true); }

}  // namespace trimtab::text
