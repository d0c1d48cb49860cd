#include "text/tokenize_command.h"

#include <istream>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>
#include <stdexcept>
#include <vector>

#include "gguf/gguf_file.h"
#include "text/chat.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace trimtab::text {

namespace {

using nlohmann::json;

std::string to_hex(std::string_view bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string hex;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    hex += kDigits[byte >> 4];
    hex += kDigits[byte & 15];
  }
  return hex;
}

/// Throws std::invalid_argument on anything but pairs of hexadecimal digits.
std::string from_hex(const std::string& hex) {
  if (hex.size() % 2 != 0) throw std::invalid_argument("hex has an odd number of digits");
  std::string bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2) {
    std::size_t used = 0;
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), &used, 16));
    if (used != 2) throw std::invalid_argument("hex holds '" + hex.substr(i, 2) + "'");
  }
  return bytes;
}

/// Roles and plain texts to the prompt that the gateway would make of them.
json prompt_ids(const Tokenizer& tokenizer, const ChatTemplate& chat, const json& messages) {
  const std::map<std::string, ChatRole> roles{
      {"system", ChatRole::kSystem}, {"user", ChatRole::kUser}, {"assistant", ChatRole::kAssistant}};
  Conversation conversation;
  for (const json& message : messages) {
    const auto role = roles.find(message.at("role").get<std::string>());
    if (role == roles.end()) throw std::invalid_argument("a role is system, user or assistant");
    conversation.messages.push_back({role->second, {TextPart{message.at("content").get<std::string>()}}});
  }
  const auto segments = render(chat, conversation);
  if (!segments) throw std::invalid_argument(segments.error().message);
  return {{"ids", tokenize_prompt(tokenizer, *segments, 0).ids}};
}

json answer(const Tokenizer& tokenizer, const ChatTemplate& chat, const std::string& line) {
  try {
    const json request = json::parse(line);
    if (request.contains("messages")) return prompt_ids(tokenizer, chat, request["messages"]);
    if (request.contains("ids")) {
      const auto ids = request["ids"].get<std::vector<TokenId>>();
      const std::string bytes = tokenizer.decode(ids);
      return {{"text", repair_utf8(bytes)}, {"hex", to_hex(bytes)}};
    }
    const std::string text = request.contains("hex") ? from_hex(request["hex"].get<std::string>())
                                                     : request.at("text").get<std::string>();
    return {{"ids", tokenizer.encode(text, request.value("special", false))}};
  } catch (const std::exception& error) {
    return {{"error", repair_utf8(error.what())}};
  }
}

}  // namespace

int tokenize_command(const std::string& model_path, std::istream& in, std::ostream& out, std::ostream& err) {
  const auto file = gguf::GgufFile::open(model_path);
  if (!file) {
    err << base::to_string(file.error()) << "\n";
    return 1;
  }
  const auto tokenizer = Tokenizer::load(*file);
  if (!tokenizer) {
    err << base::to_string(tokenizer.error()) << "\n";
    return 1;
  }
  const auto chat = ChatTemplate::load(*file, *tokenizer);
  if (!chat) {
    err << base::to_string(chat.error()) << "\n";
    return 1;
  }
  for (std::string line; std::getline(in, line);) {
    if (!line.empty())
      out << answer(*tokenizer, *chat, line).dump(-1, ' ', /*ensure_ascii=*/true) << "\n" << std::flush;
  }
  return 0;
}

}  // namespace trimtab::text
