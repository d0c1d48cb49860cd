#include "gateway/openai_request.h"

#include <fmt/format.h>

#include "gateway/image_input.h"
#include "gateway/json_out.h"
#include "gateway/request_common.h"

namespace trimtab::gateway {
namespace {

tl::unexpected<base::Error> unsupported(const std::string& where, std::string_view message) {
  return base::fail(base::Code::kUnsupported, fmt::format("{}: {}", where, message), where);
}

/// Parses the messages one by one, knowing what stood before.
class MessageReader {
 public:
  MessageReader(ChatRequest& request, const RequestLimits& limits) : request_(request), limits_(limits) {}

  base::Status read(const JsonObject& message, const std::string& where) {
    const auto role = string_member(message, "role", where + ".");
    if (!role) return tl::unexpected(role.error());
    if (!*role) return bad_member(where + ".role", "missing");
    if (**role == "system" || **role == "developer") return read_system(message, where);
    if (**role == "user") return read_user(message, where);
    if (**role == "assistant") return read_assistant(message, where);
    if (**role == "tool" || **role == "function") return read_tool(message, where);
    return bad_member(
        where + ".role",
        fmt::format("\"{}\" is not one of system, developer, user, assistant, tool", (*role)->substr(0, 50)));
  }

 private:
  std::vector<text::ChatMessage>& messages() { return request_.conversation.messages; }

  /// A string, or a list of parts; `add` takes each part.
  base::Status read_content(const JsonObject& message, const std::string& where, bool images,
                            std::vector<std::variant<text::TextPart, text::ImagePart>>& out) {
    const auto content = member(message, "content");
    if (!content) return bad_member(where + ".content", "missing; a string or a list of parts is expected");
    std::string_view words;
    if (content->get(words) == simdjson::SUCCESS) {
      out.emplace_back(text::TextPart{std::string(words)});
      return {};
    }
    const auto parts = as_array(*content, where + ".content");
    if (!parts) return tl::unexpected(parts.error());
    std::size_t index = 0;
    for (const JsonValue part : *parts)
      TRIMTAB_TRY(read_part(part, fmt::format("{}.content[{}]", where, index++), images, out));
    return {};
  }

  base::Status read_part(JsonValue value, const std::string& where, bool images,
                         std::vector<std::variant<text::TextPart, text::ImagePart>>& out) {
    const auto part = as_object(value, where);
    if (!part) return tl::unexpected(part.error());
    const auto type = string_member(*part, "type", where + ".");
    if (!type) return tl::unexpected(type.error());
    const std::string_view kind = type->value_or("");
    if (kind == "text" || kind == "refusal") {
      const auto words = string_member(*part, kind, where + ".");
      if (!words) return tl::unexpected(words.error());
      if (!*words) return bad_member(where + "." + std::string(kind), "missing");
      out.emplace_back(text::TextPart{std::string(**words)});
      return {};
    }
    if (kind == "image_url" && images) {
      const auto holder = member(*part, "image_url");
      if (!holder) return bad_member(where + ".image_url", "missing");
      std::string_view url;
      if (holder->get(url) != simdjson::SUCCESS) {
        const auto object = as_object(*holder, where + ".image_url");
        if (!object) return tl::unexpected(object.error());
        const auto given = string_member(*object, "url", where + ".image_url.");
        if (!given) return tl::unexpected(given.error());
        if (!*given) return bad_member(where + ".image_url.url", "missing");
        url = **given;
      }
      const auto image = add_image_url(request_, limits_, url, where + ".image_url.url");
      if (!image) return tl::unexpected(image.error());
      out.emplace_back(*image);
      return {};
    }
    return unsupported(where + ".type", fmt::format("\"{}\" parts are not taken here", kind.substr(0, 50)));
  }

  base::Status read_system(const JsonObject& message, const std::string& where) {
    if (!messages().empty())
      return bad_member(where + ".role", "system and developer messages must stand before all others");
    std::vector<std::variant<text::TextPart, text::ImagePart>> content;
    TRIMTAB_TRY(read_content(message, where, false, content));
    for (const auto& part : content)
      append_line(request_.conversation.system, std::get<text::TextPart>(part).text);
    return {};
  }

