#include "gateway/gateway.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "gateway/test_support.h"
#include "text/utf8.h"

namespace trimtab::gateway {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

std::string chat_body(const std::string& text, json more = json::object()) {
  json body{{"model", "test-model"}, {"messages", {{{"role", "user"}, {"content", text}}}}};
  body.update(more);
  return body.dump();
}
std::string messages_body(const std::string& text, json more = json::object()) {
  json body{
      {"model", "test-model"}, {"max_tokens", 2000}, {"messages", {{{"role", "user"}, {"content", text}}}}};
  body.update(more);
  return body.dump();
}

struct Event {
  std::string name;
  json data;  // null for [DONE]
};
std::vector<Event> events_of(const std::string& body) {
  std::vector<Event> events;
  std::size_t at = 0;
  while (at < body.size()) {
    const std::size_t end = body.find("\n\n", at);
    if (end == std::string::npos) {
      ADD_FAILURE() << "half an event: " << body.substr(at);
      break;
    }
    Event event;
    std::string frame = body.substr(at, end - at);
    if (frame.starts_with("event: ")) {
      const std::size_t line = frame.find('\n');
      event.name = frame.substr(7, line - 7);
      frame = frame.substr(line + 1);
    }
    EXPECT_TRUE(frame.starts_with("data: ")) << frame;
    event.data = frame == "data: [DONE]" ? json() : json::parse(frame.substr(6));
    if (!event.name.empty()) {
      EXPECT_EQ(event.data.value("type", ""), event.name);
    }
    events.push_back(std::move(event));
    at = end + 2;
  }
  return events;
}
std::string chat_text(const std::vector<Event>& events) {
  std::string text;
  for (const Event& event : events) {
    if (event.data.is_object() && event.data.contains("choices") && !event.data["choices"].empty())
      text += event.data["choices"][0]["delta"].value("content", "");
  }
  return text;
}
std::vector<std::string> names_of(const std::vector<Event>& events) {
  std::vector<std::string> names;
  for (const Event& event : events) {
    if (names.empty() || names.back() != event.name) names.push_back(event.name);
  }
  return names;
}

TEST(Gateway, AnswersAChatCompletion) {
  RunningGateway gateway;
  const auto response = gateway.post("/v1/chat/completions", chat_body("hello there"));
  ASSERT_EQ(response.status, 200) << response.body;
  const json body = json::parse(response.body);
  EXPECT_THAT(body["id"].get<std::string>(), testing::StartsWith("chatcmpl-"));
  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_EQ(body["model"], "test-model");
  EXPECT_EQ(body["choices"][0]["message"]["content"], "hello there");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
  const json usage = body["usage"];
  EXPECT_EQ(usage["completion_tokens"], 7);  // hello, " ", t, he, r, e in the small vocabulary, and the stop
  EXPECT_EQ(usage["total_tokens"], usage["prompt_tokens"].get<int>() + 7);
  EXPECT_EQ(usage["prompt_tokens_details"]["cached_tokens"], 0);
}

TEST(Gateway, StreamsAChatCompletion) {
  RunningGateway gateway;
  const auto response =
      gateway.post("/v1/chat/completions",
                   chat_body("hello", {{"stream", true}, {"stream_options", {{"include_usage", true}}}}));
  EXPECT_EQ(net::find_header(response.headers, "content-type"), "text/event-stream; charset=utf-8");
  const auto events = events_of(response.body);
  ASSERT_GE(events.size(), 5U);
  EXPECT_EQ(events.front().data["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(chat_text(events), "hello");
  EXPECT_TRUE(events.back().data.is_null()) << "[DONE] ends the stream";
  const json usage = events[events.size() - 2].data;
  EXPECT_TRUE(usage["choices"].empty());
  EXPECT_EQ(usage["usage"]["completion_tokens"], 2);
  EXPECT_EQ(events[events.size() - 3].data["choices"][0]["finish_reason"], "stop");
  const auto without =
      events_of(gateway.post("/v1/chat/completions", chat_body("hello", {{"stream", true}})).body);
  for (const Event& event : without) EXPECT_FALSE(event.data.is_object() && event.data.contains("usage"));
}

TEST(Gateway, AnswersAMessage) {
  RunningGateway gateway;
  const auto response =
      gateway.post("/v1/messages", messages_body("hello"), {{"anthropic-version", "2023-06-01"}});
  ASSERT_EQ(response.status, 200) << response.body;
  const json body = json::parse(response.body);
  EXPECT_THAT(body["id"].get<std::string>(), testing::StartsWith("msg_"));
  EXPECT_EQ(body["type"], "message");
  EXPECT_EQ(body["role"], "assistant");
  EXPECT_EQ(body["content"], json::parse(R"([{"type":"text","text":"hello"}])"));
  EXPECT_EQ(body["stop_reason"], "end_turn");
  EXPECT_TRUE(body["stop_sequence"].is_null());
  EXPECT_EQ(body["usage"]["output_tokens"], 2);
  EXPECT_EQ(net::find_header(response.headers, "request-id"), body["id"]);
}

TEST(Gateway, StreamsAMessageInTheOrderOfTheProtocol) {
  RunningGateway gateway;
  const auto response =
      gateway.post("/v1/messages?beta=true", messages_body("hello world", {{"stream", true}}));
  const auto events = events_of(response.body);
  EXPECT_THAT(names_of(events), ElementsAre("message_start", "content_block_start", "content_block_delta",
                                            "content_block_stop", "message_delta", "message_stop"));
  EXPECT_TRUE(events[0].data["message"]["content"].empty());
  EXPECT_GT(events[0].data["message"]["usage"]["input_tokens"], 0);
  EXPECT_EQ(events[0].data["message"]["usage"]["cache_read_input_tokens"], 0);
  std::string text;
  for (const Event& event : events) {
    if (event.name == "content_block_delta") text += event.data["delta"]["text"].get<std::string>();
  }
  EXPECT_EQ(text, "hello world");
  const json& delta = events[events.size() - 2].data;
  EXPECT_EQ(delta["delta"]["stop_reason"], "end_turn");
  EXPECT_GT(delta["usage"]["output_tokens"], 2);
}

TEST(Gateway, CountsCachedTokensAndUsesRememberedAnswers) {
  RunningGateway gateway;
  const std::string question(700, 'q');
  const auto first = json::parse(gateway.post("/v1/messages", messages_body(question)).body);
  const std::string answer = first["content"][0]["text"];
  EXPECT_EQ(answer, question);
  const json turns = {{{"role", "user"}, {"content", question}},
                      {{"role", "assistant"}, {"content", answer}},
                      {{"role", "user"}, {"content", "more"}}};
  const json more{{"model", "test-model"}, {"max_tokens", 9}, {"messages", turns}};
  const auto second = json::parse(gateway.post("/v1/messages", more.dump()).body);
  const int total =
      second["usage"]["input_tokens"].get<int>() + second["usage"]["cache_read_input_tokens"].get<int>();
  // Everything up to the end of the first answer was computed before; only whole blocks count.
  EXPECT_GE(second["usage"]["cache_read_input_tokens"], 1400 / 128 * 128);
  EXPECT_EQ(second["usage"]["cache_read_input_tokens"].get<int>() % 128, 0);
  EXPECT_GT(total, 1400);
  const auto metrics = gateway.get("/metrics").body;
  EXPECT_THAT(metrics, HasSubstr("trimtab_gateway_answers_remembered_total 1"));
  const json counted = json::parse(gateway.post("/v1/messages/count_tokens", more.dump()).body);
  EXPECT_EQ(counted["input_tokens"], total);
}

TEST(Gateway, NeverSplitsACharacter) {
  RunningGateway gateway;
  const std::string text = "你好🌍 — naïve “quotes” 👩‍👩‍👧 \\ \" \n\t end";
  const auto stream = gateway.post("/v1/chat/completions", chat_body(text, {{"stream", true}}));
  EXPECT_THAT(stream.body, Not(HasSubstr("\xEF\xBF\xBD")));
  const auto events = events_of(stream.body);
  EXPECT_EQ(chat_text(events), text);
  const auto message = gateway.post("/v1/messages", messages_body(text));
  EXPECT_EQ(json::parse(message.body)["content"][0]["text"], text);
}

TEST(Gateway, EndsAtMaxTokens) {
  RunningGateway gateway;
  auto body =
      json::parse(gateway.post("/v1/chat/completions", chat_body("abcdef", {{"max_tokens", 3}})).body);
  EXPECT_EQ(body["choices"][0]["message"]["content"], "abc");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
  body = json::parse(gateway
                         .post("/v1/chat/completions",
                               chat_body("abcdef", {{"max_tokens", 9}, {"max_completion_tokens", 2}}))
                         .body);
  EXPECT_EQ(body["choices"][0]["message"]["content"], "ab");
  body = json::parse(gateway.post("/v1/messages", messages_body("abcdef", {{"max_tokens", 4}})).body);
  EXPECT_EQ(body["stop_reason"], "max_tokens");
  EXPECT_EQ(body["content"][0]["text"], "abcd");
}

TEST(Gateway, CutsAnEnormousMaxTokensToTheContext) {
  RunningGateway gateway;
  const auto response =
      gateway.post("/v1/messages", messages_body("abc", {{"max_tokens", 1'000'000'000'000}}));
  ASSERT_EQ(response.status, 200) << response.body;
  const auto limit = gateway.on_thread([&] { return gateway.backend->last_submission().output_limit; });
  const auto prompt = gateway.on_thread([&] { return gateway.backend->last_submission().tokens.size(); });
  EXPECT_EQ(limit + prompt, 4096U);
}

TEST(Gateway, StopsAtAStopSequenceAndCancelsTheRest) {
  RunningGateway gateway;
  auto body = json::parse(
      gateway.post("/v1/messages", messages_body("one STOP two", {{"stop_sequences", {"STOP"}}})).body);
  EXPECT_EQ(body["content"][0]["text"], "one ");
  EXPECT_EQ(body["stop_reason"], "stop_sequence");
  EXPECT_EQ(body["stop_sequence"], "STOP");
  const auto stream = events_of(
      gateway.post("/v1/chat/completions", chat_body("one STOP two", {{"stop", "STOP"}, {"stream", true}}))
          .body);
  EXPECT_EQ(chat_text(stream), "one ");
  EXPECT_TRUE(stream.back().data.is_null());
  EXPECT_TRUE(RunningGateway::eventually([&] { return gateway.running() == 0; }));
  EXPECT_EQ(gateway.on_thread([&] { return gateway.backend->cancelled_total(); }), 2U);
  // What only began like a stop sequence is shown at the end.
  body = json::parse(
      gateway.post("/v1/messages", messages_body("one STO", {{"stop_sequences", {"STOP"}}})).body);
  EXPECT_EQ(body["content"][0]["text"], "one STO");
  EXPECT_EQ(body["stop_reason"], "end_turn");
}

TEST(Gateway, PassesSamplingOn) {
  RunningGateway gateway;
  gateway.post("/v1/chat/completions", chat_body("a", {{"temperature", 0.5}, {"top_p", 0.25}, {"seed", 7}}));
  auto sampling = gateway.on_thread([&] { return gateway.backend->last_submission().sampling; });
  EXPECT_FLOAT_EQ(sampling.temperature, 0.5F);
  EXPECT_FLOAT_EQ(sampling.top_p, 0.25F);
  EXPECT_EQ(sampling.seed, 7U);
  gateway.post("/v1/messages", messages_body("a"));
  const auto first = gateway.on_thread([&] { return gateway.backend->last_submission().sampling; });
  EXPECT_FLOAT_EQ(first.temperature, 1.0F) << "the API's default";
  gateway.post("/v1/messages", messages_body("a"));
  const auto second = gateway.on_thread([&] { return gateway.backend->last_submission().sampling; });
  EXPECT_NE(first.seed, second.seed) << "unseeded requests must not repeat each other";
}

TEST(Gateway, TellsOfAnEngineThatDies) {
  RunningGateway gateway([](GatewayOptions&, FakeOptions& fake) { fake.fail_after_tokens = 3; });
  const auto messages =
      events_of(gateway.post("/v1/messages", messages_body("abcdef", {{"stream", true}})).body);
  EXPECT_EQ(messages.back().name, "error");
  EXPECT_EQ(messages.back().data["error"]["type"], "api_error");
  const auto chat =
      events_of(gateway.post("/v1/chat/completions", chat_body("abcdef", {{"stream", true}})).body);
  EXPECT_EQ(chat_text(chat), "abc");
  EXPECT_EQ(chat.back().data["error"]["type"], "server_error") << "and no [DONE] after it";
  EXPECT_EQ(gateway.post("/v1/chat/completions", chat_body("abcdef")).status, 503);
  EXPECT_EQ(gateway.in_flight(), 0U);
}

TEST(Gateway, WordsRefusalsInEachApi) {
  RunningGateway gateway([](GatewayOptions&, FakeOptions& fake) {
    fake.refuse = base::Error{base::Code::kOverloaded, "predicted wait 700 s exceeds 600 s", "admission"};
    fake.retry_after = base::Nanos{1'500'000'000};
  });
  auto response = gateway.post("/v1/messages", messages_body("a", {{"stream", true}}));
  EXPECT_EQ(response.status, 529);
  EXPECT_EQ(net::find_header(response.headers, "retry-after"), "2");
  EXPECT_EQ(json::parse(response.body)["error"]["type"], "overloaded_error");
  response = gateway.post("/v1/chat/completions", chat_body("a"));
  EXPECT_EQ(response.status, 503);
  EXPECT_EQ(json::parse(response.body)["error"]["code"], "overloaded");
  gateway.on_thread([&] {
    gateway.backend->options().refuse = base::Error{base::Code::kResourceExhausted, "limit", ""};
    return 0;
  });
  EXPECT_EQ(gateway.post("/v1/messages", messages_body("a")).status, 429);
  EXPECT_EQ(gateway.in_flight(), 0U);
}

TEST(Gateway, ShedsBeforeTheBodyIsSent) {
  RunningGateway gateway([](GatewayOptions& options, FakeOptions& fake) {
    options.config.gateway.requests_in_flight_max = 1;
    fake.first_token = base::Nanos{60'000'000'000};
  });
  auto busy = gateway.connect();
  const std::string body = chat_body("x");
  ASSERT_TRUE(busy.send("POST /v1/chat/completions HTTP/1.1\r\nContent-Length: " +
                        std::to_string(body.size()) + "\r\n\r\n" + body));
  ASSERT_TRUE(RunningGateway::eventually([&] { return gateway.in_flight() == 1; }));
  auto client = gateway.connect();
  ASSERT_TRUE(client.send("POST /v1/messages HTTP/1.1\r\nContent-Length: 30000000\r\n\r\n"));
  const auto response = client.read_response();
  ASSERT_TRUE(response.has_value());
  EXPECT_EQ(response->status, 429);
  EXPECT_EQ(net::find_header(response->headers, "retry-after"), "1");
  EXPECT_EQ(json::parse(response->body)["error"]["type"], "rate_limit_error");
  EXPECT_EQ(gateway.get("/health").status, 200);
}

TEST(Gateway, NotReadyUntilTheEnginesAre) {
  RunningGateway gateway([](GatewayOptions&, FakeOptions& fake) { fake.is_ready = false; });
  EXPECT_EQ(gateway.get("/health").status, 503);
  const auto response = gateway.post("/v1/chat/completions", chat_body("a"));
  EXPECT_EQ(response.status, 503);
  EXPECT_FALSE(net::find_header(response.headers, "retry-after").empty());
  gateway.on_thread([&] { return gateway.backend->options().is_ready = true; });
  EXPECT_EQ(gateway.get("/health").body, "ok\n");
  // An engine that is lost later takes nothing from what the others serve.
  gateway.on_thread([&] { return gateway.backend->options().is_ready = false; });
  EXPECT_EQ(gateway.get("/health").status, 200);
  EXPECT_EQ(gateway.post("/v1/chat/completions", chat_body("a")).status, 200);
}

TEST(Gateway, AsksForItsKey) {
  RunningGateway gateway(
      [](GatewayOptions& options, FakeOptions&) { options.config.gateway.api_key = "s3cret"; });
  EXPECT_EQ(gateway.post("/v1/messages", messages_body("a")).status, 401);
  EXPECT_EQ(gateway.post("/v1/messages", messages_body("a"), {{"x-api-key", "s3cre"}}).status, 401);
  EXPECT_EQ(gateway.post("/v1/messages", messages_body("a"), {{"x-api-key", "s3cret"}}).status, 200);
  EXPECT_EQ(gateway.post("/v1/chat/completions", chat_body("a"), {{"Authorization", "Bearer s3cret"}}).status,
            200);
  const auto refused =
      gateway.post("/v1/chat/completions", chat_body("a"), {{"Authorization", "Bearer other"}});
  EXPECT_EQ(json::parse(refused.body)["error"]["code"], "invalid_api_key");
  EXPECT_EQ(gateway.get("/debug/status").status, 401);
  EXPECT_EQ(gateway.get("/health").status, 200);
}

TEST(Gateway, RoutesAndMethods) {
  RunningGateway gateway;
  auto client = gateway.connect();
  EXPECT_EQ(client.request("HEAD", "/")->status, 200);
  EXPECT_EQ(client.request("GET", "/")->status, 200);
  EXPECT_EQ(client.request("GET", "/nothing")->status, 404);
  const auto wrong = client.request("GET", "/v1/messages");
  EXPECT_EQ(wrong->status, 405);
  EXPECT_EQ(net::find_header(wrong->headers, "allow"), "POST, OPTIONS");
  EXPECT_EQ(json::parse(wrong->body)["type"], "error");
  EXPECT_EQ(client.request("OPTIONS", "/v1/chat/completions")->status, 204);
  EXPECT_EQ(json::parse(client.request("GET", "/v1/models")->body)["data"][0]["id"], "test-model");
  EXPECT_EQ(
      json::parse(client.request("GET", "/v1/models", "", {{"anthropic-version", "1"}})->body)["first_id"],
      "test-model");
  EXPECT_EQ(client.request("GET", "/v1/models/test-model")->status, 200);
  EXPECT_EQ(client.request("GET", "/v1/models/org/other")->status, 404);
  EXPECT_EQ(json::parse(client.request("GET", "/debug/status")->body)["engine"], "fake");
  const auto answered = json::parse(client.request("POST", "/v1/chat/completions", chat_body("a"))->body);
  const auto journey = client.request("GET", "/debug/requests/" + answered["id"].get<std::string>());
  EXPECT_EQ(json::parse(journey->body)["state"], "finished");
  EXPECT_EQ(client.request("GET", "/debug/requests/unknown")->status, 404);
  const std::string quoted = client.request("GET", "/debug/requests/\xff\xe4\xbd")->body;
  EXPECT_EQ(text::valid_utf8_prefix(quoted), quoted.size()) << "JSON holds only UTF-8: " << quoted;
}

TEST(Gateway, PingsWhileAMessageWaitsForItsFirstToken) {
  RunningGateway gateway([](GatewayOptions& options, FakeOptions& fake) {
    options.ping_period = base::Nanos{40'000'000};
    fake.first_token = base::Nanos{250'000'000};
  });
  const auto events =
      events_of(gateway.post("/v1/messages", messages_body("hello", {{"stream", true}})).body);
  EXPECT_THAT(names_of(events),
              ElementsAre("message_start", "ping", "content_block_start", "content_block_delta",
                          "content_block_stop", "message_delta", "message_stop"));
  const auto chat =
      events_of(gateway.post("/v1/chat/completions", chat_body("hello", {{"stream", true}})).body);
  EXPECT_EQ(chat_text(chat), "hello");
}

TEST(Gateway, DrainsWhatIsInFlight) {
  RunningGateway gateway(
      [](GatewayOptions&, FakeOptions& fake) { fake.first_token = base::Nanos{2'000'000'000}; });
  auto client = gateway.connect();
  const std::string body = chat_body("hello");
  ASSERT_TRUE(client.send("POST /v1/chat/completions HTTP/1.1\r\nContent-Length: " +
                          std::to_string(body.size()) + "\r\n\r\n" + body));
  ASSERT_TRUE(RunningGateway::eventually([&] { return gateway.in_flight() == 1; }));
  std::promise<void> drained;
  gateway.on_thread([&] {
    gateway.gateway->drain(base::Nanos{60'000'000'000}, [&] { drained.set_value(); });
    return 0;
  });
  EXPECT_EQ(json::parse(client.read_response()->body)["choices"][0]["message"]["content"], "hello");
  EXPECT_EQ(drained.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
}

}  // namespace
}  // namespace trimtab::gateway
