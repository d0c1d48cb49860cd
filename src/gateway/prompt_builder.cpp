#include "gateway/prompt_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string>

#include "kv/key_chain.h"

namespace trimtab::gateway {
namespace {

/// A lower bound of the prompt's tokens that costs no tokenizing.
std::int64_t tokens_at_least(std::span<const text::Segment> segments, std::size_t longest_token_bytes) {
  std::size_t bytes = 0;
  std::int64_t tokens = 0;
  for (const text::Segment& segment : segments) {
    if (const auto* literal = std::get_if<text::Literal>(&segment)) {
      bytes += literal->text.size();
    } else if (const auto* answer = std::get_if<text::Answer>(&segment)) {
      bytes += answer->text.size();
    } else if (const auto* image = std::get_if<text::ImageMark>(&segment)) {
      tokens += image->tokens;
    } else {
      ++tokens;
    }
  }
  return tokens + static_cast<std::int64_t>((bytes + longest_token_bytes - 1) / longest_token_bytes);
}

}  // namespace

std::size_t longest_token_bytes(const text::Tokenizer& tokenizer) {
  std::size_t longest = 1;
  for (std::size_t id = 0; id < tokenizer.vocabulary_size(); ++id) {
    const auto token = static_cast<text::TokenId>(id);
    if (!tokenizer.is_special(token)) longest = std::max(longest, tokenizer.token_bytes(token).size());
  }
  return longest;
}

tl::unexpected<base::Error> prompt_too_long(std::int64_t tokens, std::int64_t tokens_max, bool at_least) {
  // These words are what agents look for before they shorten their history.
  return base::fail(
      base::Code::kInvalidArgument,
      fmt::format("prompt is too long: {}{} tokens > {} maximum (the model's context, less one token "
                  "of answer)",
                  at_least ? "at least " : "", tokens, tokens_max),
      "context");
}

base::Result<BuiltPrompt> build_prompt(const PromptText& text, ChatRequest& request,
                                       const model::VisionSpec& vision, text::AnswerLookup* answers,
                                       std::int64_t tokens_max, std::size_t longest_token_bytes) {
  const auto segments = text::render(text.chat, request.conversation);
  if (!segments)
    return tl::unexpected(base::Error{segments.error().code, segments.error().message, "messages"});
  const std::int64_t least = tokens_at_least(*segments, longest_token_bytes);
  if (least > tokens_max) return prompt_too_long(least, tokens_max, true);

  text::Prompt prompt = text::tokenize_prompt(text.tokenizer, *segments, vision.image_token, answers);
  const auto tokens = static_cast<std::int64_t>(prompt.ids.size());
  if (tokens > tokens_max) return prompt_too_long(tokens, tokens_max, false);

  BuiltPrompt built;
  for (const text::PromptImage& placed : prompt.images) {
    ImageInput& input = request.images[placed.image];
    cluster::PromptImage image;
    image.span.position = placed.position;
    image.span.tokens = placed.tokens;
    image.span.width = input.header.width;
    image.span.height = input.header.height;
    image.span.patches = input.patches;
    image.span.content = kv::content_key(std::as_bytes(std::span(input.bytes)));
    image.media_type = std::string(input.header.media_type);
    image.bytes = std::move(input.bytes);
    built.images.push_back(std::move(image));
  }
  built.context = text::context_of(prompt.ids);
  built.tokens = std::move(prompt.ids);
  built.answers_remembered = prompt.answers_remembered;
  built.answers_retokenized = prompt.answers_retokenized;
  return built;
}

}  // namespace trimtab::gateway
