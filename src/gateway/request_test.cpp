#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gateway/anthropic_request.h"
#include "gateway/image_input.h"
#include "gateway/json_out.h"
#include "gateway/openai_request.h"

namespace trimtab::gateway {
namespace {

using testing::HasSubstr;

RequestLimits limits() {
  RequestLimits limits;
  limits.model = "m";
  limits.images_max = 2;
  limits.vision.formula = model::VisionSpec::Formula::kGrid;
  limits.vision.patch = 16;
  limits.vision.downsample = 4;
  limits.vision.max_tokens = 1024;
  limits.vision.pixels_max = 50'000'000;
  limits.vision.image_token = 0;
  return limits;
}

base::Result<ChatRequest> parse(Api api, std::string body) {
  JsonParser parser;
  const auto object = parser.parse(body);
  if (!object) return tl::unexpected(object.error());
  return api == Api::kOpenAi ? parse_openai(*object, limits()) : parse_anthropic(*object, limits(), true);
}

struct Bad {
  std::string body;
  std::string message;  // a part of it
  base::Code code = base::Code::kInvalidArgument;
};

void expect_bad(Api api, const std::vector<Bad>& cases) {
  for (const Bad& bad : cases) {
    const auto parsed = parse(api, bad.body);
    ASSERT_FALSE(parsed.has_value()) << "accepted: " << bad.body.substr(0, 200);
    EXPECT_EQ(parsed.error().code, bad.code) << bad.body.substr(0, 200) << "\n" << parsed.error().message;
    EXPECT_THAT(parsed.error().message, HasSubstr(bad.message)) << bad.body.substr(0, 200);
  }
}

std::string base64(const std::string& bytes) {
  constexpr char kLetters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t bits = 0;
    for (std::size_t k = 0; k < 3; ++k)
      bits = bits << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0U);
    for (std::size_t k = 0; k < 4; ++k)
      out += i + k < bytes.size() + 1 ? kLetters[bits >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}
std::string png(std::uint32_t width, std::uint32_t height) {
  std::string bytes("\x89PNG\r\n\x1a\n\0\0\0\rIHDR", 16);
  for (const std::uint32_t number : {width, height}) {
    for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(number >> shift & 255);
  }
  return bytes + std::string("\x08\x02\0\0\0\0\0\0\0", 9);
}
std::string openai_image(const std::string& url) {
  return R"({"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"see"},{"type":"image_url","image_url":{"url":")" +
         url + R"("}}]}]})";
}
std::string anthropic_image(const std::string& media_type, const std::string& data) {
  return R"({"model":"m","max_tokens":5,"messages":[{"role":"user","content":[{"type":"image","source":{"type":"base64","media_type":")" +
         media_type + R"(","data":")" + data + R"("}},{"type":"text","text":"see"}]}]})";
}
std::string user(const std::string& members) {
  return R"({"model":"m","messages":[{"role":"user","content":"hi"}])" + members + "}";
}
std::string message(const std::string& members) {
  return R"({"model":"m","max_tokens":5,"messages":[{"role":"user","content":"hi"}])" + members + "}";
}
std::string turns(const std::string& list) {
  return R"({"model":"m","max_tokens":5,"messages":[)" + list + "]}";
}

TEST(Json, BoundsAndMalformedBodies) {
  const std::vector<Bad> cases = {
      {"", "empty"},
      {"   ", "empty"},
      {"{", "malformed"},
      {"[]", "an array; a JSON object"},
      {"\"x\"", "a string; a JSON object"},
      {R"({"model":"m",)", "malformed"},
      {R"({"model":"m)", "not closed"},
      {R"({"model":m})", "malformed"},
      {R"({"a":1}{"b":2})", "malformed"},
      {R"({"a":1e999})", "number"},
      {R"({"a":12345678901234567890123})", "malformed"},
      {"{\"a\":\"\x01\"}", "control character"},
      {"{\"a\":\"\xff\xfe\"}", "UTF-8"},
      {"{\"a\":\"\xed\xa0\x80\"}", "UTF-8"},
      {R"({"a":"\ud800"})", "surrogate"},
      {std::string(200, '[') + std::string(200, ']'), "deeper than 128"},
      {R"({"a":)" + std::string(100'000, '[') + std::string(100'000, ']') + "}", "deeper than 128"},
  };
  expect_bad(Api::kOpenAi, cases);
  expect_bad(Api::kAnthropic, cases);
  EXPECT_TRUE(
      parse(Api::kOpenAi, user(R"(,"x":)" + std::string(100, '[') + std::string(100, ']'))).has_value());
}

TEST(Json, OneHugeBodyDoesNotKeepItsMemory) {
  JsonParser parser;
  std::string huge = R"({"a":")" + std::string(8 << 20, 'x') + "\"}";
  EXPECT_TRUE(parser.parse(huge).has_value());
  for (int i = 0; i < 3; ++i) {
    std::string small = R"({"a":"b"})";
    const auto object = parser.parse(small);
    ASSERT_TRUE(object.has_value());
    EXPECT_EQ(small, R"({"a":"b"})") << "the padding is taken away again";
  }
}

