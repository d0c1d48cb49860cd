#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "base/hash.h"

namespace trimtab::text {

/// Remembers the ids of recent words. Direct-mapped, one cache line an entry; a word that is longer or has
/// more ids than fit is not kept (such words are rare and seldom come again).
class WordCache {
 public:
  static constexpr std::size_t kWordBytesMax = 32;
  static constexpr std::size_t kIdsMax = 7;

  /// The ids of `word`, or an empty span. Valid until the next `put`.
  std::span<const std::int32_t> find(std::string_view word) const {
    const Entry& entry = entries_[slot(word)];
    if (entry.word_bytes != word.size() || std::memcmp(entry.word.data(), word.data(), word.size()) != 0)
      return {};
    return {entry.ids.data(), entry.id_count};
  }
  void put(std::string_view word, std::span<const std::int32_t> ids) {
    if (word.size() > kWordBytesMax || ids.size() > kIdsMax || ids.empty()) return;
    Entry& entry = entries_[slot(word)];
    entry.word_bytes = static_cast<std::uint8_t>(word.size());
    entry.id_count = static_cast<std::uint8_t>(ids.size());
    std::memcpy(entry.word.data(), word.data(), word.size());
    std::memcpy(entry.ids.data(), ids.data(), ids.size_bytes());
  }

 private:
  struct alignas(64) Entry {
    std::array<char, kWordBytesMax> word;
    std::array<std::int32_t, kIdsMax> ids;
    std::uint8_t word_bytes = 0;  // 0: empty, as no word is
    std::uint8_t id_count = 0;
  };
  static_assert(sizeof(Entry) == 64);
  static constexpr std::size_t kEntries = 8192;
  static std::size_t slot(std::string_view word) { return base::checksum(word) % kEntries; }

  std::vector<Entry> entries_ = std::vector<Entry>(kEntries);
};

}  // namespace trimtab::text
