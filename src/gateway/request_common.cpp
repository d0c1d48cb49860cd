#include "gateway/request_common.h"

#include <fmt/format.h>

#include "gateway/cache_scope.h"

namespace trimtab::gateway {

base::Status read_common(const JsonObject& body, const RequestLimits& limits, double temperature_max,
                         ChatRequest& request) {
  const auto model = string_member(body, "model");
  if (!model) return tl::unexpected(model.error());
  if (!*model) return bad_member("model", "missing; name the model to use");
  if (**model != limits.model)
    return base::fail(base::Code::kNotFound,
                      fmt::format("the model \"{}\" does not exist here; this server has \"{}\"",
                                  (*model)->substr(0, 100), limits.model),
                      "model");
  request.model = std::string(**model);

  const auto stream = bool_member(body, "stream");
  if (!stream) return tl::unexpected(stream.error());
  request.stream = stream->value_or(false);

  const auto temperature = number_member(body, "temperature");
  if (!temperature) return tl::unexpected(temperature.error());
  request.temperature = temperature->value_or(1.0);
  if (!(request.temperature >= 0 && request.temperature <= temperature_max))
    return bad_member("temperature",
                      fmt::format("{} is not between 0 and {}", request.temperature, temperature_max));

  const auto top_p = number_member(body, "top_p");
  if (!top_p) return tl::unexpected(top_p.error());
  request.top_p = top_p->value_or(1.0);
  if (!(request.top_p >= 0 && request.top_p <= 1))
    return bad_member("top_p", fmt::format("{} is not between 0 and 1", request.top_p));

  const auto seed = integer_member(body, "seed");
  if (!seed) return tl::unexpected(seed.error());
  if (*seed) request.seed = static_cast<std::uint64_t>(**seed);

  auto scope = read_cache_scope(body);
  if (!scope) return tl::unexpected(scope.error());
  request.cache_scope = std::move(*scope);
  return {};
}

base::Status read_output_limit(const JsonObject& body, std::string_view name, ChatRequest& request) {
  const auto limit = integer_member(body, name);
  if (!limit) return tl::unexpected(limit.error());
  if (!*limit) return {};
  if (**limit < 1) return bad_member(std::string(name), fmt::format("{} is less than 1", **limit));
  request.output_limit = **limit;
  return {};
}

base::Status read_stops(const JsonObject& body, std::string_view name, ChatRequest& request) {
  const auto value = member(body, name);
  if (!value) return {};
  std::string_view one;
  if (value->get(one) == simdjson::SUCCESS) {
    if (!one.empty()) request.stops.emplace_back(one);
    return {};
  }
  const auto list = as_array(*value, std::string(name));
  if (!list) return tl::unexpected(list.error());
  for (const JsonValue item : *list) {
    std::string_view stop;
    if (item.get(stop) != simdjson::SUCCESS)
      return bad_member(std::string(name), fmt::format("expected strings, got {}", kind_of(item)));
    if (stop.empty()) return bad_member(std::string(name), "a stop sequence must not be empty");
    request.stops.emplace_back(stop);
  }
  return {};
}

void append_line(std::string& text, std::string_view more) {
  if (!text.empty() && !more.empty()) text += '\n';
  text += more;
}

}  // namespace trimtab::gateway
