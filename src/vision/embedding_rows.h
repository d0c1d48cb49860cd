#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "gguf/gguf_file.h"
#include "text/tokenizer.h"

namespace trimtab::vision {

/// The ids whose embeddings stand for an image.
struct ImageTokens {
  std::vector<text::TokenId> ids;      // exactly the rows that were asked for
  std::uint32_t text_tokens = 0;       // of `ids`, how many spell the text; the rest is padding
  std::uint32_t truncated_tokens = 0;  // of the text, how many did not fit
};

/// Turns the text of an image into embedding rows of the language model.
class EmbeddingRows {
 public:
  /// The file must outlive this object and the tokenizer too. Errors: no `token_embd.weight`, or one in a
  /// format that cannot be dequantised.
  static base::Result<EmbeddingRows> create(const gguf::GgufFile& file, const text::Tokenizer& tokenizer);

  std::uint32_t hidden() const { return static_cast<std::uint32_t>(table_.row_values()); }
  /// Cuts or pads to `rows`. The padding is the line feed's token: harmless words to the model, where its own
  /// padding token would end the turn.
  ImageTokens fit(std::string_view text, std::uint32_t rows) const;
  /// Writes f32 [ids, hidden] to a new shared segment at `path`: the rows that the engine looks up for the
  /// same ids.
  base::Status write(std::span<const text::TokenId> ids, const std::string& path) const;

 private:
  EmbeddingRows(const text::Tokenizer& tokenizer, const gguf::Tensor& table, text::TokenId padding)
      : tokenizer_(&tokenizer), table_(table), padding_(padding) {}

  const text::Tokenizer* tokenizer_;
  gguf::Tensor table_;
  text::TokenId padding_;
};

}  // namespace trimtab::vision
