#pragma once

#include <string>
#include <string_view>

#include "base/error.h"
#include "gateway/chat_request.h"
#include "gateway/json_in.h"

namespace trimtab::gateway {

/// Members that both APIs share: model, stream, temperature (0 to `temperature_max`), top_p, seed, and what
/// makes the cache scope. An unknown model is kNotFound.
base::Status read_common(const JsonObject& body, const RequestLimits& limits, double temperature_max,
                         ChatRequest& request);

/// `name` as output limit: an integer of at least 1. A number larger than any context is legal (agents send
/// their own model's maximum) and is cut to what the context leaves.
base::Status read_output_limit(const JsonObject& body, std::string_view name, ChatRequest& request);

/// Stop sequences: a string or a list of strings.
base::Status read_stops(const JsonObject& body, std::string_view name, ChatRequest& request);

/// Joins with a line break when both are there.
void append_line(std::string& text, std::string_view more);

}  // namespace trimtab::gateway