  base::Status read_user(const JsonObject& message, const std::string& where) {
    std::vector<std::variant<text::TextPart, text::ImagePart>> content;
    TRIMTAB_TRY(read_content(message, where, true, content));
    text::ChatMessage turn{text::ChatRole::kUser, {}};
    for (auto& part : content) std::visit([&](auto& p) { turn.parts.emplace_back(std::move(p)); }, part);
    messages().push_back(std::move(turn));
    return {};
  }

  base::Status read_assistant(const JsonObject& message, const std::string& where) {
    text::ChatMessage turn{text::ChatRole::kAssistant, {}};
    const auto calls = member(message, "tool_calls");
    if (member(message, "content")) {
      std::vector<std::variant<text::TextPart, text::ImagePart>> content;
      TRIMTAB_TRY(read_content(message, where, false, content));
      for (auto& part : content) {
        auto& words = std::get<text::TextPart>(part);
        // "" beside tool calls means no words; it must not become an empty line in front of the call.
        if (!words.text.empty() || !calls) turn.parts.emplace_back(std::move(words));
      }
    } else if (!calls) {
      return bad_member(where + ".content", "missing; an assistant message holds content or tool_calls");
    }
    if (calls) {
      const auto list = as_array(*calls, where + ".tool_calls");
      if (!list) return tl::unexpected(list.error());
      std::size_t index = 0;
      for (const JsonValue call : *list)
        TRIMTAB_TRY(read_call(call, fmt::format("{}.tool_calls[{}]", where, index++), turn));
    }
    messages().push_back(std::move(turn));
    return {};
  }

  base::Status read_call(JsonValue value, const std::string& where, text::ChatMessage& turn) {
    const auto call = as_object(value, where);
    if (!call) return tl::unexpected(call.error());
    const auto id = string_member(*call, "id", where + ".");
    if (!id) return tl::unexpected(id.error());
    const auto holder = member(*call, "function");
    if (!holder) return bad_member(where + ".function", "missing");
    const auto function = as_object(*holder, where + ".function");
    if (!function) return tl::unexpected(function.error());
    const auto name = string_member(*function, "name", where + ".function.");
    if (!name) return tl::unexpected(name.error());
    if (!*name) return bad_member(where + ".function.name", "missing");
    const auto arguments = string_member(*function, "arguments", where + ".function.");
    if (!arguments) return tl::unexpected(arguments.error());
    std::string input(arguments->value_or("{}"));
    if (input.empty()) input = "{}";
    if (!is_json(input)) {
      // A model may have written broken JSON once; its conversation must still go on.
      std::string quoted;
      append_json_string(quoted, input);
      input = std::move(quoted);
    }
    turn.parts.emplace_back(
        text::ToolUsePart{std::string(id->value_or("")), std::string(**name), std::move(input)});
    return {};
  }

  base::Status read_tool(const JsonObject& message, const std::string& where) {
    const bool after_tool = !messages().empty() && messages().back().role == text::ChatRole::kTool;
    const bool after_call = !messages().empty() && messages().back().role == text::ChatRole::kAssistant &&
                            !messages().back().parts.empty() &&
                            std::holds_alternative<text::ToolUsePart>(messages().back().parts.back());
    if (!after_tool && !after_call)
      return bad_member(where + ".role", "a tool message must follow an assistant message with tool_calls");
    const auto id = string_member(message, "tool_call_id", where + ".");
    if (!id) return tl::unexpected(id.error());
    text::ToolResultPart result{std::string(id->value_or("")), {}, false};
    TRIMTAB_TRY(read_content(message, where, true, result.content));
    if (!after_tool) messages().push_back({text::ChatRole::kTool, {}});
    messages().back().parts.emplace_back(std::move(result));
    return {};
  }

