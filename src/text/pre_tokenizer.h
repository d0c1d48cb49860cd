#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/error.h"

namespace trimtab::text {

/// Cuts text into the words within which BPE merges. One PCRE2 pattern, compiled by its JIT; every character
/// of valid UTF-8 belongs to exactly one word.
class PreTokenizer {
 public:
  /// `name` is the GGUF's `tokenizer.ggml.pre`. kUnsupported names the ones that are known.
  static base::Result<PreTokenizer> create(std::string_view name);

  PreTokenizer(PreTokenizer&&) noexcept;
  PreTokenizer& operator=(PreTokenizer&&) noexcept;
  ~PreTokenizer();

  /// Per-thread match state; borrow one for a whole text.
  class Scratch {
   public:
    explicit Scratch(const PreTokenizer& owner);
    Scratch(Scratch&&) noexcept;
    ~Scratch();

   private:
    friend class PreTokenizer;
    void* match_data_ = nullptr;
  };

  /// End of the word that begins at `at` (< text.size()). `text` must be valid UTF-8.
  std::size_t word_end(std::string_view text, std::size_t at, Scratch& scratch) const;

 private:
  PreTokenizer() = default;
  void* code_ = nullptr;  // pcre2_code*
};

}  // namespace trimtab::text
