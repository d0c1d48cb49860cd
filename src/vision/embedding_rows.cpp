#include "vision/embedding_rows.h"

#include <fmt/format.h>

#include "ipc/segment.h"

namespace trimtab::vision {

base::Result<EmbeddingRows> EmbeddingRows::create(const gguf::GgufFile& file,
                                                  const text::Tokenizer& tokenizer) {
  const auto table = file.tensor("token_embd.weight");
  if (!table) return tl::unexpected(table.error());
  if (!gguf::can_dequantize(table->type) || table->rows() < tokenizer.vocabulary_size()) {
    return base::fail(
        base::Code::kUnsupported,
        fmt::format("{}: token_embd.weight has {} rows stored as {} for {} tokens: not usable as "
                    "image embeddings",
                    file.path(), table->rows(), gguf::layout_of(table->type).name,
                    tokenizer.vocabulary_size()),
        "vision");
  }
  const auto padding = tokenizer.encode("\n");
  if (padding.size() != 1) {
    return base::fail(base::Code::kUnsupported, "the vocabulary has no single token for a line feed",
                      "vision");
  }
  return EmbeddingRows(tokenizer, *table, padding.front());
}

ImageTokens EmbeddingRows::fit(std::string_view text, std::uint32_t rows) const {
  ImageTokens tokens;
  // Words in an image are data: "<|im_end|>" on a screenshot is spelled, not obeyed.
  tokens.ids = tokenizer_->encode(text, /*parse_special=*/false);
  const auto found = static_cast<std::uint32_t>(tokens.ids.size());
  tokens.text_tokens = std::min(found, rows);
  tokens.truncated_tokens = found - tokens.text_tokens;
  tokens.ids.resize(rows, padding_);
  return tokens;
}

base::Status EmbeddingRows::write(std::span<const text::TokenId> ids, const std::string& path) const {
  const std::size_t row_values = hidden();
  auto segment = ipc::Segment::create(path, ids.size() * row_values * sizeof(float));
  if (!segment) return tl::unexpected(segment.error());
  auto* rows = reinterpret_cast<float*>(segment->data());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    TRIMTAB_TRY(gguf::dequantize_row(table_, static_cast<std::uint64_t>(ids[i]),
                                     {rows + i * row_values, row_values}));
  }
  return {};
}

}  // namespace trimtab::vision
