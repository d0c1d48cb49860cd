#include "gateway/cache_scope.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "gateway/anthropic_request.h"
#include "gateway/openai_request.h"
#include "gateway/test_support.h"

namespace trimtab::gateway {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

/// A body that both APIs take.
std::string body_of(const std::string& text, const json& more) {
  json body{
      {"model", "test-model"}, {"max_tokens", 2000}, {"messages", {{{"role", "user"}, {"content", text}}}}};
  body.update(more);
  return body.dump();
}

base::Result<std::string> scope_of(Api api, const std::string& members) {
  RequestLimits limits;
  limits.model = "m";
  std::string body =
      R"({"model":"m","max_tokens":5,"messages":[{"role":"user","content":"hi"}])" + members + "}";
  JsonParser parser;
  const auto object = parser.parse(body);
  if (!object) return tl::unexpected(object.error());
  const auto chat =
      api == Api::kOpenAi ? parse_openai(*object, limits) : parse_anthropic(*object, limits, true);
  if (!chat) return tl::unexpected(chat.error());
  return chat->cache_scope;
}

TEST(CacheScope, SaltsThatDifferAreOtherScopes) {
  std::vector<std::string> seen;
  for (const Api api : {Api::kOpenAi, Api::kAnthropic}) {
    EXPECT_EQ(scope_of(api, "").value(), "") << "shared by all";
    EXPECT_EQ(scope_of(api, R"(,"cache_salt":null,"extra_key":null)").value(), "");
    EXPECT_EQ(scope_of(api, R"(,"user":"u","prompt_cache_key":"k","metadata":{"user_id":"u"})").value(), "");
    std::vector<std::string> scopes;
    for (const char* members : {
             "",
             R"(,"cache_salt":"ab")",
             R"(,"extra_key":"ab")",
             R"(,"cache_salt":"ab","extra_key":"c")",
             R"(,"cache_salt":"a","extra_key":"bc")",  // sglang#24638
             R"(,"cache_salt":"abc")",
             R"(,"cache_salt":"abc ")",
             R"(,"cache_salt":"abc\u0000")",
             R"(,"cache_salt":" ")",
         })
      scopes.push_back(scope_of(api, members).value());
    EXPECT_EQ(std::set(scopes.begin(), scopes.end()).size(), scopes.size());
    EXPECT_EQ(scope_of(api, R"(,"cache_salt":"\u0061b")").value(), scopes[1]) << "however it is written";
    if (!seen.empty()) {
      EXPECT_EQ(scopes, seen) << "whichever API is spoken";
    }
    seen = std::move(scopes);
  }
}

TEST(CacheScope, BadSaltsAreRefusedByTheirKindAndNotShown) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"(,"cache_salt":"")", "cache_salt: must be a non-empty string if given, got an empty string"},
      {R"(,"cache_salt":12345)", "cache_salt: must be a non-empty string if given, got a number"},
      {R"(,"cache_salt":true)", "got a boolean"},
      {R"(,"cache_salt":["12345"])", "got an array"},
      {R"(,"cache_salt":{"12345":1})", "got an object"},
      {R"(,"extra_key":["12345"])", "extra_key: must be a non-empty string if given, got an array"},
      {R"(,"cache_salt":"12345","extra_key":"")",
       "extra_key: must be a non-empty string if given, got an empty"},
  };
  for (const Api api : {Api::kOpenAi, Api::kAnthropic}) {
    for (const auto& [members, message] : cases) {
      const auto scope = scope_of(api, members);
      ASSERT_FALSE(scope.has_value()) << members;
      EXPECT_EQ(scope.error().code, base::Code::kInvalidArgument);
      EXPECT_THAT(scope.error().message, HasSubstr(message));
      EXPECT_THAT(scope.error().message, Not(HasSubstr("12345")));
    }
  }
}

TEST(CacheScope, AnAnswerOfAnotherScopeIsNotFound) {
  const auto memory = text::AnswerMemory::open({}).value();
  const std::vector<text::TokenId> shared = {1, 2}, ours = {3};
  ASSERT_TRUE(memory->remember("words", 7, shared));
  ASSERT_TRUE(memory->remember(scoped_answer("ours", "words"), 7, ours));
  EXPECT_EQ(ScopedAnswers(*memory, "").find("words", 7), shared);
  EXPECT_EQ(ScopedAnswers(*memory, "ours").find("words", 7), ours);
  EXPECT_EQ(ScopedAnswers(*memory, "ours").find("words", 8), ours) << "in another conversation of theirs";
  EXPECT_EQ(ScopedAnswers(*memory, "theirs").find("words", 7), std::nullopt);
  EXPECT_EQ(ScopedAnswers(*memory, "").find("ourswords", 7), std::nullopt);
}

TEST(CacheScope, ClientsOfAnotherSaltShareNothing) {
  RunningGateway gateway;
  const std::string question(700, 'q');
  // The second turn of a conversation: how much of it is there.
  const auto cached = [&](const json& salts) {
    json turns{{"max_tokens", 9},
               {"messages",
                {{{"role", "user"}, {"content", question}},
                 {{"role", "assistant"}, {"content", question}},
                 {{"role", "user"}, {"content", "more"}}}}};
    turns.update(salts);
    const auto usage = json::parse(gateway.post("/v1/messages", body_of("", turns)).body)["usage"];
    const json counted = json::parse(gateway.post("/v1/messages/count_tokens", body_of("", turns)).body);
    EXPECT_EQ(counted["input_tokens"].get<int>(),
              usage["input_tokens"].get<int>() + usage["cache_read_input_tokens"].get<int>());
    return usage["cache_read_input_tokens"].get<int>();
  };
  const auto remembered = [&](int answers) {
    EXPECT_THAT(gateway.get("/metrics").body,
                HasSubstr("trimtab_gateway_answers_remembered_total " + std::to_string(answers) + "\n"));
  };
  const json ours{{"cache_salt", "a secret of ours"}};
  ASSERT_EQ(gateway.post("/v1/messages", body_of(question, ours)).status, 200);
  EXPECT_EQ(cached(json::object()), 0);
  EXPECT_EQ(cached({{"cache_salt", "a secret of theirs"}}), 0);
  EXPECT_EQ(cached({{"extra_key", "a secret of ours"}}), 0);
  EXPECT_EQ(cached({{"cache_salt", "a secret of ours"}, {"extra_key", "x"}}), 0);
  remembered(0);
  EXPECT_GE(cached(ours), 1400 / 128 * 128);
  remembered(1);
  const auto chat = json::parse(gateway.post("/v1/chat/completions", body_of(question, ours)).body);
  EXPECT_GT(chat["usage"]["prompt_tokens_details"]["cached_tokens"], 0) << "both APIs ask one pool";
  const auto tenant = gateway.on_thread([&] { return gateway.backend->last_submission().tenant; });
  EXPECT_FALSE(tenant.empty());
  EXPECT_THAT(tenant, Not(HasSubstr("secret"))) << "nothing behind the parser sees the salt itself";
}

}  // namespace
}  // namespace trimtab::gateway
