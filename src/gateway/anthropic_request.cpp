#include "gateway/anthropic_request.h"

#include <fmt/format.h>

#include "gateway/image_input.h"
#include "gateway/request_common.h"

namespace trimtab::gateway {
namespace {

constexpr std::string_view kBillingHeader = "x-anthropic-billing-header";

using Content = std::vector<std::variant<text::TextPart, text::ImagePart>>;

/// Parses content blocks, whose kinds nest (tool results hold blocks).
class BlockReader {
 public:
  BlockReader(ChatRequest& request, const RequestLimits& limits) : request_(request), limits_(limits) {}

  base::Status read_content(JsonValue content, const std::string& where, text::ChatMessage& turn) {
    std::string_view words;
    if (content.get(words) == simdjson::SUCCESS) {
      turn.parts.emplace_back(text::TextPart{std::string(words)});
      return {};
    }
    const auto blocks = as_array(content, where);
    if (!blocks) return tl::unexpected(blocks.error());
    std::size_t index = 0;
    for (const JsonValue value : *blocks) {
      const std::string at = fmt::format("{}.{}", where, index++);
      const auto block = as_object(value, at);
      if (!block) return tl::unexpected(block.error());
      const auto type = string_member(*block, "type", at + ".");
      if (!type) return tl::unexpected(type.error());
      if (!*type) return bad_member(at + ".type", "missing");
      TRIMTAB_TRY(read_block(*block, **type, at, turn));
    }
    return {};
  }

 private:
  base::Status read_block(const JsonObject& block, std::string_view type, const std::string& where,
                          text::ChatMessage& turn) {
    const bool assistant = turn.role == text::ChatRole::kAssistant;
    if (type == "thinking" || type == "redacted_thinking") return {};
    if (type == "tool_use") return read_tool_use(block, where, turn);
    if (type == "tool_result") {
      if (assistant) return bad_member(where, "a tool_result block can only stand in a user message");
      return read_tool_result(block, where, turn);
    }
    if (type == "image" && assistant)
      return bad_member(where, "an image block can only stand in a user message");
    Content content;
    TRIMTAB_TRY(read_simple(block, type, where, content));
    for (auto& part : content) std::visit([&](auto& p) { turn.parts.emplace_back(std::move(p)); }, part);
    return {};
  }

  /// Blocks that may stand in a message and in a tool result alike.
  base::Status read_simple(const JsonObject& block, std::string_view type, const std::string& where,
                           Content& out) {
    if (type == "text") {
      const auto words = string_member(block, "text", where + ".");
      if (!words) return tl::unexpected(words.error());
      if (!*words) return bad_member(where + ".text", "missing");
      out.emplace_back(text::TextPart{std::string(**words)});
      return {};
    }
    if (type == "image") return read_image(block, where, out);
    if (type == "document") return read_document(block, where, out);
    // Not known: the model is told that something stood here, the session goes on.
    const auto words = member(block, "text");
    std::string_view text;
    if (words && words->get(text) == simdjson::SUCCESS) {
      out.emplace_back(text::TextPart{std::string(text)});
    } else {
      out.emplace_back(text::TextPart{fmt::format("[{} block, not shown]", type.substr(0, 50))});
    }
    return {};
  }

  base::Status read_image(const JsonObject& block, const std::string& where, Content& out) {
    const std::string at = where + ".source";
    const auto holder = member(block, "source");
    if (!holder) return bad_member(at, "missing");
    const auto source = as_object(*holder, at);
    if (!source) return tl::unexpected(source.error());
    const auto type = string_member(*source, "type", at + ".");
    if (!type) return tl::unexpected(type.error());
    if (type->value_or("") == "url") {
      const auto url = string_member(*source, "url", at + ".");
      if (!url) return tl::unexpected(url.error());
      const auto image = add_image_url(request_, limits_, url->value_or(""), at + ".url");
      if (!image) return tl::unexpected(image.error());
      out.emplace_back(*image);
      return {};
    }
    if (type->value_or("") != "base64")
      return base::fail(base::Code::kUnsupported, at + ".type: only base64 images are taken", at + ".type");
    const auto media_type = string_member(*source, "media_type", at + ".");
    if (!media_type) return tl::unexpected(media_type.error());
    if (!*media_type) return bad_member(at + ".media_type", "missing");
    const auto data = string_member(*source, "data", at + ".");
    if (!data) return tl::unexpected(data.error());
    if (!*data) return bad_member(at + ".data", "missing");
    const auto image = add_image(request_, limits_, **media_type, **data, at);
    if (!image) return tl::unexpected(image.error());
    out.emplace_back(*image);
    return {};
  }

