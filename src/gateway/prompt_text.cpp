#include "gateway/prompt_text.h"

#include <fmt/format.h>

#include "gguf/gguf_file.h"

namespace trimtab::gateway {

base::Result<PromptText> PromptText::load(const std::string& model_path) {
  const auto file = gguf::GgufFile::open(model_path);
  if (!file) return tl::unexpected(file.error());
  auto tokenizer = text::Tokenizer::load(*file);
  if (!tokenizer) return tl::unexpected(tokenizer.error());
  auto chat = text::ChatTemplate::load(*file, *tokenizer);
  if (!chat) return tl::unexpected(chat.error());
  return PromptText{std::move(*tokenizer), std::move(*chat)};
}

std::string PromptText::fingerprint() const { return fmt::format("{:016x}", tokenizer.fingerprint()); }

}  // namespace trimtab::gateway
