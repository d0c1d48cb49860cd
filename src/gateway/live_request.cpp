#include "gateway/live_request.h"

#include <algorithm>

#include "gateway/cache_scope.h"
#include "gateway/error_response.h"

namespace trimtab::gateway {

LiveRequest::LiveRequest(const LiveContext& context, LiveSetup setup, text::StopMatcher stops,
                         std::vector<std::string> stop_texts, std::unique_ptr<AnswerWriter> answer,
                         std::shared_ptr<net::ResponseWriter> writer)
    : context_(context),
      setup_(std::move(setup)),
      detokenizer_(context.tokenizer),
      stops_(std::move(stops)),
      stop_texts_(std::move(stop_texts)),
      answer_(std::move(answer)),
      writer_(std::move(writer)),
      started_(context.clock.now()),
      last_write_(started_) {}

void LiveRequest::start(cluster::Submission submission) {
  usage_.prompt_tokens = static_cast<std::uint32_t>(submission.tokens.size());
  writer_->on_disconnect([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->client_left();
  });
  const auto id = context_.backend.submit(std::move(submission), shared_from_this());
  if (backend_done_) return;  // refused (or even finished) inside `submit`
  backend_id_ = id;
  if (over_) end_backend();
}

void LiveRequest::on_accepted(const cluster::Accepted& accepted) {
  if (over_) return;
  usage_.prompt_tokens = accepted.prompt_tokens;
  usage_.hit_tokens = accepted.hit_tokens;
  if (!setup_.stream) return;
  begun_ = true;
  writer_->begin_stream(200, {{"Content-Type", "text/event-stream; charset=utf-8"},
                              {"Cache-Control", "no-cache"},
                              {"X-Accel-Buffering", "no"},
                              {setup_.api == Api::kAnthropic ? "request-id" : "x-request-id", setup_.name}});
  answer_->begin(frames_, usage_);
  write(frames_);
}

void LiveRequest::on_tokens(std::span<const std::int32_t> ids) {
  if (over_) return;
  if (usage_.output_tokens == 0)
    context_.first_token(setup_.api, base::to_seconds(context_.clock.now() - started_));
  for (const std::int32_t id : ids) {
    if (!take_token(id)) return;
  }
  if (!frames_.empty()) write(frames_);
}

/// False when a stop sequence ended the answer.
bool LiveRequest::take_token(std::int32_t id) {
  ++usage_.output_tokens;
  if (std::find(setup_.stop_tokens.begin(), setup_.stop_tokens.end(), id) != setup_.stop_tokens.end())
    return true;
  ids_.push_back(id);
  const std::string piece = detokenizer_.push(id);
  if (piece.empty()) return true;
  if (stop_texts_.empty()) {
    show(piece);
    return true;
  }
  const auto out = stops_.push(piece);
  show(out.text);
  if (!out.matched) return true;
  ++context_.counters.stop_sequences;
  complete(StopCause::kStopSequence, stop_texts_[*out.matched]);
  return false;
}

void LiveRequest::show(std::string_view piece) {
  if (piece.empty()) return;
  text_ += piece;
  if (setup_.stream) answer_->text(frames_, piece);
}

void LiveRequest::on_finished(const cluster::Finished& finished) {
  if (over_) return;
  backend_id_.reset();
  backend_done_ = true;
  usage_.hit_tokens = begun_ ? usage_.hit_tokens : finished.hit_tokens;
  complete(finished.reason == model::FinishReason::kLength ? StopCause::kLength : StopCause::kEnd, {});
}

void LiveRequest::complete(StopCause cause, std::string stop_sequence) {
  bool whole_characters = true;
  if (cause != StopCause::kStopSequence) {
    const std::string rest = detokenizer_.flush();
    whole_characters = rest.empty();
    if (stop_texts_.empty()) {
      show(rest);
    } else {
      const auto out = stops_.push(rest);
      show(out.text);
      if (!out.matched) show(stops_.flush());
    }
  }
  AnswerEnd answer_end{cause, std::move(stop_sequence), usage_};
  if (setup_.stream) {
    answer_->end(frames_, answer_end);
    write(frames_);
    writer_->finish();
  } else {
    writer_->respond({200,
                      {{"Content-Type", "application/json"},
                       {setup_.api == Api::kAnthropic ? "request-id" : "x-request-id", setup_.name}},
                      answer_->whole(text_, answer_end)});
  }
  ++context_.counters.finished;
  ++context_.counters.responses[{setup_.api, 200}];
  context_.counters.prompt_tokens += usage_.prompt_tokens;
  context_.counters.hit_tokens += usage_.hit_tokens;
  context_.counters.output_tokens += usage_.output_tokens;
  remember_answer(cause, whole_characters);
  end();
}

void LiveRequest::remember_answer(StopCause cause, bool whole_characters) {
  // Text with a broken character at its end spells other ids than those that made it.
  if (context_.answers == nullptr || !setup_.remember || !whole_characters || text_.empty()) return;
  const auto ids =
      cause == StopCause::kStopSequence ? text::ids_of_shown_text(context_.tokenizer, ids_, text_) : ids_;
  const std::string name = scoped_answer(setup_.cache_scope, text_);
  if (!context_.answers->remember(name, setup_.answer_context, ids)) ++context_.counters.answers_not_stored;
}

void LiveRequest::on_failed(const base::Error& error, std::optional<base::Nanos> retry_after) {
  if (over_) return;
  backend_id_.reset();
  backend_done_ = true;
  ++context_.counters.failed;
  ++context_.counters.responses[{setup_.api, error_status(setup_.api, error.code)}];
  if (begun_) {
    // Frames are written whole, so the error never lands inside another event.
    append_error_event(frames_, setup_.api, error, setup_.name);
    write(frames_);
    writer_->finish();
  } else {
    writer_->respond(error_response(setup_.api, error, retry_after, setup_.name));
  }
  end();
}

void LiveRequest::client_left() {
  if (over_) return;
  ++context_.counters.client_left;
  ++context_.counters.responses[{setup_.api, 499}];
  end();
}

void LiveRequest::shut_down() {
  if (over_) return;
  const auto id = backend_id_;
  on_failed({base::Code::kUnavailable, "the server is stopping; ask again later", "gateway"}, std::nullopt);
  if (id) context_.backend.cancel(*id);
}

void LiveRequest::ping_if_silent(base::Nanos before) {
  if (over_ || !begun_ || last_write_ > before) return;
  answer_->ping(frames_);
  if (!frames_.empty()) write(frames_);
}

void LiveRequest::write(const std::string& frames) {
  last_write_ = context_.clock.now();
  writer_->write(frames);  // when the client is gone, `on_disconnect` tells
  frames_.clear();
}

void LiveRequest::end() {
  over_ = true;
  const auto self = shared_from_this();
  end_backend();
  writer_.reset();
  context_.over(setup_.live_id);
}

/// Cancels what still runs, never from inside the backend's own call: it may be in the middle of handing out
/// a step's tokens.
void LiveRequest::end_backend() {
  if (!backend_id_) return;
  context_.post([self = shared_from_this()] {
    if (self->backend_id_) self->context_.backend.cancel(*self->backend_id_);
    self->backend_id_.reset();
  });
}

}  // namespace trimtab::gateway
