#include "text/chat.h"

#include <fmt/format.h>

#include "base/hash.h"
#include "text/canonical_json.h"

namespace trimtab::text {

namespace {

constexpr std::string_view kTurnStart = "<|im_start|>";
constexpr std::string_view kTurnEnd = "<|im_end|>";

tl::unexpected<base::Error> invalid(std::string message) {
  return base::fail(base::Code::kInvalidArgument, std::move(message), "text");
}

/// Collects segments; neighbouring literals become one, since they are tokenized as one text.
class Builder {
 public:
  explicit Builder(const ChatTemplate& chat) : chat_(chat) {}

  void begin_turn(std::string_view role) {
    segments_.emplace_back(SpecialToken{chat_.turn_start});
    literal(role);
    literal("\n");
  }
  void end_turn() {
    segments_.emplace_back(SpecialToken{chat_.turn_end});
    literal("\n");
  }
  void literal(std::string_view text) {
    if (text.empty()) return;
    if (segments_.empty() || !std::holds_alternative<Literal>(segments_.back()))
      segments_.emplace_back(Literal{});
    std::get<Literal>(segments_.back()).text += text;
  }
  void image(const ImagePart& part) { segments_.emplace_back(ImageMark{part.image, part.tokens}); }
  void answer(std::string text) { segments_.emplace_back(Answer{std::move(text)}); }
  std::vector<Segment> take() { return std::move(segments_); }

 private:
  const ChatTemplate& chat_;
  std::vector<Segment> segments_;
};

std::string joined_text(const ChatMessage& message) {
  std::string text;
  for (const Part& part : message.parts) {
    if (const auto* words = std::get_if<TextPart>(&part)) {
      if (!text.empty()) text += "\n";
      text += words->text;
    }
  }
  return text;
}

base::Result<std::string> tools_text(const std::vector<ToolSpec>& tools) {
  std::string text = "You have access to the following tools:\n<tools>\n";
  for (const ToolSpec& tool : tools) {
    nlohmann::json entry{{"name", tool.name}, {"description", tool.description}};
    if (!tool.parameters_json.empty()) {
      auto parameters = parse_json(tool.parameters_json, fmt::format("the schema of tool {}", tool.name));
      if (!parameters) return tl::unexpected(parameters.error());
      entry["parameters"] = std::move(*parameters);
    }
    text += entry.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    text += "\n";
  }
  text +=
      "</tools>\nTo call a tool, answer with its name and arguments as JSON:\n<tool_call>\n"
      R"({"arguments":{"argument":"value"},"name":"tool"})"
      "\n</tool_call>";
  return text;
}

base::Result<std::string> system_text(const ChatTemplate& chat, const Conversation& conversation) {
  std::string text = conversation.system;
  const auto& messages = conversation.messages;
  if (!messages.empty() && messages.front().role == ChatRole::kSystem) {
    const std::string own = joined_text(messages.front());
    text += text.empty() || own.empty() ? own : "\n\n" + own;
  }
  if (text.empty()) text = chat.default_system;
  if (!conversation.tools.empty()) {
    auto tools = tools_text(conversation.tools);
    if (!tools) return tools;
    text += text.empty() ? *tools : "\n\n" + *tools;
  }
  return text;
}

void add_result(const ToolResultPart& result, Builder& out) {
  out.literal(result.is_error ? "<tool_response error>\n" : "<tool_response>\n");
  for (const auto& content : result.content) {
    if (const auto* words = std::get_if<TextPart>(&content)) {
      out.literal(words->text);
    } else {
      out.image(std::get<ImagePart>(content));
    }
    out.literal("\n");
  }
  out.literal("</tool_response>");
}

base::Status add_user_turn(const ChatMessage& message, std::size_t index, Builder& out) {
  out.begin_turn("user");
  bool first = true;
  for (const Part& part : message.parts) {
    if (!first) out.literal("\n");
    first = false;
    if (const auto* words = std::get_if<TextPart>(&part)) {
      out.literal(words->text);
    } else if (const auto* image = std::get_if<ImagePart>(&part)) {
      out.image(*image);
    } else if (const auto* result = std::get_if<ToolResultPart>(&part)) {
      add_result(*result, out);
    } else {
      return invalid(fmt::format("message {}: a tool call can only stand in an assistant message", index));
    }
  }
  out.end_turn();
  return {};
}

/// The text between `<|im_start|>system` and `<|im_end|>` in a Jinja template, whose line feed may be written
/// as one or as the two characters of its escape.
std::string default_system_of(std::string_view jinja) {
  const std::string opening = std::string(kTurnStart) + "system";
  std::size_t begin = jinja.find(opening);
  if (begin == std::string_view::npos) return {};
  begin += opening.size();
  if (jinja.substr(begin).starts_with("\n")) {
    begin += 1;
  } else if (jinja.substr(begin).starts_with("\\n")) {
    begin += 2;
  } else {
    return {};
  }
  const std::size_t end = jinja.find(kTurnEnd, begin);
  const std::string_view text = jinja.substr(begin, end == std::string_view::npos ? 0 : end - begin);
  return text.find('\'') == std::string_view::npos ? std::string(text)
                                                   : std::string();  // an expression, no text
}

}  // namespace

base::Result<ChatTemplate> ChatTemplate::load(const gguf::GgufFile& file, const Tokenizer& tokenizer) {
  const auto jinja = file.string("tokenizer.chat_template");
  if (!jinja) return tl::unexpected(jinja.error());
  const auto start = tokenizer.special(kTurnStart);
  const auto end = tokenizer.special(kTurnEnd);
  if (jinja->find(kTurnStart) == std::string_view::npos || !start || !end) {
    return base::fail(
        base::Code::kUnsupported,
        "the model's chat template is not ChatML (<|im_start|> and <|im_end|>), the one known here", "text");
  }
  return ChatTemplate{*start, *end, default_system_of(*jinja)};
}

base::Result<std::string> answer_text(const ChatMessage& assistant) {
  std::string text;
  bool first = true;
  for (const Part& part : assistant.parts) {
    if (!first) text += "\n";
    first = false;
    if (const auto* words = std::get_if<TextPart>(&part)) {
      text += words->text;
    } else if (const auto* call = std::get_if<ToolUsePart>(&part)) {
      auto input = parse_json(call->input_json, fmt::format("the input of tool call {}", call->id));
      if (!input) return tl::unexpected(input.error());
      const nlohmann::json entry{{"name", call->name}, {"arguments", std::move(*input)}};
      text += "<tool_call>\n" + entry.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) +
              "\n</tool_call>";
    } else {
      return invalid("an assistant message can hold text and tool calls only");
    }
  }
  return text;
}

