#include "kv_remote/net/network_target.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/codec.h"

namespace trimtab::kv_remote {

using kv_target::Completion;
using kv_target::Outcome;
using kv_target::Request;
using kv_target::Verb;

NetworkTarget::NetworkTarget(NetworkOptions options, Address address)
    : options_(std::move(options)), address_(std::move(address)), limits_{16ULL << 20, 64ULL << 20, 1'024} {
  if (options_.client == 0) {
    (void)::getrandom(&options_.client, sizeof options_.client, 0);
    options_.client |= 1;
  }
  poller_ = Descriptor(::epoll_create1(EPOLL_CLOEXEC));
  timer_ = Descriptor(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  epoll_event event{EPOLLIN, {.u64 = 0}};
  ::epoll_ctl(poller_.get(), EPOLL_CTL_ADD, timer_.get(), &event);
}

base::Result<std::unique_ptr<NetworkTarget>> NetworkTarget::open(NetworkOptions options) {
  auto address = resolve(options.server);
  if (!address) return tl::unexpected<base::Error>(address.error());
  std::unique_ptr<NetworkTarget> target(new NetworkTarget(std::move(options), std::move(*address)));
  target->advance();
  return target;
}

base::Status NetworkTarget::wait_until_connected(base::Nanos patience) {
  const base::Nanos until = steady_now() + patience;
  while (state_ != State::kUp && steady_now() < until) wait(until);
  if (state_ == State::kUp) return {};
  return base::fail(base::Code::kUnavailable,
                    fmt::format("no welcome from kv-target {}: {}; is it started?", address_.text,
                                trouble_.empty() ? "no answer" : trouble_),
                    "kv_remote");
}

void NetworkTarget::submit(std::span<const Request> requests) {
  const base::Nanos deadline = steady_now() + options_.request_timeout;
  for (const Request& request : requests) {
    const std::uint64_t id = ++last_id_;
    Held held;
    held.request = request;
    held.deadline = deadline;
    requests_.emplace(id, std::move(held));
    waiting_.push_back(id);
    if (options_.follow_in_background && request.verb != Verb::kRead) ++touched_[request.name].under_way;
  }
  advance();
  arm();
}

std::size_t NetworkTarget::poll(std::vector<Completion>& completed) {
  advance();
  const std::size_t count = done_.size();
  completed.insert(completed.end(), done_.begin(), done_.end());
  done_.clear();
  arm();
  return count;
}

void NetworkTarget::finish(std::uint64_t id, Completion completion) {
  const auto found = requests_.find(id);
  const Request& request = found->second.request;
  completion.tag = request.tag;
  done_.push_back(completion);
  if (const auto touched = touched_.find(request.name);
      request.verb != Verb::kRead && touched != touched_.end()) {
    --touched->second.under_way;
    touched->second.question = last_question_;
  }
  requests_.erase(found);
}

void NetworkTarget::cancel(std::uint64_t tag) {
  for (const auto& [key, held] : requests_) {
    if (held.request.tag != tag || held.answered) continue;
    const std::uint64_t id = key;
    if (held.sent) {
      const bool arriving = stream_->parser().in_content() && stream_->parser().header().tag == id;
      if (arriving || held.request.verb != Verb::kRead) continue;
      // Its answer will find nobody and be dropped; until then it holds its credit.
      Header header;
      header.kind = Kind::kCancel;
      header.tag = id;
      out_->push(header);
      flush();
    } else {
      std::erase(waiting_, id);
    }
    if (requests_.contains(id)) finish(id, {0, Outcome::kCancelled, 0});
    break;
  }
  arm();
}

/// Everything that can be done without waiting.
void NetworkTarget::advance() {
  if (state_ == State::kDown && steady_now() >= retry_at_) dial();
  if (state_ == State::kConnecting) {
    pollfd ready{socket_.get(), POLLOUT, 0};
    if (::poll(&ready, 1, 0) > 0) connected();
  }
  if (state_ == State::kGreeting || state_ == State::kUp) receive();
  expire();  // after what has arrived: a process that stood still finds deadlines over and answers here
  if (state_ == State::kUp) send_waiting();
  if (state_ == State::kGreeting || state_ == State::kUp) flush();
  // While the server is away nothing waits for it, except through the first dial after a break.
  if (state_ == State::kDown && retry_at_ > steady_now()) fail_all(true);
}

void NetworkTarget::dial() {
  auto socket = begin_connect(address_);
  if (!socket) return lose(socket.error().message, false);
  socket_ = std::move(*socket);
  state_ = State::kConnecting;
  connect_deadline_ = steady_now() + options_.connect_timeout;
  watched_ = EPOLLOUT;
  epoll_event event{watched_, {.u64 = 1}};
  ::epoll_ctl(poller_.get(), EPOLL_CTL_ADD, socket_.get(), &event);
}

void NetworkTarget::connected() {
  if (const int error = socket_error(socket_.get()); error != 0)
    return lose(fmt::format("connect to {}: {}", address_.text, std::strerror(error)), false);
  state_ = State::kGreeting;
  stream_ = std::make_unique<FrameStream>(kControlBytesMax);
  out_ = std::make_unique<SendQueue>();
  out_->start(socket_.get(), options_.zero_copy);
  control_ = base::encode(Hello{options_.client, ++session_});
  Header hello;
  hello.kind = Kind::kHello;
  out_->push(hello, control_);
}

/// The connection is over. What was sent on it fails; what was not, waits for the next one.
void NetworkTarget::lose(std::string why, bool at_fault) {
  if (out_) {
    stats_.sends += out_->stats();
  }
  stats_.breaks += state_ == State::kUp;
  stats_.broken_frames += at_fault;
  trouble_ = std::move(why);
  told_ = {};
  // At once after a connection that worked; with growing pauses while none does.
  const bool worked = state_ == State::kUp;
  backoff_ = worked ? base::Nanos{0} : std::clamp(backoff_ * 2, options_.backoff_first, options_.backoff_max);
  retry_at_ = steady_now() + backoff_;
  state_ = State::kDown;
  abort_connection(socket_);
  stream_.reset();
  out_.reset();
  question_ = {};
  fail_all(false);
}

void NetworkTarget::fail_all(bool also_unsent) {
  for (auto it = requests_.begin(); it != requests_.end();) {
    const std::uint64_t id = it->first;
    const Held& held = (it++)->second;
    // An answer that came before the break is good, though the kernel had not let go of the content yet.
    if (held.answered)
      finish(id, held.completion);
    else if (held.sent || also_unsent)
      finish(id, {0, Outcome::kFailed, 0});
  }
  if (also_unsent) waiting_.clear();
}

void NetworkTarget::expire() {
  const base::Nanos now = steady_now();
  if ((state_ == State::kConnecting || state_ == State::kGreeting) && now >= connect_deadline_)
    lose(fmt::format("{} does not answer", address_.text), false);
  while (!requests_.empty() && requests_.begin()->second.deadline <= now) {
    ++stats_.timeouts;
    const auto& [id, held] = *requests_.begin();
    if (held.sent) {
      // The connection ends first: an answer that comes late finds no way into the caller's memory.
      lose(fmt::format("{} has not answered for {:.1f} s", address_.text,
                       base::to_seconds(options_.request_timeout)),
           false);
      continue;
    }
    std::erase(waiting_, id);
    finish(id, {0, Outcome::kFailed, 0});
  }
}

/// Makes `wake_fd` readable when there is something to hand out, or at the next deadline.
void NetworkTarget::arm() {
  base::Nanos wanted = base::kForever;
  if (!done_.empty()) wanted = base::Nanos{1};
  if (!requests_.empty()) wanted = std::min(wanted, requests_.begin()->second.deadline);
  if (state_ == State::kDown) wanted = std::min(wanted, retry_at_);
  if (state_ == State::kConnecting || state_ == State::kGreeting)
    wanted = std::min(wanted, connect_deadline_);
  // A timer that is set too early costs one idle turn, and saves a system call with every request.
  const bool expired = armed_ <= steady_now();
  if (!expired && armed_ <= wanted) return;
  if (expired && wanted == base::kForever && armed_ == base::kForever) return;
  armed_ = wanted;
  set_timer(timer_, wanted);
}

void NetworkTarget::watch() {
  const std::uint32_t wanted = EPOLLIN | (out_->blocked() ? EPOLLOUT : 0U);
  if (wanted == watched_) return;
  watched_ = wanted;
  epoll_event event{wanted, {.u64 = 1}};
  ::epoll_ctl(poller_.get(), EPOLL_CTL_MOD, socket_.get(), &event);
}

/// One turn that may sleep until something happens, `until` at the latest.
void NetworkTarget::wait(base::Nanos until) {
  arm();
  const base::Nanos left = until - steady_now();
  pollfd ready{poller_.get(), POLLIN, 0};
  // What is to be handed out keeps the timer ripe: a short nap then, instead of a busy wait.
  const std::int64_t nap_ms = std::clamp<std::int64_t>((left.value + 999'999) / 1'000'000, 0, 100);
  if (done_.empty()) {
    ::poll(&ready, 1, static_cast<int>(nap_ms));
  } else if (socket_) {
    pollfd socket{socket_.get(), static_cast<short>(POLLIN | (state_ == State::kConnecting ? POLLOUT : 0)),
                  0};
    if (out_ && out_->blocked()) socket.events |= POLLOUT;
    ::poll(&socket, 1, static_cast<int>(nap_ms));
  } else {
    ::poll(nullptr, 0, static_cast<int>(std::min<std::int64_t>(nap_ms, 10)));
  }
  advance();
}

NetworkStats NetworkTarget::stats() const {
  NetworkStats stats = stats_;
  if (!out_) return stats;
  stats.sends += out_->stats();
  return stats;
}

}  // namespace trimtab::kv_remote
