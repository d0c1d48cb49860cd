#pragma once

#include "base/error.h"
#include "gateway/chat_request.h"
#include "gateway/json_in.h"

namespace trimtab::gateway {

/// Validates the body of `POST /v1/chat/completions`. Unknown members are accepted; members that would change
/// what an answer is and that this system cannot honour (n above 1, logprobs, JSON response formats, audio)
/// are kUnsupported rather than ignored. Errors carry the member at fault as `origin`.
///
/// Order of roles: system and developer messages stand first; a tool message follows an assistant message
/// with tool calls (or another tool message); everything else is free.
base::Result<ChatRequest> parse_openai(const JsonObject& body, const RequestLimits& limits);

}  // namespace trimtab::gateway