  /// Text documents are read; of others (PDF) only the title and the kind can be told.
  base::Status read_document(const JsonObject& block, const std::string& where, Content& out) {
    const auto title = string_member(block, "title", where + ".");
    if (!title) return tl::unexpected(title.error());
    std::string words =
        *title ? fmt::format("<document title=\"{}\">\n", **title) : std::string("<document>\n");
    const auto holder = member(block, "source");
    if (!holder) return bad_member(where + ".source", "missing");
    const auto source = as_object(*holder, where + ".source");
    if (!source) return tl::unexpected(source.error());
    const auto type = string_member(*source, "type", where + ".source.");
    if (!type) return tl::unexpected(type.error());
    const auto content = member(*source, type->value_or("") == "content" ? "content" : "data");
    std::string_view data;
    if (type->value_or("") == "text" && content && content->get(data) == simdjson::SUCCESS) {
      out.emplace_back(text::TextPart{words + std::string(data) + "\n</document>"});
      return {};
    }
    if (type->value_or("") == "content" && content)
      return read_nested(*content, where + ".source.content", out);
    out.emplace_back(text::TextPart{words + "[its content cannot be read by this model]\n</document>"});
    return {};
  }

  base::Status read_nested(JsonValue content, const std::string& where, Content& out) {
    std::string_view words;
    if (content.get(words) == simdjson::SUCCESS) {
      out.emplace_back(text::TextPart{std::string(words)});
      return {};
    }
    const auto blocks = as_array(content, where);
    if (!blocks) return tl::unexpected(blocks.error());
    std::size_t index = 0;
    for (const JsonValue value : *blocks) {
      const std::string at = fmt::format("{}.{}", where, index++);
      const auto block = as_object(value, at);
      if (!block) return tl::unexpected(block.error());
      const auto type = string_member(*block, "type", at + ".");
      if (!type) return tl::unexpected(type.error());
      TRIMTAB_TRY(read_simple(*block, type->value_or("untyped"), at, out));
    }
    return {};
  }

  base::Status read_tool_use(const JsonObject& block, const std::string& where, text::ChatMessage& turn) {
    if (turn.role != text::ChatRole::kAssistant)
      return bad_member(where, "a tool_use block can only stand in an assistant message");
    const auto id = string_member(block, "id", where + ".");
    if (!id) return tl::unexpected(id.error());
    const auto name = string_member(block, "name", where + ".");
    if (!name) return tl::unexpected(name.error());
    if (!*name) return bad_member(where + ".name", "missing");
    const auto input = member(block, "input");
    turn.parts.emplace_back(text::ToolUsePart{std::string(id->value_or("")), std::string(**name),
                                              input ? compact(*input) : std::string("{}")});
    return {};
  }

  base::Status read_tool_result(const JsonObject& block, const std::string& where, text::ChatMessage& turn) {
    const auto id = string_member(block, "tool_use_id", where + ".");
    if (!id) return tl::unexpected(id.error());
    const auto is_error = bool_member(block, "is_error");
    if (!is_error) return tl::unexpected(is_error.error());
    text::ToolResultPart result{std::string(id->value_or("")), {}, is_error->value_or(false)};
    if (const auto content = member(block, "content"))
      TRIMTAB_TRY(read_nested(*content, where + ".content", result.content));
    turn.parts.emplace_back(std::move(result));
    return {};
  }