TEST(Json, EscapesWhatItWrites) {
  std::string out;
  append_json_string(out, std::string("a\"\\\n\t\x01\x7f é🌍\0", 16));
  simdjson::dom::parser parser;
  std::string_view read;
  ASSERT_EQ(parser.parse(out).get(read), simdjson::SUCCESS) << out;
  EXPECT_EQ(read, std::string_view("a\"\\\n\t\x01\x7f é🌍\0", 16));
}

TEST(Requests, SharedMembersAreChecked) {
  for (const Api api : {Api::kOpenAi, Api::kAnthropic}) {
    const auto with = [&](const std::string& m) { return api == Api::kOpenAi ? user(m) : message(m); };
    expect_bad(api, {
                        {R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":5})", "model: missing"},
                        {R"({"model":7,"messages":[]})", "expected a string, got a number"},
                        {R"({"model":"gpt-5","max_tokens":5,"messages":[{"role":"user","content":"hi"}]})",
                         "\"gpt-5\" does not exist here; this server has \"m\"", base::Code::kNotFound},
                        {R"({"model":"m","max_tokens":5})", "messages: missing"},
                        {R"({"model":"m","max_tokens":5,"messages":[]})", "at least one message"},
                        {R"({"model":"m","max_tokens":5,"messages":{}})", "expected an array"},
                        {R"({"model":"m","max_tokens":5,"messages":["hi"]})", "expected an object"},
                        {R"({"model":"m","max_tokens":5,"messages":[{"content":"hi"}]})", "role"},
                        {R"({"model":"m","max_tokens":5,"messages":[{"role":"robot","content":"hi"}]})",
                         "\"robot\" is not one of"},
                        {R"({"model":"m","max_tokens":5,"messages":[{"role":"user"}]})", "content: missing"},
                        {R"({"model":"m","max_tokens":5,"messages":[{"role":"user","content":5}]})",
                         "expected an array, got a number"},
                        {with(R"(,"stream":"yes")"), "expected true or false"},
                        {with(R"(,"temperature":-0.1)"), "temperature"},
                        {with(R"(,"temperature":"hot")"), "expected a number"},
                        {with(R"(,"top_p":1.5)"), "between 0 and 1"},
                    });
    EXPECT_TRUE(parse(api, with(R"(,"unheard_of":{"x":[1,2]},"metadata":{"user_id":"u"},"stream":null)"))
                    .has_value());
  }
}

TEST(Requests, MaxTokens) {
  for (const char* bad : {"0", "-1", "1.5", "\"5\"", "1e30", "[]"}) {
    EXPECT_FALSE(parse(Api::kOpenAi, user(std::string(R"(,"max_tokens":)") + bad)).has_value()) << bad;
    EXPECT_FALSE(parse(Api::kOpenAi, user(std::string(R"(,"max_completion_tokens":)") + bad)).has_value())
        << bad;
    EXPECT_FALSE(
        parse(Api::kAnthropic,
              std::string(R"({"model":"m","messages":[{"role":"user","content":"a"}],"max_tokens":)") + bad +
                  "}")
            .has_value())
        << bad;
  }
  expect_bad(Api::kAnthropic, {{user(""), "max_tokens: missing"}});
  EXPECT_EQ(parse(Api::kOpenAi, user(R"(,"max_tokens":9000000000000)"))->output_limit, 9'000'000'000'000);
  EXPECT_EQ(parse(Api::kOpenAi, user(R"(,"max_tokens":16.0)"))->output_limit, 16);
  EXPECT_EQ(parse(Api::kOpenAi, user(""))->output_limit, std::nullopt);
}

