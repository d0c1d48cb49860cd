#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/error.h"
#include "gguf/gguf_file.h"
#include "text/tokenizer.h"

namespace trimtab::text {

/// Words of a message, as the client (or the model) wrote them.
struct TextPart {
  std::string text;
};

/// Image `image` of the request stands here as `tokens` placeholder tokens.
struct ImagePart {
  std::uint32_t image = 0;
  std::uint32_t tokens = 0;
};

/// A tool call that the assistant made. `input_json` must be valid JSON; it is rendered in canonical form
/// (compact, keys sorted), so that a client's own formatting changes no token.
struct ToolUsePart {
  std::string id;
  std::string name;
  std::string input_json;
};

/// What a tool answered: text and images.
struct ToolResultPart {
  std::string id;
  std::vector<std::variant<TextPart, ImagePart>> content;
  bool is_error = false;
};

using Part = std::variant<TextPart, ImagePart, ToolUsePart, ToolResultPart>;

enum class ChatRole : std::uint8_t { kSystem, kUser, kAssistant, kTool };

struct ChatMessage {
  ChatRole role = ChatRole::kUser;
  std::vector<Part> parts;
};

struct ToolSpec {
  std::string name;
  std::string description;
  std::string parameters_json;  // a JSON schema; "" means no parameters
};

struct Conversation {
  std::string system;  // "" takes the model's own default; a leading kSystem message counts as well
  std::vector<ToolSpec> tools;
  std::vector<ChatMessage> messages;
};

/// Pieces of a rendered prompt. Only `SpecialToken` yields special tokens: client text is always `Literal`.
struct SpecialToken {
  TokenId id = 0;
};
struct Literal {
  std::string text;
};
struct ImageMark {
  std::uint32_t image = 0;
  std::uint32_t tokens = 0;
};
/// The content of a past assistant turn: `text` when nothing is remembered for it.
struct Answer {
  std::string text;
};
using Segment = std::variant<SpecialToken, Literal, ImageMark, Answer>;

/// ChatML with the special tokens of the vocabulary and the default system prompt of the model file's own
/// template (docs/text.md shows the exact form, tools included).
struct ChatTemplate {
  TokenId turn_start = 0;  // <|im_start|>
  TokenId turn_end = 0;    // <|im_end|>; also the stop token
  std::string default_system;

  /// kUnsupported when the file's template is not ChatML or the vocabulary lacks its tokens.
  static base::Result<ChatTemplate> load(const gguf::GgufFile& file, const Tokenizer& tokenizer);
};

/// Renders a conversation. With `add_generation_prompt` the prompt ends where the assistant's answer begins.
/// Errors (kInvalidArgument): broken JSON in a tool or a tool call, a system message that is not the first.
base::Result<std::vector<Segment>> render(const ChatTemplate& chat, const Conversation& conversation,
                                          bool add_generation_prompt = true);

/// The text under which an assistant turn is remembered: its parts as the template renders them.
base::Result<std::string> answer_text(const ChatMessage& assistant);

/// Finds the ids that were generated for an assistant turn. `context` is `context_of` of all ids before it.
class AnswerLookup {
 public:
  virtual ~AnswerLookup() = default;
  virtual std::optional<std::vector<TokenId>> find(std::string_view text, std::uint64_t context) = 0;
};

/// Identity of the ids that precede an answer; `AnswerMemory::remember` wants it for the prompt.
std::uint64_t context_of(std::span<const TokenId> ids);

struct PromptImage {
  std::uint32_t image = 0;     // index in the request
  std::uint32_t position = 0;  // of its first placeholder in `ids`
  std::uint32_t tokens = 0;
};

struct Prompt {
  std::vector<TokenId> ids;
  std::vector<PromptImage> images;       // in prompt order
  std::uint32_t answers_remembered = 0;  // past assistant turns taken as they were generated
  std::uint32_t answers_retokenized = 0;
};

/// Ids of rendered segments. Neighbouring literals are tokenized as one text; an answer is tokenized on its
/// own, as it was generated after the prompt's last token. `image_token` fills image positions; `answers` may
/// be null.
Prompt tokenize_prompt(const Tokenizer& tokenizer, std::span<const Segment> segments, TokenId image_token,
                       AnswerLookup* answers = nullptr);

}  // namespace trimtab::text
