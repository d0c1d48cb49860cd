#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/units.h"
#include "gateway/chat_request.h"
#include "net/http_message.h"

namespace trimtab::gateway {

/// The status that a client of the API sees: Anthropic says 529 where others say 503 for overload.
int error_status(Api api, base::Code code);

/// The error in the API's own shape. `error.origin` names the member at fault (OpenAI's `param`).
net::Response error_response(Api api, const base::Error& error, std::optional<base::Nanos> retry_after,
                             std::string_view request_id);

/// Errors of HTTP itself (405, 408, 431, ...), which have no code of their own.
net::Response error_response(Api api, int status, std::string_view message, std::string_view request_id);

/// The error as a frame of a stream that has begun: `event: error`, or an error object without [DONE] after
/// it.
void append_error_event(std::string& out, Api api, const base::Error& error, std::string_view request_id);

}  // namespace trimtab::gateway
