#include "gateway/answer_writer.h"

#include "gateway/json_out.h"

namespace trimtab::gateway {
namespace {

void append_openai_usage(JsonOut& json, const Usage& usage) {
  json.key("usage").open_object().field("prompt_tokens", usage.prompt_tokens);
  json.field("completion_tokens", usage.output_tokens);
  json.field("total_tokens", std::int64_t{usage.prompt_tokens} + usage.output_tokens);
  json.key("prompt_tokens_details").open_object().field("cached_tokens", usage.hit_tokens).close_object();
  json.close_object();
}

/// `chat.completion` and its chunks. The frame around a piece of text is made once per request.
class OpenAiWriter final : public AnswerWriter {
 public:
  OpenAiWriter(std::string id, std::string model, std::int64_t created_s, bool include_usage)
      : id_(std::move(id)), model_(std::move(model)), created_s_(created_s), include_usage_(include_usage) {
    frame_ = "data: {\"id\":";
    append_json_string(frame_, id_);
    frame_ +=
        ",\"object\":\"chat.completion.chunk\",\"created\":" + std::to_string(created_s_) + ",\"model\":";
    append_json_string(frame_, model_);
    frame_ += ",\"choices\":[";
    tail_ = include_usage_ ? "],\"usage\":null}\n\n" : "]}\n\n";
  }

  void begin(std::string& out, const Usage&) override {
    out += frame_;
    out += R"({"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null})";
    out += tail_;
  }
  void text(std::string& out, std::string_view piece) override {
    out += frame_;
    out += R"({"index":0,"delta":{"content":)";
    append_json_string(out, piece);
    out += R"(},"logprobs":null,"finish_reason":null})";
    out += tail_;
  }
  void end(std::string& out, const AnswerEnd& end) override {
    out += frame_;
    out += R"({"index":0,"delta":{},"logprobs":null,"finish_reason":)";
    out += end.cause == StopCause::kLength ? "\"length\"}" : "\"stop\"}";
    out += tail_;
    if (include_usage_) {
      out += frame_;
      out += "],";
      JsonOut json(out);
      append_openai_usage(json, end.usage);
      out += "}\n\n";
    }
    out += "data: [DONE]\n\n";
  }
  void ping(std::string&) override {}

  std::string whole(std::string_view text, const AnswerEnd& end) override {
    std::string out;
    JsonOut json(out);
    json.open_object().field("id", id_).field("object", "chat.completion").field("created", created_s_);
    json.field("model", model_).key("choices").open_array().open_object().field("index", std::int64_t{0});
    json.key("message").open_object().field("role", "assistant").field("content", text);
    json.key("refusal").null().close_object().key("logprobs").null();
    json.field("finish_reason", end.cause == StopCause::kLength ? "length" : "stop");
    json.close_object().close_array();
    append_openai_usage(json, end.usage);
    json.close_object();
    return out;
  }

 private:
  std::string id_, model_;
  std::int64_t created_s_;
  bool include_usage_;
  std::string frame_, tail_;
};

/// `message` and its events. A text block is opened with the first piece of text, so that a ping may come
/// before it; an answer without text has no block.
class AnthropicWriter final : public AnswerWriter {
 public:
  AnthropicWriter(std::string id, std::string model) : id_(std::move(id)), model_(std::move(model)) {}

  void begin(std::string& out, const Usage& usage) override {
    out += "event: message_start\ndata: ";
    JsonOut json(out);
    json.open_object().field("type", "message_start").key("message").open_object();
    append_message_head(json);
    json.key("content").open_array().close_array();
    json.key("stop_reason").null().key("stop_sequence").null();
    append_usage(json, usage);
    json.close_object().close_object();
    out += "\n\n";
  }
  void text(std::string& out, std::string_view piece) override {
    if (!block_open_) {
      block_open_ = true;
      out +=
          "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,"
          "\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n";
    }
    out +=
        "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,"
        "\"delta\":{\"type\":\"text_delta\",\"text\":";
    append_json_string(out, piece);
    out += "}}\n\n";
  }
  void end(std::string& out, const AnswerEnd& end) override {
    if (block_open_)
      out += "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n";
    out += "event: message_delta\ndata: ";
    JsonOut json(out);
    json.open_object().field("type", "message_delta").key("delta").open_object();
    append_stop(json, end);
    json.close_object();
    append_usage(json, end.usage);
    json.close_object();
    out += "\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
  }
  void ping(std::string& out) override { out += "event: ping\ndata: {\"type\":\"ping\"}\n\n"; }

  std::string whole(std::string_view text, const AnswerEnd& end) override {
    std::string out;
    JsonOut json(out);
    json.open_object();
    append_message_head(json);
    json.key("content").open_array();
    if (!text.empty()) json.open_object().field("type", "text").field("text", text).close_object();
    json.close_array();
    append_stop(json, end);
    append_usage(json, end.usage);
    json.close_object();
    return out;
  }

 private:
  void append_message_head(JsonOut& json) const {
    json.field("id", id_).field("type", "message").field("role", "assistant").field("model", model_);
  }
  static void append_stop(JsonOut& json, const AnswerEnd& end) {
    constexpr std::string_view kReasons[] = {"end_turn", "max_tokens", "stop_sequence"};
    json.field("stop_reason", kReasons[static_cast<std::size_t>(end.cause)]).key("stop_sequence");
    end.cause == StopCause::kStopSequence ? json.string(end.stop_sequence) : json.null();
  }
  /// `input_tokens` excludes what was read from the cache: the prompt is their sum.
  static void append_usage(JsonOut& json, const Usage& usage) {
    json.key("usage").open_object().field("input_tokens",
                                          std::int64_t{usage.prompt_tokens} - usage.hit_tokens);
    json.field("cache_creation_input_tokens", std::int64_t{0})
        .field("cache_read_input_tokens", usage.hit_tokens);
    json.field("output_tokens", usage.output_tokens).close_object();
  }

  std::string id_, model_;
  bool block_open_ = false;
};

}  // namespace

std::unique_ptr<AnswerWriter> make_answer_writer(Api api, std::string id, std::string model,
                                                 std::int64_t created_s, bool include_usage) {
  if (api == Api::kAnthropic) return std::make_unique<AnthropicWriter>(std::move(id), std::move(model));
  return std::make_unique<OpenAiWriter>(std::move(id), std::move(model), created_s, include_usage);
}

}  // namespace trimtab::gateway