TEST(OpenAi, RolesOutOfOrderAndUnsupportedMembers) {
  expect_bad(
      Api::kOpenAi,
      {
          {turns(R"({"role":"user","content":"a"},{"role":"system","content":"b"})"), "before all others"},
          {turns(R"({"role":"user","content":"a"},{"role":"tool","content":"b"})"),
           "must follow an assistant"},
          {turns(R"({"role":"assistant","content":"a"},{"role":"tool","content":"b"})"),
           "must follow an assistant"},
          {turns(R"({"role":"system","content":"a"})"), "besides the system's"},
          {turns(R"({"role":"assistant"})"), "holds content or tool_calls"},
          {turns(R"({"role":"user","content":[{"type":"video"}]})"), "\"video\" parts",
           base::Code::kUnsupported},
          {turns(R"({"role":"user","content":[{"type":"text"}]})"), "text: missing"},
          {user(R"(,"n":2)"), "only 1", base::Code::kUnsupported},
          {user(R"(,"logprobs":true)"), "logprobs", base::Code::kUnsupported},
          {user(R"(,"response_format":{"type":"json_object"})"), "response_format", base::Code::kUnsupported},
          {user(R"(,"temperature":2.1)"), "between 0 and 2"},
          {user(R"(,"stop":["a",5])"), "expected strings"},
          {user(R"(,"stop":[""])"), "must not be empty"},
          {user(R"(,"tools":[{"type":"function","function":{}}])"), "tools[0].function.name: missing"},
      });
  EXPECT_TRUE(
      parse(Api::kOpenAi, user(R"(,"n":1,"logprobs":false,"response_format":{"type":"text"},"stop":null)")));
}

TEST(OpenAi, ReadsToolsCallsAndResults) {
  const auto request = parse(
      Api::kOpenAi,
      R"({"model":"m","tools":[{"type":"function","function":{"name":"ls","description":"lists","parameters":{"type":"object"}}}],
      "messages":[{"role":"system","content":"one"},{"role":"developer","content":[{"type":"text","text":"two"}]},
      {"role":"user","content":"go"},
      {"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"ls","arguments":"{\"a\": 1}"}},
                                                       {"id":"c2","type":"function","function":{"name":"ls","arguments":"{broken"}}]},
      {"role":"tool","tool_call_id":"c1","content":"file"},{"role":"tool","tool_call_id":"c2","content":"none"}]})");
  ASSERT_TRUE(request.has_value()) << request.error().message;
  EXPECT_EQ(request->conversation.system, "one\ntwo");
  EXPECT_EQ(request->conversation.tools.at(0).parameters_json, R"({"type":"object"})");
  ASSERT_EQ(request->conversation.messages.size(), 3U) << "results of one round form one turn";
  const auto& calls = request->conversation.messages[1].parts;
  EXPECT_EQ(std::get<text::ToolUsePart>(calls.at(0)).input_json, R"({"a": 1})");
  EXPECT_EQ(std::get<text::ToolUsePart>(calls.at(1)).input_json, R"("{broken")") << "kept as a string";
  EXPECT_EQ(std::get<text::ToolResultPart>(request->conversation.messages[2].parts.at(1)).id, "c2");
  EXPECT_FALSE(request->continues);
  EXPECT_TRUE(
      parse(Api::kOpenAi, turns(R"({"role":"user","content":"a"},{"role":"assistant","content":"b"})"))
          ->continues);
}

TEST(Anthropic, RolesBlocksAndWhatAgentsSend) {
  expect_bad(
      Api::kAnthropic,
      {
          {turns(R"({"role":"assistant","content":"a"})"), "first message must be the user's"},
          {turns(R"({"role":"system","content":"a"})"), "top-level"},
          {turns(R"({"role":"user","content":""})"), "must not be empty"},
          {turns(R"({"role":"user","content":[]})"), "must not be empty"},
          {turns(R"({"role":"user","content":[{"text":"a"}]})"), "type: missing"},
          {turns(R"({"role":"user","content":[{"type":"tool_use","name":"x","input":{}}]})"),
           "assistant message"},
          {turns(R"({"role":"user","content":[{"type":"image","source":{"type":"file","file_id":"f"}}]})"),
           "only base64", base::Code::kUnsupported},
          {message(R"(,"temperature":1.1)"), "between 0 and 1"},
      });
  const auto request = parse(
      Api::kAnthropic,
      R"({"model":"m","max_tokens":5,"thinking":{"type":"enabled","budget_tokens":100},"tool_choice":{"type":"auto"},
      "system":[{"type":"text","text":"x-anthropic-billing-header: cc_version=2; cch=1f2e;"},
                {"type":"text","text":"You are an agent.","cache_control":{"type":"ephemeral"}}],
      "tools":[{"name":"read","description":"d","input_schema":{"type":"object"},"cache_control":{"type":"ephemeral"}},
               {"type":"web_search_20250305","name":"web_search"}],
      "messages":[{"role":"user","content":"a"},{"role":"user","content":[{"type":"text","text":"b"}]},
        {"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s"},{"type":"text","text":"ok"},
          {"type":"tool_use","id":"t1","name":"read","input":{"p": "f"}},{"type":"server_tool_use","id":"s","name":"web_search"}]},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","is_error":true,
            "content":[{"type":"text","text":"boom"},{"type":"tool_reference","tool_name":"x"}]},
          {"type":"document","title":"T","source":{"type":"text","media_type":"text/plain","data":"words"}},
          {"type":"document","source":{"type":"base64","media_type":"application/pdf","data":"AA=="}}]}]})");
  ASSERT_TRUE(request.has_value()) << request.error().message;
  EXPECT_EQ(request->conversation.system, "You are an agent.")
      << "the billing header would break every prefix";
  EXPECT_EQ(request->conversation.tools.size(), 2U);
  const auto& messages = request->conversation.messages;
  ASSERT_EQ(messages.size(), 4U);
  EXPECT_EQ(messages[2].parts.size(), 3U) << "thinking is dropped, the unknown block is named";
  const auto& result = std::get<text::ToolResultPart>(messages[3].parts.at(0));
  EXPECT_TRUE(result.is_error);
  EXPECT_EQ(result.content.size(), 2U);
  EXPECT_THAT(std::get<text::TextPart>(messages[3].parts.at(1)).text, HasSubstr("words"));
}

