#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "text/chat.h"

namespace trimtab::text {

/// What the entrypoint generated: text to ids, so that a past answer enters the next prompt exactly as it was
/// generated and its KV blocks hit (tokenizing the text again may give other ids, and then nothing after them
/// hits). Persisted in one SQLite file, every row with a checksum, bounded in bytes, least recently used
/// answers leave first. Thread-safe.
class AnswerMemory final : public AnswerLookup {
 public:
  struct Options {
    std::string path;                          // "" keeps everything in memory
    std::uint64_t bytes_max = 64ULL << 20;     // of texts and ids
    std::uint64_t answer_bytes_max = 1 << 20;  // a longer text is not remembered
  };
  struct Stats {
    std::uint64_t answers = 0, bytes = 0, hits = 0, misses = 0, evicted = 0, corrupt = 0;
  };

  /// A file that is not a database any more is set aside as `<path>.corrupt` and counted; kIo when the
  /// directory cannot be written.
  static base::Result<std::unique_ptr<AnswerMemory>> open(Options options);
  ~AnswerMemory() override;

  /// `ids` (stop token not included) were generated after a prompt of `context_of(prompt) == context` and
  /// shown as `text` (see `answer_text`). A failing disk is an error, never an exception; the answer is then
  /// only not remembered.
  base::Status remember(std::string_view text, std::uint64_t context, std::span<const TokenId> ids);
  /// The ids generated for `text` in this context, else those of the latest answer of the same text
  /// elsewhere: they spell the same text, so they are right in any conversation.
  std::optional<std::vector<TokenId>> find(std::string_view text, std::uint64_t context) override;

  Stats stats() const;

 private:
  struct Impl;
  explicit AnswerMemory(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// The ids to remember when a stop sequence cut the text that `ids` spell: the longest run of whole leading
/// tokens inside `shown`, then the rest of `shown` tokenized anew. All of `ids` when they spell `shown`.
std::vector<TokenId> ids_of_shown_text(const Tokenizer& tokenizer, std::span<const TokenId> ids,
                                       std::string_view shown);

}  // namespace trimtab::text
