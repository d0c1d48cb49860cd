#include "gateway/cache_scope.h"

#include <fmt/format.h>

#include <span>

#include "kv/key_chain.h"

namespace trimtab::gateway {
namespace {

/// A member that must say something where it is given: an empty salt would share with everybody what its
/// client means to keep apart.
base::Result<std::string_view> secret_member(const JsonObject& body, std::string_view name) {
  const auto value = member(body, name);
  if (!value) return std::string_view();
  std::string_view text;
  if (value->get(text) != simdjson::SUCCESS)
    return bad_member(std::string(name),
                      fmt::format("must be a non-empty string if given, got {}", kind_of(*value)));
  if (text.empty())
    return bad_member(std::string(name), "must be a non-empty string if given, got an empty string");
  return text;
}

}  // namespace

base::Result<std::string> read_cache_scope(const JsonObject& body) {
  const auto salt = secret_member(body, "cache_salt");
  if (!salt) return tl::unexpected(salt.error());
  const auto extra_key = secret_member(body, "extra_key");
  if (!extra_key) return tl::unexpected(extra_key.error());
  if (salt->empty() && extra_key->empty()) return std::string();
  const std::string parts = fmt::format("{}:{}{}", salt->size(), *salt, *extra_key);
  return model::to_string(kv::content_key(std::as_bytes(std::span(parts.data(), parts.size()))));
}

std::string scoped_answer(std::string_view cache_scope, std::string_view text) {
  if (cache_scope.empty()) return std::string(text);
  // No text has this byte: texts are UTF-8.
  return fmt::format("\xff{}{}", cache_scope, text);
}

}  // namespace trimtab::gateway