TEST(Images, BadOnesAreNamed) {
  const std::string good = base64(png(64, 32));
  const std::string jpeg_start = base64(std::string("\xff\xd8\xff\xe0", 4));
  expect_bad(Api::kOpenAi,
             {
                 {openai_image("https://example.com/a.png"), "are not fetched", base::Code::kUnsupported},
                 {openai_image("file:///etc/passwd"), "are not fetched", base::Code::kUnsupported},
                 {openai_image("data:image/png," + good), "data URL must read"},
                 {openai_image("data:image/png;base64"), "data URL must read"},
                 {openai_image("data:image/png;base64,AAA*"), "broken base64 at character 3"},
                 {openai_image("data:image/png;base64,AAAAA"), "middle of a byte"},
                 {openai_image("data:image/png;base64,"), "empty"},
                 {openai_image("data:image/png;base64," + base64("hello, this is text, not an image")),
                  "not an image"},
                 {openai_image("data:image/gif;base64," + good), "image/gif"},
                 {openai_image("data:image/jpeg;base64," + good), "declared as image/jpeg"},
                 {openai_image("data:image/png;base64," + base64(png(0, 0))), "0x0"},
                 {openai_image("data:image/png;base64," + base64(png(100'000, 100'000))), "100000x100000"},
             });
  expect_bad(Api::kAnthropic,
             {
                 {anthropic_image("image/png", "%%%"), "messages.0.content.0.source: broken base64"},
                 {anthropic_image("image/webp", good), "image/webp"},
                 {anthropic_image("image/png", jpeg_start), "JPEG"},
                 {anthropic_image("image/png", base64(png(0, 5))), "0x5"},
             });
  const std::string part = R"({"type":"image_url","image_url":"data:image/png;base64,)" + good + "\"}";
  expect_bad(Api::kOpenAi, {{turns(R"({"role":"user","content":[)" + part + "," + part + "," + part + "]}"),
                             "content[2].image_url.url: too many images; at most 2"}});
}

TEST(Images, CountTokensFromTheHeader) {
  const auto request = parse(Api::kAnthropic, anthropic_image("image/png", base64(png(1280, 800))));
  ASSERT_TRUE(request.has_value()) << request.error().message;
  ASSERT_EQ(request->images.size(), 1U);
  EXPECT_EQ(request->images[0].patches, 4000U);
  EXPECT_EQ(request->images[0].tokens, 20U * 13U);
  EXPECT_EQ(std::get<text::ImagePart>(request->conversation.messages[0].parts.at(0)).tokens, 260U);
  EXPECT_EQ(std::string(request->images[0].bytes.begin(), request->images[0].bytes.end()), png(1280, 800));
  auto blind = limits();
  blind.vision.formula = model::VisionSpec::Formula::kNone;
  JsonParser parser;
  std::string body = openai_image("data:image/png;base64," + base64(png(8, 8)));
  const auto refused = parse_openai(*parser.parse(body), blind);
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().message, HasSubstr("takes no images"));
}

TEST(Images, Base64RoundTrips) {
  std::string bytes;
  for (int i = 0; i < 300; ++i) {
    const auto decoded = decode_base64(base64(bytes));
    ASSERT_TRUE(decoded.has_value()) << i;
    EXPECT_EQ(std::string(decoded->begin(), decoded->end()), bytes);
    bytes += static_cast<char>(i * 37);
  }
  EXPECT_EQ(decode_base64("TWFu\nTWE")->size(), 5U) << "line breaks and missing padding are fine";
  EXPECT_FALSE(decode_base64("TWE=x").has_value());
  EXPECT_FALSE(decode_base64("T===").has_value());
}

}  // namespace
}  // namespace trimtab::gateway
