#include "kv_remote/redis/redis_login.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <fstream>
#include <optional>

namespace trimtab::kv_remote {

namespace {

tl::unexpected<base::Error> refuse(std::string message) {
  return base::fail(base::Code::kInvalidArgument, std::move(message), "kv_remote");
}

std::optional<std::string> decoded(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    unsigned char byte = 0;
    if (i + 2 >= text.size()) return std::nullopt;
    const auto [end, bad] = std::from_chars(text.data() + i + 1, text.data() + i + 3, byte, 16);
    if (bad != std::errc{} || end != text.data() + i + 3) return std::nullopt;
    out += static_cast<char>(byte);
    i += 2;
  }
  return out;
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

base::Result<RedisAddress> parse_redis_address(std::string_view text) {
  RedisAddress address;
  const std::size_t at = text.rfind('@');
  if (at == std::string_view::npos) {
    address.server = text;
    return address;
  }
  address.server = text.substr(at + 1);
  const std::string_view who = text.substr(0, at);
  const std::size_t colon = who.find(':');
  if (colon == std::string_view::npos || colon + 1 == who.size())
    return refuse(
        fmt::format("redis://...@{}: say user:password@, or :password@ for Redis's default user, or "
                    "neither and set TRIMTAB_REDIS_PASSWORD_FILE",
                    address.server));
  const auto user = decoded(who.substr(0, colon)), password = decoded(who.substr(colon + 1));
  if (!user || !password)
    return refuse(
        fmt::format("redis://...@{}: a % in user or password begins the two hex digits of a sign: "
                    "write it as %25",
                    address.server));
  address.login = {*user, *password};
  return address;
}

base::Result<RedisLogin> redis_login_from_environment() {
  RedisLogin login{variable("TRIMTAB_REDIS_USER"), variable("TRIMTAB_REDIS_PASSWORD")};
  const std::string path = variable("TRIMTAB_REDIS_PASSWORD_FILE");
  if (path.empty() || !login.password.empty()) return login;
  std::ifstream file(path);
  std::getline(file, login.password);
  while (!login.password.empty() && login.password.back() == '\r') login.password.pop_back();
  if (login.password.empty())
    return refuse(
        fmt::format("TRIMTAB_REDIS_PASSWORD_FILE = {}: cannot be read, or its first line is empty: "
                    "write the password there",
                    path));
  return login;
}

}  // namespace trimtab::kv_remote
