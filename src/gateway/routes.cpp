#include "gateway/routes.h"

namespace trimtab::gateway {

RouteMatch find_route(std::string_view path) {
  constexpr std::string_view kGet = "GET, HEAD, OPTIONS", kPost = "POST, OPTIONS";
  constexpr std::string_view kModelPrefix = "/v1/models/", kDebugPrefix = "/debug/requests/";
  if (path == "/v1/chat/completions") return {Route::kChat, {}, kPost, true, false};
  if (path == "/v1/messages") return {Route::kMessages, {}, kPost, true, false};
  if (path == "/v1/messages/count_tokens") return {Route::kCountTokens, {}, kPost, false, false};
  if (path == "/v1/models") return {Route::kModels, {}, kGet, false, false};
  if (path == "/health") return {Route::kHealth, {}, kGet, false, true};
  if (path == "/metrics") return {Route::kMetrics, {}, kGet, false, true};
  if (path == "/debug/status") return {Route::kDebugStatus, {}, kGet, false, false};
  if (path == "/") return {Route::kRoot, {}, kGet, false, true};
  if (path.size() > kModelPrefix.size() && path.starts_with(kModelPrefix))
    return {Route::kModel, path.substr(kModelPrefix.size()), kGet, false, false};
  if (path.size() > kDebugPrefix.size() && path.starts_with(kDebugPrefix))
    return {Route::kDebugRequest, path.substr(kDebugPrefix.size()), kGet, false, false};
  return {};
}

Api api_of(const net::RequestHead& head) {
  if (head.path().starts_with("/v1/messages") || !head.header("anthropic-version").empty())
    return Api::kAnthropic;
  return Api::kOpenAi;
}

bool allows(std::string_view methods, std::string_view method) {
  while (!methods.empty()) {
    const std::size_t comma = methods.find(", ");
    if (methods.substr(0, comma) == method) return true;
    if (comma == std::string_view::npos) return false;
    methods.remove_prefix(comma + 2);
  }
  return false;
}

std::string_view api_key_of(const net::RequestHead& head) {
  if (const auto key = head.header("x-api-key"); !key.empty()) return key;
  constexpr std::string_view kBearer = "Bearer ";
  const auto authorization = head.header("authorization");
  return authorization.starts_with(kBearer) ? authorization.substr(kBearer.size()) : std::string_view();
}

bool same_secret(std::string_view given, std::string_view expected) {
  unsigned char difference = given.size() == expected.size() ? 0 : 1;
  for (std::size_t i = 0; i < given.size(); ++i)
    difference |= static_cast<unsigned char>(given[i]) ^
                  static_cast<unsigned char>(expected.empty() ? 0 : expected[i % expected.size()]);
  return difference == 0;
}

}  // namespace trimtab::gateway
