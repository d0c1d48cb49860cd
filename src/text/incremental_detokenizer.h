#pragma once

#include <string>

#include "text/tokenizer.h"

namespace trimtab::text {

/// Turns a stream of ids into a stream of valid UTF-8: a character whose bytes are spread over tokens is held
/// back until it is whole. Bytes that can never become a character turn into U+FFFD, one per maximal broken
/// part (as Unicode recommends and Hugging Face does). Special tokens yield nothing.
class IncrementalDetokenizer {
 public:
  /// The tokenizer must outlive this object.
  explicit IncrementalDetokenizer(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}

  /// The text that became certain; often empty.
  std::string push(TokenId id);
  /// At the end of the stream: U+FFFD when an unfinished character is left, else empty.
  std::string flush();

 private:
  std::string take(bool at_end);

  const Tokenizer* tokenizer_;
  std::string pending_;
};

}  // namespace trimtab::text
