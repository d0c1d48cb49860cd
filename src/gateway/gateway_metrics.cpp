#include "gateway/gateway_metrics.h"

#include <string>

namespace trimtab::gateway {
namespace {

const char* label(Api api) { return api == Api::kAnthropic ? "anthropic" : "openai"; }

}  // namespace

GatewayMetrics::GatewayMetrics(obs::Registry& registry) : registry_(registry) {
  registry.describe("trimtab_gateway_responses_total",
                    "Answers by API and status; 499: the client left first.");
  registry.describe("trimtab_gateway_first_token_seconds", "From a parsed request to its first token.",
                    {0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300});
  registry.describe("trimtab_gateway_requests_in_flight", "Requests being served now.");
  registry.describe("trimtab_gateway_prompt_tokens_total",
                    "Prompt tokens of completed requests, hits included.");
  registry.describe("trimtab_gateway_hit_tokens_total", "Of those, found in the pool.");
  registry.describe("trimtab_gateway_output_tokens_total", "Generated tokens of completed requests.");
  registry.describe("trimtab_gateway_answers_remembered_total",
                    "Past turns whose generated ids were found again.");
  registry.describe("trimtab_gateway_answers_retokenized_total",
                    "Past turns that were tokenized from their text.");
  registry.describe("trimtab_gateway_answers_not_stored_total",
                    "Answers that could not be written to their file.");
  registry.describe("trimtab_gateway_client_left_total", "Requests whose client left before the end.");
  registry.describe("trimtab_gateway_stop_sequences_total", "Answers ended by a stop sequence.");
  registry.describe("trimtab_http_connections", "Open connections.");
  registry.describe("trimtab_http_slow_readers_total", "Clients cut off because they did not read.");
  registry.describe("trimtab_http_timeouts_total",
                    "Connections closed for slow heads, slow bodies or idleness.");
  registry.describe("trimtab_http_truncated_total", "Requests cut short by their client.");
  registry.describe("trimtab_http_refused_total", "Requests refused before their body was read.");
}

void GatewayMetrics::first_token(Api api, double seconds) {
  registry_.observe("trimtab_gateway_first_token_seconds", seconds, {{"api", label(api)}});
}

void GatewayMetrics::raise(const char* name, std::uint64_t now, std::uint64_t before,
                           const base::Labels& labels) {
  registry_.add(name, static_cast<double>(now - before), labels);
}

void GatewayMetrics::publish(const GatewayCounters& counters, const net::ServerStats& stats,
                             std::size_t in_flight) {
  for (const auto& [key, count] : counters.responses) {
    raise("trimtab_gateway_responses_total", count, before_.responses[key],
          {{"api", label(key.first)}, {"status", std::to_string(key.second)}});
  }
  raise("trimtab_gateway_prompt_tokens_total", counters.prompt_tokens, before_.prompt_tokens);
  raise("trimtab_gateway_hit_tokens_total", counters.hit_tokens, before_.hit_tokens);
  raise("trimtab_gateway_output_tokens_total", counters.output_tokens, before_.output_tokens);
  raise("trimtab_gateway_answers_remembered_total", counters.answers_remembered, before_.answers_remembered);
  raise("trimtab_gateway_answers_retokenized_total", counters.answers_retokenized,
        before_.answers_retokenized);
  raise("trimtab_gateway_answers_not_stored_total", counters.answers_not_stored, before_.answers_not_stored);
  raise("trimtab_gateway_client_left_total", counters.client_left, before_.client_left);
  raise("trimtab_gateway_stop_sequences_total", counters.stop_sequences, before_.stop_sequences);
  raise("trimtab_http_slow_readers_total", stats.slow_readers_total, net_before_.slow_readers_total);
  raise("trimtab_http_timeouts_total", stats.timeouts_total, net_before_.timeouts_total);
  raise("trimtab_http_truncated_total", stats.truncated_total, net_before_.truncated_total);
  raise("trimtab_http_refused_total", stats.refused_total, net_before_.refused_total);
  registry_.set("trimtab_http_connections", static_cast<double>(stats.connections));
  registry_.set("trimtab_gateway_requests_in_flight", static_cast<double>(in_flight));
  before_ = counters;
  net_before_ = stats;
}

}  // namespace trimtab::gateway
