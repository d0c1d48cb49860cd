#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "cluster/backend.h"
#include "gateway/answer_writer.h"
#include "gateway/chat_request.h"
#include "net/http_server.h"
#include "text/answer_memory.h"
#include "text/incremental_detokenizer.h"
#include "text/stop_matcher.h"

namespace trimtab::gateway {

/// How requests ended, and what they cost, since start. Plain numbers: touched for every token, read at a
/// scrape.
struct GatewayCounters {
  std::uint64_t finished = 0;        // answers that were completed
  std::uint64_t stop_sequences = 0;  // of those, ended by a stop sequence
  std::uint64_t failed = 0;          // by the serving system
  std::uint64_t client_left = 0;
  std::uint64_t prompt_tokens = 0, hit_tokens = 0, output_tokens = 0;
  std::uint64_t answers_remembered = 0;  // past turns whose generated ids were found
  std::uint64_t answers_retokenized = 0;
  std::uint64_t answers_not_stored = 0;                    // the answers' file failed
  std::map<std::pair<Api, int>, std::uint64_t> responses;  // by API and status
};

/// What all requests share; owned by the gateway, which outlives them.
struct LiveContext {
  cluster::Backend& backend;
  const base::Clock& clock;
  const text::Tokenizer& tokenizer;
  text::AnswerMemory* answers;  // may be null
  GatewayCounters& counters;
  /// Runs a task on a fresh call stack of the same thread.
  std::function<void(std::function<void()>)> post;
  /// The request is over: the gateway forgets it.
  std::function<void(std::uint64_t live_id)> over;
  /// Time to first token, seconds.
  std::function<void(Api, double)> first_token;
};

/// What a request brings along besides its submission.
struct LiveSetup {
  std::uint64_t live_id = 0;
  Api api = Api::kOpenAi;
  std::string name;  // public id
  bool stream = false;
  bool remember = true;  // the answer starts where the prompt ends, so that its ids can be used again
  std::uint64_t answer_context = 0;  // `text::context_of` the prompt
  std::string cache_scope;           // whose answer it is
  std::vector<std::int32_t> stop_tokens;
};

/// One request from submission to its last byte: turns ids into text, watches for stop sequences, words the
/// answer, and frees everything when the client leaves. Held by the gateway and, as a sink, by the backend;
/// when it is over it lets go of both, whoever calls last.
/// Reentrancy: the backend may call from inside `submit`; cancels are posted, never made inside its calls.
class LiveRequest final : public cluster::Sink, public std::enable_shared_from_this<LiveRequest> {
 public:
  LiveRequest(const LiveContext& context, LiveSetup setup, text::StopMatcher stops,
              std::vector<std::string> stop_texts, std::unique_ptr<AnswerWriter> answer,
              std::shared_ptr<net::ResponseWriter> writer);

  void start(cluster::Submission submission);
  /// Writes a ping when the stream has been silent since `before`.
  void ping_if_silent(base::Nanos before);
  /// The gateway is closing: cancels and answers 503.
  void shut_down();

  void on_accepted(const cluster::Accepted& accepted) override;
  void on_tokens(std::span<const std::int32_t> ids) override;
  void on_finished(const cluster::Finished& finished) override;
  void on_failed(const base::Error& error, std::optional<base::Nanos> retry_after) override;

 private:
  void client_left();
  bool take_token(std::int32_t id);
  void show(std::string_view piece);
  void complete(StopCause cause, std::string stop_sequence);
  void remember_answer(StopCause cause, bool whole_characters);
  void write(const std::string& frames);
  void end();
  void end_backend();

  const LiveContext& context_;
  LiveSetup setup_;
  text::IncrementalDetokenizer detokenizer_;
  text::StopMatcher stops_;
  std::vector<std::string> stop_texts_;
  std::unique_ptr<AnswerWriter> answer_;
  std::shared_ptr<net::ResponseWriter> writer_;

  std::optional<model::RequestId> backend_id_;  // while the backend works on it
  bool begun_ = false;                          // the stream's head is out
  bool over_ = false;
  bool backend_done_ = false;  // it finished or failed: nothing is left to cancel
  Usage usage_;
  std::vector<std::int32_t> ids_;  // generated, without the stop token
  std::string text_;               // shown
  std::string frames_;             // made by the present call, not yet written
  base::Nanos started_;
  base::Nanos last_write_;
};

}  // namespace trimtab::gateway
