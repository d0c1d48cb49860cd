#pragma once

#include <cstdint>
#include <vector>

#include "base/error.h"
#include "cluster/backend.h"
#include "gateway/chat_request.h"
#include "gateway/prompt_text.h"
#include "model/profile.h"
#include "text/chat.h"

namespace trimtab::gateway {

/// A conversation as the engines see it.
struct BuiltPrompt {
  std::vector<std::int32_t> tokens;
  std::vector<cluster::PromptImage> images;
  std::uint64_t context = 0;  // `text::context_of(tokens)`
  std::uint32_t answers_remembered = 0, answers_retokenized = 0;
};

/// Renders and tokenizes; takes the images' bytes out of `request`. `answers` (may be null) gives past
/// answers their generated ids. Text that cannot fit into `tokens_max` tokens, whatever it says, is refused
/// before it is tokenized, so that a huge body costs little; `longest_token_bytes` is the vocabulary's.
base::Result<BuiltPrompt> build_prompt(const PromptText& text, ChatRequest& request,
                                       const model::VisionSpec& vision, text::AnswerLookup* answers,
                                       std::int64_t tokens_max, std::size_t longest_token_bytes);

/// Bytes of the longest ordinary token: no text takes fewer tokens than its length over this.
std::size_t longest_token_bytes(const text::Tokenizer& tokenizer);

/// kInvalidArgument (origin "context") with both numbers.
tl::unexpected<base::Error> prompt_too_long(std::int64_t tokens, std::int64_t tokens_max, bool at_least);

}  // namespace trimtab::gateway
