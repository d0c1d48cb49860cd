#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "gguf/gguf_file.h"

namespace trimtab::text {

using TokenId = std::int32_t;

/// Byte-level BPE as GPT-2 defined it, with vocabulary, merges and pre-tokenizer name of a GGUF file
/// (`tokenizer.ggml.*`). Ids equal those of llama.cpp and of Hugging Face `tokenizers` with the same
/// vocabulary. Thread-safe: all methods are const, scratch memory is pooled inside.
///
/// Broken UTF-8 is defined as in llama.cpp: every byte that starts no valid sequence becomes U+FFFD, then the
/// text is tokenized. Overlong forms, surrogates and code points above U+10FFFF count as broken.
class Tokenizer {
 public:
  /// Copies what it needs; the file may be closed afterwards. Errors: kUnsupported for another tokenizer
  /// model or pre-tokenizer (named, with those that are known), kDataLoss for an inconsistent vocabulary.
  static base::Result<Tokenizer> load(const gguf::GgufFile& file);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// `parse_special` turns the text of special tokens ("<|im_end|>") into them. Never pass true for text that
  /// a client wrote: without it such text becomes ordinary tokens that spell it.
  std::vector<TokenId> encode(std::string_view text, bool parse_special = false) const;
  /// Appends to `out` instead of returning.
  void encode_to(std::string_view text, bool parse_special, std::vector<TokenId>& out) const;

  /// The bytes of all tokens; may be broken UTF-8 (see `IncrementalDetokenizer`). Special tokens spell their
  /// name unless skipped. Ids outside the vocabulary yield nothing.
  std::string decode(std::span<const TokenId> ids, bool skip_special = false) const;
  /// The bytes that a token stands for (for a special token its name); empty outside the vocabulary. Lives as
  /// long as the tokenizer.
  std::string_view token_bytes(TokenId id) const;

  std::size_t vocabulary_size() const;
  /// A text of n bytes has at least n / longest_token_bytes() tokens, but for bytes without a token: refuse a
  /// hopelessly long prompt by this before spending time on it.
  std::size_t longest_token_bytes() const;
  bool is_special(TokenId id) const;
  /// The id of a special token by its name, e.g. "<|im_start|>".
  std::optional<TokenId> special(std::string_view name) const;
  std::optional<TokenId> bos() const;
  std::optional<TokenId> eos() const;
  /// Identity of vocabulary, merges and pre-tokenizer: part of the block keys.
  std::uint64_t fingerprint() const;

  struct Impl;

 private:
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace trimtab::text
