#include "gateway/error_response.h"

#include <algorithm>

#include "gateway/json_out.h"
#include "text/utf8.h"

namespace trimtab::gateway {
namespace {

using base::Code;

struct Words {
  std::string_view type;
  std::string_view code;  // OpenAI only; empty: null
};

Words openai_words(int status) {
  switch (status) {
    case 401:
      return {"invalid_request_error", "invalid_api_key"};
    case 404:
      return {"invalid_request_error", "not_found"};
    case 413:
      return {"invalid_request_error", "request_too_large"};
    case 429:
      return {"requests", "rate_limit_exceeded"};
    case 503:
      return {"server_error", "service_unavailable"};
    case 504:
      return {"server_error", "timeout"};
    default:
      return {status < 500 ? "invalid_request_error" : "server_error", {}};
  }
}

Words openai_words(const base::Error& error) {
  Words words = openai_words(error_status(Api::kOpenAi, error.code));
  if (error.code == Code::kNotFound && error.origin == "model") words.code = "model_not_found";
  if (error.code == Code::kInvalidArgument && error.origin == "context")
    words.code = "context_length_exceeded";
  if (error.code == Code::kUnsupported) words.code = "unsupported";
  if (error.code == Code::kOverloaded) words.code = "overloaded";
  return words;
}

std::string_view anthropic_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 504:
      return "timeout_error";
    case 529:
      return "overloaded_error";
    default:
      return status < 500 ? "invalid_request_error" : "api_error";
  }
}

void append_body(std::string& out, Api api, int status, Words words, std::string_view said,
                 std::string_view param, std::string_view request_id) {
  // A message may quote a path or an id as it came, in any bytes; JSON holds only UTF-8.
  const std::string message = text::repair_utf8(said);
  JsonOut json(out);
  if (api == Api::kAnthropic) {
    json.open_object().field("type", "error").key("error").open_object();
    json.field("type", anthropic_type(status)).field("message", message).close_object();
    json.key("request_id");
    request_id.empty() ? json.null() : json.string(request_id);
    json.close_object();
    return;
  }
  json.open_object()
      .key("error")
      .open_object()
      .field("message", message)
      .field("type", words.type)
      .key("param");
  param.empty() ? json.null() : json.string(param);
  json.key("code");
  words.code.empty() ? json.null() : json.string(words.code);
  json.close_object().close_object();
}

net::Response make(Api api, int status, Words words, std::string_view message, std::string_view param,
                   std::string_view request_id) {
  net::Response response;
  response.status = status;
  response.headers.push_back({"Content-Type", "application/json"});
  if (!request_id.empty())
    response.headers.push_back(
        {api == Api::kAnthropic ? "request-id" : "x-request-id", std::string(request_id)});
  if (status == 401) response.headers.push_back({"WWW-Authenticate", "Bearer"});
  append_body(response.body, api, status, words, message, param, request_id);
  return response;
}

/// Only errors of the request name one of its members; other origins are rooms of this program.
std::string_view param_of(const base::Error& error) {
  const bool named = error.code == Code::kInvalidArgument || error.code == Code::kUnsupported ||
                     error.code == Code::kNotFound;
  return named ? std::string_view(error.origin) : std::string_view();
}

}  // namespace

int error_status(Api api, Code code) {
  if (api == Api::kAnthropic && code == Code::kOverloaded) return 529;
  return base::http_status(code);
}

net::Response error_response(Api api, const base::Error& error, std::optional<base::Nanos> retry_after,
                             std::string_view request_id) {
  auto response = make(api, error_status(api, error.code), openai_words(error), error.message,
                       param_of(error), request_id);
  if (retry_after) {
    // Whole seconds, rounded up: a client that comes back early only makes things worse.
    const std::int64_t seconds =
        std::max<std::int64_t>(1, (retry_after->value + 999'999'999) / 1'000'000'000);
    response.headers.push_back({"Retry-After", std::to_string(seconds)});
  }
  return response;
}

net::Response error_response(Api api, int status, std::string_view message, std::string_view request_id) {
  return make(api, status, openai_words(status), message, {}, request_id);
}

void append_error_event(std::string& out, Api api, const base::Error& error, std::string_view request_id) {
  out += api == Api::kAnthropic ? "event: error\ndata: " : "data: ";
  append_body(out, api, error_status(api, error.code), openai_words(error), error.message, param_of(error),
              request_id);
  out += "\n\n";
}

}  // namespace trimtab::gateway
