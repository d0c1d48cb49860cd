#include "kv_state/snapshot_client.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/codec.h"
#include "ipc/steady_clock.h"

namespace trimtab::kv_state {

using base::Nanos;

namespace {

constexpr Nanos kTimeoutMax{3'600'000'000'000};  // longer ones are for ever to a request

Nanos deadline_after(Nanos timeout) { return ipc::SteadyClock().now() + std::min(timeout, kTimeoutMax); }

}  // namespace

base::Status SnapshotClient::fetch(const Endpoint& machine, std::uint64_t epoch, const SnapshotName& name,
                                   std::span<std::byte> into, Nanos timeout) {
  TRIMTAB_CHECK(!into.empty() && epoch != 0, "a fetch names the machine's epoch and the snapshot's size");
  FetchRequest request;
  request.id = next_id();
  request.epoch = epoch;
  request.name = name;
  AnswerReader reader(request, into);
  const base::Status status = ask(machine, request, reader, deadline_after(timeout));
  count(status, into.size());
  return status;
}

base::Result<kv::SnapshotDelta> SnapshotClient::changes(const Endpoint& machine, std::uint64_t epoch,
                                                        std::uint64_t sequence, Nanos timeout) {
  FetchRequest request;
  request.question = Question::kChanges;
  request.id = next_id();
  request.epoch = epoch;
  request.argument = sequence;
  AnswerReader reader(request, options_.message_bytes_max);
  TRIMTAB_TRY(ask(machine, request, reader, deadline_after(timeout)));
  return base::decode<kv::SnapshotDelta>(reader.message());
}

base::Result<kv::SnapshotList> SnapshotClient::list(const Endpoint& machine, std::uint64_t ticket,
                                                    Nanos timeout) {
  FetchRequest request;
  request.question = Question::kList;
  request.id = next_id();
  request.argument = ticket;
  AnswerReader reader(request, options_.message_bytes_max);
  TRIMTAB_TRY(ask(machine, request, reader, deadline_after(timeout)));
  return base::decode<kv::SnapshotList>(reader.message());
}

base::Status SnapshotClient::ask(const Endpoint& machine, FetchRequest request, AnswerReader& reader,
                                 Nanos deadline) {
  TRIMTAB_TRY(enter(deadline));
  base::Status status = base::fail(base::Code::kUnavailable, "not asked", "kv_state");
  const AnswerReader fresh_reader = reader;
  auto idle = take_idle(machine);
  Socket socket = idle ? std::move(*idle) : Socket{};
  if (idle) {
    status = converse(socket, request, reader, deadline);
    // The machine may have closed an idle connection just now; that says nothing about it.
    if (!status && status.error().code == base::Code::kUnavailable) socket = Socket{};
  }
  if (!socket.open()) {
    reader = fresh_reader;
    auto connected = connect_to(machine, deadline);
    status = connected ? base::Status{} : base::Status(tl::unexpected(connected.error()));
    if (connected) {
      {
        const std::lock_guard lock(mutex_);
        ++stats_.connections;
      }
      socket = std::move(*connected);
      status = converse(socket, request, reader, deadline);
    }
  }
  // Only a connection that stands between two questions may be used again: what a broken one still carries
  // would be taken for the next answer.
  const bool between = status || status.error().code == base::Code::kNotFound ||
                       status.error().code == base::Code::kResourceExhausted;
  if (between) keep_idle(machine, std::move(socket));
  leave();
  return status;
}

base::Status SnapshotClient::converse(const Socket& socket, const FetchRequest& request, AnswerReader& reader,
                                      Nanos deadline) {
  const auto gone = [] {
    return base::fail(base::Code::kUnavailable, fmt::format("the machine is gone: {}", std::strerror(errno)),
                      "kv_state");
  };
  const auto question = encode(request);
  for (std::size_t sent = 0; sent < question.size();) {
    const ssize_t n = ::send(socket.fd(), question.data() + sent, question.size() - sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno != EAGAIN) return gone();
    if (n > 0) sent += static_cast<std::size_t>(n);
    if (n < 0 && !wait_until(socket.fd(), POLLOUT, deadline))
      return base::fail(base::Code::kDeadlineExceeded, "the question could not be sent in time", "kv_state");
  }
  ipc::SteadyClock clock;
  while (!reader.done()) {
    const auto wanted = reader.wanted();
    const ssize_t n = ::recv(socket.fd(), wanted.data(), wanted.size(), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) {
      if (!wait_until(socket.fd(), POLLIN, deadline))
        return base::fail(base::Code::kDeadlineExceeded, "the answer did not come in time", "kv_state");
      continue;
    }
    if (n < 0) return gone();
    if (n == 0) return base::fail(base::Code::kUnavailable, "the machine closed the connection", "kv_state");
    TRIMTAB_TRY(reader.received(static_cast<std::size_t>(n)));
    if (!reader.done() && clock.now() >= deadline)
      return base::fail(base::Code::kDeadlineExceeded, "the answer came too slowly", "kv_state");
  }
  return {};
}

std::uint64_t SnapshotClient::next_id() {
  const std::lock_guard lock(mutex_);
  return ++last_id_;
}

base::Status SnapshotClient::enter(Nanos deadline) {
  std::unique_lock lock(mutex_);
  const Nanos patience = deadline - ipc::SteadyClock().now();
  const bool entered = left_.wait_for(lock, std::chrono::nanoseconds(patience.value),
                                      [this] { return under_way_ < options_.transfers_max; });
  if (!entered) {
    return base::fail(base::Code::kResourceExhausted,
                      fmt::format("{} transfers are under way, the most that are allowed", under_way_),
                      "kv_state");
  }
  ++under_way_;
  return {};
}

void SnapshotClient::leave() {
  {
    const std::lock_guard lock(mutex_);
    --under_way_;
  }
  left_.notify_one();
}

std::optional<Socket> SnapshotClient::take_idle(const Endpoint& machine) {
  const std::lock_guard lock(mutex_);
  const auto found = idle_.find(machine);
  if (found == idle_.end()) return {};
  std::optional<Socket> taken;
  while (!found->second.empty() && !taken) {
    Socket socket = std::move(found->second.back());
    found->second.pop_back();
    --idle_count_;
    // Nothing may come between questions: what does is the end, or a broken peer.
    pollfd item{socket.fd(), POLLIN | POLLRDHUP, 0};
    if (::poll(&item, 1, 0) == 0) taken = std::move(socket);
  }
  if (found->second.empty()) idle_.erase(found);
  return taken;
}

void SnapshotClient::keep_idle(const Endpoint& machine, Socket socket) {
  const std::lock_guard lock(mutex_);
  if (options_.idle_max == 0) return;
  if (idle_count_ >= options_.idle_max) {  // one of another machine goes, which may be gone itself
    const auto first = idle_.begin();
    first->second.pop_back();
    if (first->second.empty()) idle_.erase(first);
    --idle_count_;
  }
  idle_[machine].push_back(std::move(socket));
  ++idle_count_;
}

void SnapshotClient::count(const base::Status& status, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (status) {
    ++stats_.fetched;
    stats_.bytes += bytes;
  } else if (status.error().code == base::Code::kNotFound) {
    ++stats_.not_found;
  } else {
    ++stats_.failed;
    if (status.error().code == base::Code::kDataLoss) ++stats_.corrupt;
  }
}

ClientStats SnapshotClient::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

kv::ReadResult read_result(const base::Status& status) {
  if (status) return kv::ReadResult::kRead;
  return status.error().code == base::Code::kNotFound ? kv::ReadResult::kGone : kv::ReadResult::kFailed;
}

}  // namespace trimtab::kv_state
