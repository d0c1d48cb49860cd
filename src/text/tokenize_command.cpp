#include "text/tokenize_command.h"

#include <istream>
#include <nlohmann/json.hpp>
#include <ostream>
#include <vector>

#include "gguf/gguf_file.h"
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

json answer(const Tokenizer& tokenizer, const std::string& line) {
  try {
    const json request = json::parse(line);
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
  for (std::string line; std::getline(in, line);) {
    if (!line.empty())
      out << answer(*tokenizer, line).dump(-1, ' ', /*ensure_ascii=*/true) << "\n" << std::flush;
  }
  return 0;
}

}  // namespace trimtab::text
