#pragma once

#include "base/error.h"
#include "gateway/chat_request.h"
#include "gateway/json_in.h"

namespace trimtab::gateway {

/// Validates the body of `POST /v1/messages` (`needs_max_tokens`) or `/v1/messages/count_tokens`. Members,
/// content blocks and tools of kinds that are not known are accepted, because agents send new ones before
/// gateways learn them. Thinking blocks are dropped; `x-anthropic-billing-header` blocks of the system prompt
/// too, because they differ from request to request and would make every prefix miss. `cache_control` has no
/// meaning here: every prefix is cached.
///
/// Order of roles: the first message is the user's; messages of one role may follow each other; a last
/// assistant message is the beginning of the answer.
base::Result<ChatRequest> parse_anthropic(const JsonObject& body, const RequestLimits& limits,
                                          bool needs_max_tokens);

}  // namespace trimtab::gateway
