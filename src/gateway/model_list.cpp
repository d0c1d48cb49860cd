#include <fmt/format.h>

#include <array>
#include <ctime>

#include "gateway/error_response.h"
#include "gateway/http_gateway.h"
#include "gateway/json_out.h"

namespace trimtab::gateway {
namespace {

std::string iso_time(std::int64_t seconds) {
  const std::time_t time = seconds;
  std::tm parts{};
  gmtime_r(&time, &parts);
  std::array<char, 32> text{};
  return {text.data(), std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

/// `created` is when this server started: the file does not say when the model was made.
void append_model(JsonOut& json, Api api, const std::string& name, std::int64_t created_s,
                  std::int64_t context) {
  json.open_object();
  if (api == Api::kAnthropic) {
    json.field("type", "model")
        .field("id", name)
        .field("display_name", name)
        .field("created_at", iso_time(created_s));
  } else {
    json.field("id", name).field("object", "model").field("created", created_s).field("owned_by", "trimtab");
    json.field("max_model_len", context);
  }
  json.close_object();
}

}  // namespace

net::Response HttpGateway::models(Api api) const {
  std::string body;
  JsonOut json(body);
  json.open_object();
  if (api == Api::kOpenAi) json.field("object", "list");
  json.key("data").open_array();
  append_model(json, api, limits_.model, started_s_, options_.profile.context_limit.value);
  json.close_array();
  if (api == Api::kAnthropic)
    json.key("has_more").boolean(false).field("first_id", limits_.model).field("last_id", limits_.model);
  json.close_object();
  return {200, {{"Content-Type", "application/json"}}, std::move(body)};
}

net::Response HttpGateway::model(Api api, std::string_view name) {
  if (name != limits_.model)
    return error_response(api,
                          {base::Code::kNotFound,
                           fmt::format("the model \"{}\" does not exist here; this server has \"{}\"",
                                       name.substr(0, 100), limits_.model),
                           "model"},
                          {}, new_name("req_"));
  std::string body;
  JsonOut json(body);
  append_model(json, api, limits_.model, started_s_, options_.profile.context_limit.value);
  return {200, {{"Content-Type", "application/json"}}, std::move(body)};
}

}  // namespace trimtab::gateway