  ChatRequest& request_;
  const RequestLimits& limits_;
};

base::Status read_tools(const JsonObject& body, ChatRequest& request) {
  const auto value = member(body, "tools");
  if (!value) return {};
  const auto list = as_array(*value, "tools");
  if (!list) return tl::unexpected(list.error());
  std::string_view choice;
  const auto chosen = member(body, "tool_choice");
  const bool none = chosen && chosen->get(choice) == simdjson::SUCCESS && choice == "none";
  std::size_t index = 0;
  for (const JsonValue item : *list) {
    const std::string where = fmt::format("tools[{}]", index++);
    const auto tool = as_object(item, where);
    if (!tool) return tl::unexpected(tool.error());
    const auto holder = member(*tool, "function");
    if (!holder) continue;  // a kind of tool that is not a function: nothing the model could call
    const auto function = as_object(*holder, where + ".function");
    if (!function) return tl::unexpected(function.error());
    const auto name = string_member(*function, "name", where + ".function.");
    if (!name) return tl::unexpected(name.error());
    if (!*name) return bad_member(where + ".function.name", "missing");
    const auto description = string_member(*function, "description", where + ".function.");
    if (!description) return tl::unexpected(description.error());
    const auto parameters = member(*function, "parameters");
    if (none) continue;
    request.conversation.tools.push_back({std::string(**name), std::string(description->value_or("")),
                                          parameters ? compact(*parameters) : std::string()});
  }
  return {};
}

base::Status refuse_unsupported(const JsonObject& body) {
  const auto n = integer_member(body, "n");
  if (!n) return tl::unexpected(n.error());
  if (*n && **n != 1) return unsupported("n", fmt::format("{} answers were asked for; only 1 is given", **n));
  const auto logprobs = bool_member(body, "logprobs");
  if (!logprobs) return tl::unexpected(logprobs.error());
  if (logprobs->value_or(false)) return unsupported("logprobs", "log probabilities are not given");
  if (const auto value = member(body, "response_format")) {
    const auto format = as_object(*value, "response_format");
    if (!format) return tl::unexpected(format.error());
    const auto type = string_member(*format, "type", "response_format.");
    if (!type) return tl::unexpected(type.error());
    if (type->value_or("text") != "text")
      return unsupported("response_format", "only {\"type\": \"text\"} can be honoured");
  }
  if (member(body, "audio")) return unsupported("audio", "audio answers are not given");
  return {};
}

}  // namespace

base::Result<ChatRequest> parse_openai(const JsonObject& body, const RequestLimits& limits) {
  ChatRequest request;
  TRIMTAB_TRY(read_common(body, limits, 2.0, request));
  TRIMTAB_TRY(refuse_unsupported(body));
  TRIMTAB_TRY(read_output_limit(body, "max_tokens", request));
  TRIMTAB_TRY(read_output_limit(body, "max_completion_tokens", request));  // the newer name wins
  TRIMTAB_TRY(read_stops(body, "stop", request));
  if (const auto value = member(body, "stream_options")) {
    const auto options = as_object(*value, "stream_options");
    if (!options) return tl::unexpected(options.error());
    const auto include = bool_member(*options, "include_usage");
    if (!include) return tl::unexpected(include.error());
    request.include_usage = include->value_or(false);
  }
  TRIMTAB_TRY(read_tools(body, request));

  const auto value = member(body, "messages");
  if (!value) return bad_member("messages", "missing; a list with at least one message is expected");
  const auto messages = as_array(*value, "messages");
  if (!messages) return tl::unexpected(messages.error());
  MessageReader reader(request, limits);
  std::size_t index = 0;
  for (const JsonValue item : *messages) {
    const std::string where = fmt::format("messages[{}]", index++);
    const auto message = as_object(item, where);
    if (!message) return tl::unexpected(message.error());
    TRIMTAB_TRY(reader.read(*message, where));
  }
  const auto& turns = request.conversation.messages;
  if (turns.empty()) return bad_member("messages", "at least one message besides the system's is expected");
  request.continues = turns.back().role == text::ChatRole::kAssistant;
  return request;
}

}  // namespace trimtab::gateway
