#pragma once

#include <cstdint>
#include <string_view>

#include "gateway/chat_request.h"
#include "net/http_message.h"

namespace trimtab::gateway {

enum class Route : std::uint8_t {
  kNone,
  kRoot,
  kHealth,
  kMetrics,
  kModels,
  kModel,
  kChat,
  kMessages,
  kCountTokens,
  kDebugRequest,
  kDebugStatus,
};

struct RouteMatch {
  Route route = Route::kNone;
  std::string_view rest;     // the id in /v1/models/ID and /debug/requests/ID
  std::string_view methods;  // allowed, as an Allow header says it
  bool generates = false;    // makes work for the engines
  bool is_open = false;      // no API key is asked for
};

/// Where a path leads. Models may have slashes in their names.
RouteMatch find_route(std::string_view path);

/// The API whose words a client understands: by path, and by the anthropic-version header elsewhere.
Api api_of(const net::RequestHead& head);

/// True when the request's method is among `methods`.
bool allows(std::string_view methods, std::string_view method);

/// The key in `x-api-key` or `Authorization: Bearer`; empty when there is none.
std::string_view api_key_of(const net::RequestHead& head);

/// Compares without telling by its time how much of the key was right.
bool same_secret(std::string_view given, std::string_view expected);

}  // namespace trimtab::gateway
