#include <fmt/format.h>

#include "base/codec.h"
#include "kv_remote/net/network_target.h"

/// What goes over a client's connection.
namespace trimtab::kv_remote {

using kv_target::Completion;
using kv_target::Outcome;
using kv_target::Verb;

/// What a request draws from the credit: the bytes of content it moves, in either direction.
std::uint64_t NetworkTarget::cost_of(const kv_target::Request& request) const {
  switch (request.verb) {
    case Verb::kRead:
      return std::min<std::uint64_t>(request.buffer.size(), limits_.shard_bytes);
    case Verb::kWrite:
      return request.content.size();
    case Verb::kErase:
      break;
  }
  return 0;
}

void NetworkTarget::receive() {
  while (true) {
    const std::uint64_t before = stream_->bytes(), refusals = stats_.refusals;
    const auto state = stream_->receive(
        socket_.get(), [this](const Header& header) { return place(header); },
        [this](const Header& header) { return take(header); });
    stats_.bytes_received += stream_->bytes() - before;
    switch (state) {
      case FrameStream::State::kBusy:
        continue;
      case FrameStream::State::kDry:
        return;
      case FrameStream::State::kEnded:
        return lose(fmt::format("{} closed the connection", address_.text), false);
      case FrameStream::State::kBroken:
        break;
    }
    return lose(
        fmt::format("{}: {}", address_.text,
                    stream_->trouble().empty() ? "an answer to nothing that was asked" : stream_->trouble()),
        stats_.refusals == refusals);
  }
}

std::span<std::byte> NetworkTarget::place(const Header& header) {
  const auto into = [&header](std::vector<std::byte>& bytes) {
    bytes.resize(header.length);
    return std::span(bytes);
  };
  if (header.kind == Kind::kWelcome || header.kind == Kind::kRefused) return into(dropped_);
  if (header.kind != Kind::kAnswer) return {};
  if (question_.id != 0 && header.tag == question_.id) return into(question_.content);
  const auto found = requests_.find(header.tag);
  if (found == requests_.end()) return into(dropped_);  // cancelled, or a question that was given up
  const kv_target::Request& request = found->second.request;
  if (request.verb == Verb::kWrite && says_why(header.outcome) && header.length <= kControlBytesMax)
    return into(dropped_);
  if (!found->second.sent || request.verb != Verb::kRead || request.name != header.name) return {};
  if (header.length > request.buffer.size()) return {};
  return request.buffer.first(header.length);
}

bool NetworkTarget::take(const Header& header) {
  switch (header.kind) {
    case Kind::kWelcome:
      return state_ == State::kGreeting && welcome(header);
    case Kind::kRefused:
      ++stats_.refusals;
      stream_->refuse("refused: " + decode_text(dropped_));
      return false;
    case Kind::kAnswer:
      return state_ == State::kUp && answer(header);
    case Kind::kGrant:
      // Credit only grows.
      if (header.offset < granted_requests_ || header.bytes < granted_bytes_) return false;
      granted_requests_ = header.offset;
      granted_bytes_ = header.bytes;
      return state_ == State::kUp;
    case Kind::kHello:
    case Kind::kRead:
    case Kind::kWrite:
    case Kind::kErase:
    case Kind::kCancel:
    case Kind::kChanges:
    case Kind::kSpace:
      break;
  }
  return false;
}

bool NetworkTarget::welcome(const Header& header) {
  const auto welcome = base::decode<Welcome>(dropped_);
  if (header.version != kFrameVersion || !welcome || welcome->credit_bytes < welcome->shard_bytes) {
    stream_->refuse(
        fmt::format("welcome in version {}, this client speaks {}", header.version, kFrameVersion));
    return false;
  }
  state_ = State::kUp;
  ++stats_.connects;
  epoch_ = welcome->epoch;
  durable_ = welcome->durable != 0;
  limits_ = {welcome->shard_bytes, welcome->credit_bytes, welcome->credit_requests};
  granted_requests_ = welcome->credit_requests;
  granted_bytes_ = welcome->credit_bytes;
  drawn_requests_ = drawn_bytes_ = 0;
  backoff_ = base::Nanos{0};
  trouble_.clear();
  stream_->parser().allow(std::max(welcome->shard_bytes, kControlBytesMax));
  return true;
}

bool NetworkTarget::answer(const Header& header) {
  if (question_.id != 0 && header.tag == question_.id) {
    if (header.length == 0) question_.content.clear();
    question_.answered = true;
    question_.outcome = header.outcome;
    return true;
  }
  const auto found = requests_.find(header.tag);
  if (found == requests_.end()) {
    ++stats_.answers_dropped;
    return header.tag <= last_id_;
  }
  Held& held = found->second;
  const bool is_read = held.request.verb == Verb::kRead && header.outcome == Outcome::kDone;
  const bool is_refused = held.request.verb == Verb::kWrite && says_why(header.outcome);
  if (!held.sent || held.answered || header.outcome > Outcome::kCancelled ||
      header.name != held.request.name ||
      (is_read ? header.bytes != header.length : header.length != 0 && !is_refused)) {
    return false;
  }
  if (is_refused) {
    auto told = decode_condition(dropped_);
    if (header.length == 0 || !told) return false;
    told_ = std::move(*told);
  }
  held.answered = true;
  held.completion = {0, header.outcome, header.bytes};
  if (held.released) finish(header.tag, held.completion);
  return true;
}

void NetworkTarget::send_waiting() {
  while (!waiting_.empty()) {
    const std::uint64_t id = waiting_.front();
    Held& held = requests_.at(id);
    const std::uint64_t size = held.request.content.size();
    if (held.request.verb == Verb::kWrite && (size == 0 || size > limits_.shard_bytes)) {
      waiting_.pop_front();
      finish(id, {0, Outcome::kTooLarge, 0});
      continue;
    }
    const std::uint64_t cost = cost_of(held.request);
    if (drawn_requests_ + 1 > granted_requests_ || drawn_bytes_ + cost > granted_bytes_) return;
    ++drawn_requests_;
    drawn_bytes_ += cost;
    waiting_.pop_front();
    send(id, held);
  }
}

void NetworkTarget::send(std::uint64_t id, Held& held) {
  Header header;
  header.tag = id;
  header.name = held.request.name;
  held.sent = true;
  switch (held.request.verb) {
    case Verb::kRead:
      header.kind = Kind::kRead;
      header.offset = held.request.offset;
      header.bytes = cost_of(held.request);
      out_->push(header);
      return;
    case Verb::kWrite:
      header.kind = Kind::kWrite;
      held.released = false;
      out_->push(header, held.request.content, id);
      return;
    case Verb::kErase:
      header.kind = Kind::kErase;
      out_->push(header);
      return;
  }
}

void NetworkTarget::flush() {
  if (!out_->flush()) return lose(fmt::format("{} closed the connection", address_.text), false);
  out_->read_notifications();
  for (const std::uint64_t id : out_->released()) {
    const auto found = requests_.find(id);
    if (found == requests_.end()) continue;
    found->second.released = true;
    if (found->second.answered) finish(id, found->second.completion);
  }
  watch();
}

void NetworkTarget::send_question(Kind kind, std::span<const std::byte> content) {
  question_ = {};
  question_.id = last_question_ = ++last_id_;
  question_.until = steady_now() + options_.question_timeout;
  Header header;
  header.kind = kind;
  header.tag = question_.id;
  control_.assign(content.begin(), content.end());
  out_->push(header, control_);
  flush();
}

base::Result<std::vector<std::byte>> NetworkTarget::take_answer() {
  question_.id = 0;
  question_.answered = false;
  if (question_.outcome == Outcome::kDone) return std::move(question_.content);
  return base::fail(base::Code::kUnavailable,
                    fmt::format("{}: {}", address_.text, decode_text(question_.content)), "kv_remote");
}

base::Status NetworkTarget::cannot_be_asked() const {
  return base::fail(base::Code::kUnavailable,
                    fmt::format("kv-target {} cannot be asked: {}", address_.text,
                                trouble_.empty() ? "no answer" : trouble_),
                    "kv_remote");
}

base::Result<std::vector<std::byte>> NetworkTarget::ask(Kind kind, std::span<const std::byte> content) {
  const base::Nanos until = steady_now() + options_.question_timeout;
  while (state_ != State::kUp && steady_now() < until) {
    advance();
    if (state_ == State::kDown && retry_at_ > steady_now()) break;
    if (state_ != State::kUp) wait(until);
  }
  // One at a time: what was asked in the background is asked again when it is wanted.
  while (question_.id != 0 && !question_.answered && steady_now() < until) wait(until);
  if (state_ == State::kUp && (question_.id == 0 || question_.answered)) {
    send_question(kind, content);
    while (question_.id != 0 && !question_.answered && steady_now() < until) wait(until);
    if (question_.answered) {
      arm();
      return take_answer();
    }
  }
  // Nothing can be asked on a connection that still owes an answer.
  if (question_.id != 0) lose(fmt::format("{} does not answer a question", address_.text), false);
  arm();
  return tl::unexpected<base::Error>(cannot_be_asked().error());
}

base::Result<kv_target::Changes> NetworkTarget::changes(const kv_target::Cursor& since, std::uint32_t limit) {
  if (options_.follow_in_background) {
    advance();
    if (state_ == State::kUp && followed_session_ == session_) return follow(since, limit);
  }
  const auto content = base::encode(ChangesQuestion{since, limit});
  auto answer = ask(Kind::kChanges, content);
  if (!answer) return tl::unexpected<base::Error>(answer.error());
  const std::uint64_t asked = last_question_;
  auto changes = take_changes(*answer);
  if (!changes) return changes;
  drop_what_is_known(asked, *changes);
  // A telling of everything counts from its last page on: only then does the caller know all.
  if (!changes->more) followed_session_ = session_;
  return changes;
}

base::Result<kv_target::Changes> NetworkTarget::take_changes(std::span<const std::byte> answer) {
  auto told = decode_changes(answer);
  if (!told) return tl::unexpected<base::Error>(told.error());
  told_ = std::move(told->condition);
  return std::move(told->changes);
}

void NetworkTarget::drop_what_is_known(std::uint64_t question, kv_target::Changes& changes) {
  std::erase_if(touched_,
                [&](const auto& one) { return one.second.under_way == 0 && one.second.question < question; });
  if (touched_.empty()) return;
  std::erase_if(changes.changes,
                [&](const kv_target::Change& change) { return touched_.contains(change.name); });
}

base::Result<kv_target::Changes> NetworkTarget::follow(const kv_target::Cursor& since, std::uint32_t limit) {
  kv_target::Changes nothing_new;
  nothing_new.next = since;
  if (question_.id != 0 && !question_.answered) {
    if (steady_now() < question_.until) return nothing_new;
    lose(fmt::format("{} does not answer a question", address_.text), false);
    arm();
    return tl::unexpected<base::Error>(cannot_be_asked().error());
  }
  if (question_.answered) {
    const bool wanted = question_.since == since;
    const auto answer = take_answer();
    if (!answer) return tl::unexpected<base::Error>(answer.error());
    auto changes = take_changes(*answer);
    if (changes && wanted) {
      drop_what_is_known(last_question_, *changes);
      return changes;
    }
  }
  const auto content = base::encode(ChangesQuestion{since, limit});
  send_question(Kind::kChanges, content);
  question_.since = since;
  arm();
  return nothing_new;
}

base::Result<kv_target::Space> NetworkTarget::space() {
  auto answer = ask(Kind::kSpace, {});
  if (!answer) return tl::unexpected<base::Error>(answer.error());
  auto space = decode_space(*answer);
  if (!space) return tl::unexpected<base::Error>(space.error());
  told_ = std::move(space->condition);
  return space->space;
}

}  // namespace trimtab::kv_remote
