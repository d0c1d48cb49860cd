#include "gateway/fake_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/post.hpp>

#include "base/hash.h"
#include "gateway/json_out.h"
#include "model/ids.h"

namespace trimtab::gateway {
namespace {

constexpr std::size_t kJourneysMax = 1024;
constexpr std::size_t kBlocksMax = 1 << 20;

std::int64_t now_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

}  // namespace

FakeOptions fake_options(const PromptText& text) {
  FakeOptions options;
  options.turn_start = text.chat.turn_start;
  options.turn_head_tokens = text.tokenizer.encode("user\n").size();
  return options;
}

FakeBackend::FakeBackend(boost::asio::io_context& io, FakeOptions options)
    : io_(io), options_(std::move(options)), timer_(io) {}

FakeBackend::~FakeBackend() { alive_.reset(); }

/// The words of the last turn that has ended, then the stop token; a prompt without such a turn is echoed
/// whole.
std::vector<std::int32_t> FakeBackend::echo(const cluster::Submission& submission) const {
  const auto& tokens = submission.tokens;
  std::vector<std::int32_t> answer;
  const auto stop = submission.stop_tokens.empty() ? -1 : submission.stop_tokens.front();
  const auto last_end = std::find(tokens.rbegin(), tokens.rend(), stop);
  auto begin = tokens.begin();
  auto end = tokens.end();
  if (last_end != tokens.rend()) {
    end = last_end.base() - 1;
    const auto start = std::find(std::make_reverse_iterator(end), tokens.rend(), options_.turn_start);
    const auto words = static_cast<std::size_t>(end - start.base());
    if (start != tokens.rend() && words >= options_.turn_head_tokens)
      begin = start.base() + static_cast<std::ptrdiff_t>(options_.turn_head_tokens);
  }
  answer.assign(begin, end);
  answer.push_back(stop);
  return answer;
}

std::uint32_t FakeBackend::hit_tokens(std::uint64_t root, const std::vector<std::int32_t>& prompt) const {
  std::uint64_t chain = root;
  std::size_t hit = 0;
  const auto block = static_cast<std::size_t>(model::kBlockTokens);
  // One token at least is computed: the last row's logits are needed.
  for (std::size_t end = block; end < prompt.size(); end += block) {
    chain = base::checksum_of(std::span(prompt).subspan(end - block, block), chain);
    if (!blocks_.contains(chain)) break;
    hit = end;
  }
  return static_cast<std::uint32_t>(hit);
}

void FakeBackend::remember_blocks(std::uint64_t root, const std::vector<std::int32_t>& tokens) {
  if (blocks_.size() > kBlocksMax) blocks_.clear();
  std::uint64_t chain = root;
  const auto block = static_cast<std::size_t>(model::kBlockTokens);
  for (std::size_t end = block; end <= tokens.size(); end += block) {
    chain = base::checksum_of(std::span(tokens).subspan(end - block, block), chain);
    blocks_.insert(chain);
  }
}

model::RequestId FakeBackend::submit(cluster::Submission submission, std::shared_ptr<cluster::Sink> sink) {
  const std::uint64_t id = next_id_++;
  if (options_.refuse) {
    sink->on_failed(*options_.refuse, options_.retry_after);
    return model::RequestId{id};
  }
  Running request;
  request.answer = echo(submission);
  if (request.answer.size() > submission.output_limit) {
    request.answer.resize(submission.output_limit);
    request.reason = model::FinishReason::kLength;
  }
  request.root = base::checksum(submission.tenant);
  request.hit_tokens = hit_tokens(request.root, submission.tokens);
  request.sink = std::move(sink);
  request.due_ns = now_ns() + options_.first_token.value;
  request.prompt = submission.tokens;
  if (journeys_.size() == kJourneysMax) journeys_.pop_front();
  journeys_.push_back({submission.name, id, submission.tokens.size(), request.hit_tokens, 0, "running"});
  last_ = std::move(submission);
  running_.emplace(id, std::move(request));
  schedule();
  return model::RequestId{id};
}

void FakeBackend::cancel(model::RequestId id) {
  if (!running_.contains(id.value)) return;
  ++cancelled_total_;
  end(id.value, "cancelled");
}

void FakeBackend::schedule() {
  if (running_.empty()) return;
  if (scheduled_) {
    // A newcomer may be due before what the timer waits for: wake it, it will look again.
    timer_.cancel();
    return;
  }
  scheduled_ = true;
  const auto run = [this, alive = std::weak_ptr<bool>(alive_)](boost::system::error_code = {}) {
    if (!alive.lock()) return;
    scheduled_ = false;
    step();
    schedule();
  };
  std::int64_t due = INT64_MAX;
  for (const auto& [id, request] : running_) {
    // Acceptance is told at once, whatever the pace.
    due = std::min(due, request.accepted ? request.due_ns : 0);
  }
  const std::int64_t wait = due - now_ns();
  if (wait <= 0) return boost::asio::post(io_, run);
  timer_.expires_after(std::chrono::nanoseconds(wait));
  timer_.async_wait(run);
}

void FakeBackend::step() {
  const std::int64_t now = now_ns();
  std::vector<std::uint64_t> due;
  for (const auto& [id, request] : running_) {
    if (!request.accepted || request.due_ns <= now) due.push_back(id);
  }
  for (const std::uint64_t id : due) {
    const auto it = running_.find(id);  // a sink's call may have cancelled others
    if (it != running_.end()) advance(id, it->second);
  }
}

void FakeBackend::advance(std::uint64_t id, Running& request) {
  const auto sink = request.sink;
  const auto prompt_tokens = static_cast<std::uint32_t>(request.prompt.size());
  if (!request.accepted) {
    request.accepted = true;
    return sink->on_accepted({model::RequestId{id}, prompt_tokens, request.hit_tokens});
  }
  if (options_.fail_after_tokens && request.sent >= *options_.fail_after_tokens) {
    end(id, "failed");
    return sink->on_failed({base::Code::kUnavailable, "the engine died", "fake engine"}, std::nullopt);
  }
  if (request.sent < request.answer.size()) {
    const std::int32_t token = request.answer[request.sent++];
    request.due_ns += options_.step.value;
    if (Journey* journey = find_journey(id)) journey->output_tokens = request.sent;
    sink->on_tokens({&token, 1});
    const auto it = running_.find(id);
    if (it == running_.end() || it->second.sent < it->second.answer.size()) return;
  }
  cluster::Finished finished{request.reason, prompt_tokens, request.hit_tokens,
                             prompt_tokens - request.hit_tokens, static_cast<std::uint32_t>(request.sent)};
  std::vector<std::int32_t> tokens = std::move(request.prompt);
  tokens.insert(tokens.end(), request.answer.begin(), request.answer.end());
  remember_blocks(request.root, tokens);
  end(id, "finished");
  sink->on_finished(finished);
}

void FakeBackend::end(std::uint64_t id, const std::string& state) {
  running_.erase(id);
  if (Journey* journey = find_journey(id)) journey->state = state;
}

FakeBackend::Journey* FakeBackend::find_journey(std::uint64_t id) {
  const auto it =
      std::lower_bound(journeys_.begin(), journeys_.end(), id,
                       [](const Journey& journey, std::uint64_t wanted) { return journey.id < wanted; });
  return it != journeys_.end() && it->id == id ? &*it : nullptr;
}

std::optional<std::string> FakeBackend::journey(const std::string& name) {
  for (auto it = journeys_.rbegin(); it != journeys_.rend(); ++it) {
    if (it->name != name && std::to_string(it->id) != name) continue;
    std::string out;
    JsonOut json(out);
    json.open_object().field("name", it->name).field("id", static_cast<std::int64_t>(it->id));
    json.field("state", it->state).field("prompt_tokens", static_cast<std::int64_t>(it->prompt_tokens));
    json.field("hit_tokens", static_cast<std::int64_t>(it->hit_tokens));
    json.field("output_tokens", static_cast<std::int64_t>(it->output_tokens)).close_object();
    return out;
  }
  return std::nullopt;
}

std::string FakeBackend::status() {
  return fmt::format(R"({{"engine":"fake","running":{},"submitted_total":{},"cancelled_total":{}}})",
                     running_.size(), next_id_ - 1, cancelled_total_);
}

}  // namespace trimtab::gateway
