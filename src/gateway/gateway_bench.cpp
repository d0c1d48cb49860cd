// What the gateway itself costs, with an engine that costs nothing: CPU time of its thread per request and
// per streamed token over 64 kept connections (64-character prompt, 16-token reply). Clients run on another
// thread and are not counted; the fake engine and the tokenizer are. Tokenizing and hashing are measured
// apart as well. TRIMTAB_MODEL names a GGUF whose vocabulary is used; without it, a small one of bytes and
// few merges.
#include <benchmark/benchmark.h>
#include <time.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "gateway/prompt_builder.h"
#include "gateway/test_support.h"
#include "kv/key_chain.h"

namespace trimtab::gateway {
namespace {

constexpr int kConnections = 64;
constexpr const char* kPrompt = "Write a haiku about a quiet harbour at dawn, in plain English .";

PromptText vocabulary() {
  const char* path = std::getenv("TRIMTAB_MODEL");
  if (path == nullptr) return small_text();
  auto text = PromptText::load(path);
  TRIMTAB_CHECK(text.has_value(), text ? "" : text.error().message);
  return std::move(*text);
}

std::string request_bytes(const char* path, bool stream, int tokens) {
  // The fake engine echoes, so a long reply needs a long prompt; `tokens` cuts it.
  std::string words = kPrompt;
  while (static_cast<int>(words.size()) < tokens * 12 && tokens > 16) words += std::string(" ") + kPrompt;
  const nlohmann::json body{{"model", "test-model"},
                            {"max_tokens", tokens},
                            {"stream", stream},
                            {"messages", {{{"role", "user"}, {"content", words}}}}};
  const std::string text = body.dump();
  return std::string("POST ") + path + " HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n" +
         "Authorization: Bearer x\r\nUser-Agent: bench/1\r\nAccept: */*\r\nContent-Length: " +
         std::to_string(text.size()) + "\r\n\r\n" + text;
}

std::int64_t server_cpu_ns(RunningGateway& gateway) {
  return gateway.on_thread([] {
    timespec spent{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
    return spent.tv_sec * 1'000'000'000LL + spent.tv_nsec;
  });
}

/// One round: a request on every connection, then all answers.
void round_trip(std::vector<net::BlockingClient>& clients, const std::string& request) {
  for (auto& client : clients) TRIMTAB_CHECK(client.send(request).has_value());
  for (auto& client : clients) {
    const auto response = client.read_response();
    TRIMTAB_CHECK(response.has_value() && response->status == 200,
                  response ? response->body : response.error().message);
  }
}

struct Load {
  explicit Load(base::Nanos step)
      : gateway(
            [step](GatewayOptions& options, FakeOptions& fake) {
              options.profile.context_limit = base::TokenCount{32'768};
              fake.step = step;
            },
            vocabulary()) {
    for (int i = 0; i < kConnections; ++i) clients.push_back(gateway.connect());
  }
  /// Server CPU, ns, of `rounds` rounds.
  std::int64_t spend(const std::string& request, int rounds) {
    round_trip(clients, request);  // caches warm, remembered answers there
    const std::int64_t before = server_cpu_ns(gateway);
    for (int i = 0; i < rounds; ++i) round_trip(clients, request);
    return server_cpu_ns(gateway) - before;
  }
  RunningGateway gateway;
  std::vector<net::BlockingClient> clients;
};

void request_cost(benchmark::State& state, const char* path, bool stream) {
  Load load{base::Nanos{0}};
  const std::string request = request_bytes(path, stream, 16);
  constexpr int kRounds = 20;
  double spent_ns = 0, requests = 0;
  for (auto _ : state) {
    const auto ns = static_cast<double>(load.spend(request, kRounds));
    spent_ns += ns;
    requests += kRounds * kConnections;
    state.SetIterationTime(ns * 1e-9 / (kRounds * kConnections));
  }
  state.counters["cpu_us_per_request"] = spent_ns / requests / 1e3;
}

/// Paced streams: a step every 5 ms for all, so every token is an event and a write of its own. The cost of a
/// token is the slope between short and long replies.
void token_cost(benchmark::State& state, const char* path) {
  Load load{base::Nanos{5'000'000}};
  constexpr int kShort = 16, kLong = 80;
  double ns = 0, tokens = 0;
  for (auto _ : state) {
    // The same prompt for both, so that only the reply differs.
    std::string long_request = request_bytes(path, true, kLong);
    std::string short_request = long_request;
    const std::string field = "\"max_tokens\":80";
    short_request.replace(short_request.find(field), field.size(), "\"max_tokens\":16");
    const auto more = static_cast<double>(load.spend(long_request, 2) - load.spend(short_request, 2));
    ns += more;
    tokens += 2.0 * kConnections * (kLong - kShort);
    state.SetIterationTime(more * 1e-9 / (2.0 * kConnections * (kLong - kShort)));
  }
  state.counters["cpu_us_per_token"] = ns / tokens / 1e3;
}

void BM_gateway_request_openai(benchmark::State& state) {
  request_cost(state, "/v1/chat/completions", false);
}
void BM_gateway_request_openai_stream(benchmark::State& state) {
  request_cost(state, "/v1/chat/completions", true);
}
void BM_gateway_request_anthropic(benchmark::State& state) { request_cost(state, "/v1/messages", false); }
void BM_gateway_request_anthropic_stream(benchmark::State& state) {
  request_cost(state, "/v1/messages", true);
}
void BM_gateway_token_openai(benchmark::State& state) { token_cost(state, "/v1/chat/completions"); }
void BM_gateway_token_anthropic(benchmark::State& state) { token_cost(state, "/v1/messages"); }
BENCHMARK(BM_gateway_request_openai)->UseManualTime()->Iterations(3)->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_gateway_request_openai_stream)->UseManualTime()->Iterations(3)->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_gateway_request_anthropic)->UseManualTime()->Iterations(3)->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_gateway_request_anthropic_stream)->UseManualTime()->Iterations(3)->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_gateway_token_openai)->UseManualTime()->Iterations(3)->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_gateway_token_anthropic)->UseManualTime()->Iterations(3)->Unit(benchmark::kMicrosecond);

/// Rendering and tokenizing the 64-character prompt with its default system prompt.
void BM_gateway_tokenize(benchmark::State& state) {
  const PromptText text = vocabulary();
  const std::size_t longest = longest_token_bytes(text.tokenizer);
  for (auto _ : state) {
    ChatRequest request;
    request.conversation.messages.push_back({text::ChatRole::kUser, {text::TextPart{kPrompt}}});
    benchmark::DoNotOptimize(build_prompt(text, request, {}, nullptr, 4096, longest));
  }
}
/// The chain of block keys over 1,024 tokens, as the serving system computes it for a longer prompt.
void BM_gateway_hash_1024_tokens(benchmark::State& state) {
  const std::vector<std::int32_t> tokens(1024, 7);
  for (auto _ : state) benchmark::DoNotOptimize(kv::block_keys(model::BlockKey{1, 2}, tokens));
}
BENCHMARK(BM_gateway_tokenize)->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_gateway_hash_1024_tokens)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace trimtab::gateway