  ChatRequest& request_;
  const RequestLimits& limits_;
};

base::Status read_system(const JsonObject& body, ChatRequest& request) {
  const auto value = member(body, "system");
  if (!value) return {};
  std::string_view words;
  if (value->get(words) == simdjson::SUCCESS) {
    request.conversation.system = std::string(words);
    return {};
  }
  const auto blocks = as_array(*value, "system");
  if (!blocks) return tl::unexpected(blocks.error());
  std::size_t index = 0;
  for (const JsonValue item : *blocks) {
    const std::string where = fmt::format("system.{}", index++);
    const auto block = as_object(item, where);
    if (!block) return tl::unexpected(block.error());
    const auto piece = string_member(*block, "text", where + ".");
    if (!piece) return tl::unexpected(piece.error());
    if (*piece && !(*piece)->starts_with(kBillingHeader)) append_line(request.conversation.system, **piece);
  }
  return {};
}

base::Status read_tools(const JsonObject& body, ChatRequest& request) {
  const auto value = member(body, "tools");
  if (!value) return {};
  const auto list = as_array(*value, "tools");
  if (!list) return tl::unexpected(list.error());
  if (const auto chosen = member(body, "tool_choice")) {
    const auto choice = as_object(*chosen, "tool_choice");
    if (!choice) return tl::unexpected(choice.error());
    const auto type = string_member(*choice, "type", "tool_choice.");
    if (!type) return tl::unexpected(type.error());
    if (type->value_or("") == "none") return {};
  }
  std::size_t index = 0;
  for (const JsonValue item : *list) {
    const std::string where = fmt::format("tools.{}", index++);
    const auto tool = as_object(item, where);
    if (!tool) return tl::unexpected(tool.error());
    const auto name = string_member(*tool, "name", where + ".");
    if (!name) return tl::unexpected(name.error());
    if (!*name) return bad_member(where + ".name", "missing");
    const auto description = string_member(*tool, "description", where + ".");
    if (!description) return tl::unexpected(description.error());
    const auto schema = member(*tool, "input_schema");  // absent for tools that the real service runs itself
    request.conversation.tools.push_back({std::string(**name), std::string(description->value_or("")),
                                          schema ? compact(*schema) : std::string()});
  }
  return {};
}

base::Status read_messages(const JsonObject& body, const RequestLimits& limits, ChatRequest& request) {
  const auto value = member(body, "messages");
  if (!value) return bad_member("messages", "missing; a list with at least one message is expected");
  const auto messages = as_array(*value, "messages");
  if (!messages) return tl::unexpected(messages.error());
  BlockReader reader(request, limits);
  auto& turns = request.conversation.messages;
  for (const JsonValue item : *messages) {
    const std::string where = fmt::format("messages.{}", turns.size());
    const auto message = as_object(item, where);
    if (!message) return tl::unexpected(message.error());
    const auto role = string_member(*message, "role", where + ".");
    if (!role) return tl::unexpected(role.error());
    const std::string_view name = role->value_or("");
    if (name != "user" && name != "assistant")
      return bad_member(
          where + ".role",
          fmt::format("\"{}\" is not one of user, assistant (the system prompt is the top-level "
                      "\"system\")",
                      name.substr(0, 50)));
    if (turns.empty() && name != "user")
      return bad_member(where + ".role", "the first message must be the user's");
    text::ChatMessage turn{name == "user" ? text::ChatRole::kUser : text::ChatRole::kAssistant, {}};
    const auto content = member(*message, "content");
    if (!content) return bad_member(where + ".content", "missing");
    TRIMTAB_TRY(reader.read_content(*content, where + ".content", turn));
    const bool empty = turn.parts.empty() ||
                       (turn.parts.size() == 1 && std::holds_alternative<text::TextPart>(turn.parts[0]) &&
                        std::get<text::TextPart>(turn.parts[0]).text.empty());
    if (empty && name == "user") return bad_member(where + ".content", "must not be empty");
    turns.push_back(std::move(turn));
  }
  if (turns.empty()) return bad_member("messages", "at least one message is required");
  return {};
}

}  // namespace

base::Result<ChatRequest> parse_anthropic(const JsonObject& body, const RequestLimits& limits,
                                          bool needs_max_tokens) {
  ChatRequest request;
  TRIMTAB_TRY(read_common(body, limits, 1.0, request));
  TRIMTAB_TRY(read_output_limit(body, "max_tokens", request));
  if (needs_max_tokens && !request.output_limit)
    return bad_member("max_tokens", "missing; an integer of at least 1");
  TRIMTAB_TRY(read_stops(body, "stop_sequences", request));
  TRIMTAB_TRY(read_system(body, request));
  TRIMTAB_TRY(read_tools(body, request));
  TRIMTAB_TRY(read_messages(body, limits, request));
  request.continues = request.conversation.messages.back().role == text::ChatRole::kAssistant;
  return request;
}

}  // namespace trimtab::gateway