base::Result<std::vector<Segment>> render(const ChatTemplate& chat, const Conversation& conversation,
                                          bool add_generation_prompt) {
  const auto& messages = conversation.messages;
  if (messages.empty()) return invalid("the conversation has no messages");
  Builder out(chat);
  const auto system = system_text(chat, conversation);
  if (!system) return tl::unexpected(system.error());
  if (!system->empty()) {
    out.begin_turn("system");
    out.literal(*system);
    out.end_turn();
  }
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const bool last = i + 1 == messages.size();
    switch (messages[i].role) {
      case ChatRole::kSystem:
        if (i > 0) return invalid(fmt::format("message {}: a system message can only be the first", i));
        break;
      case ChatRole::kAssistant: {
        auto text = answer_text(messages[i]);
        if (!text) return tl::unexpected(text.error());
        out.begin_turn("assistant");
        out.answer(std::move(*text));
        if (last && add_generation_prompt) return out.take();  // the model goes on with these words
        out.end_turn();
        break;
      }
      case ChatRole::kUser:
      case ChatRole::kTool:
        TRIMTAB_TRY(add_user_turn(messages[i], i, out));
        break;
    }
  }
  if (add_generation_prompt) out.begin_turn("assistant");
  return out.take();
}

std::uint64_t context_of(std::span<const TokenId> ids) { return base::checksum_of(ids); }

Prompt tokenize_prompt(const Tokenizer& tokenizer, std::span<const Segment> segments, TokenId image_token,
                       AnswerLookup* answers) {
  Prompt prompt;
  for (const Segment& segment : segments) {
    if (const auto* special = std::get_if<SpecialToken>(&segment)) {
      prompt.ids.push_back(special->id);
    } else if (const auto* literal = std::get_if<Literal>(&segment)) {
      tokenizer.encode_to(literal->text, false, prompt.ids);
    } else if (const auto* image = std::get_if<ImageMark>(&segment)) {
      prompt.images.push_back({image->image, static_cast<std::uint32_t>(prompt.ids.size()), image->tokens});
      prompt.ids.insert(prompt.ids.end(), image->tokens, image_token);
    } else {
      const std::string& text = std::get<Answer>(segment).text;
      auto ids = answers == nullptr ? std::nullopt : answers->find(text, context_of(prompt.ids));
      ids ? ++prompt.answers_remembered : ++prompt.answers_retokenized;
      if (ids) {
        prompt.ids.insert(prompt.ids.end(), ids->begin(), ids->end());
      } else {
        tokenizer.encode_to(text, false, prompt.ids);
      }
    }
  }
  return prompt;
}

}  // namespace trimtab::text
