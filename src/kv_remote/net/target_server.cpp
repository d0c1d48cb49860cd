#include "kv_remote/net/target_server.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/codec.h"
#include "kv_remote/net/server_connection.h"

namespace trimtab::kv_remote {

namespace {
constexpr std::uint64_t kListener = 0, kTarget = UINT64_MAX, kBell = UINT64_MAX - 1;
}

TargetServer::TargetServer(kv_target::Target& target, ServerOptions options)
    : target_(target), options_(std::move(options)) {}

TargetServer::~TargetServer() {
  // The target may still read or write the memory of what is pending: it must end first, or be done.
  for (const auto& [tag, pending] : pending_) target_.cancel(tag);
  for (int turn = 0; turn < 5'000 && !pending_.empty(); ++turn) {
    collect();
    if (!pending_.empty()) ::usleep(1'000);
  }
  // Memory that the target never gave back is leaked rather than freed under it.
  for (auto& [tag, pending] : pending_) (void)pending.memory.release();
}

base::Result<std::unique_ptr<TargetServer>> TargetServer::listen(kv_target::Target& target,
                                                                 ServerOptions options) {
  std::unique_ptr<TargetServer> server(new TargetServer(target, std::move(options)));
  TRIMTAB_TRY(server->start());
  return server;
}

base::Status TargetServer::start() {
  const std::uint64_t shard_bytes = target_.limits().shard_bytes;
  if (options_.credit_bytes < shard_bytes || options_.credit_requests == 0 ||
      options_.memory_bytes < options_.credit_bytes) {
    return base::fail(
        base::Code::kInvalidArgument,
        fmt::format("credit of {} bytes and {} requests, {} bytes for all connections: a shard "
                    "of {} bytes must fit into the credit, and the credit into the memory",
                    options_.credit_bytes, options_.credit_requests, options_.memory_bytes, shard_bytes),
        "kv_remote");
  }
  auto address = resolve(options_.listen);
  if (!address) return tl::unexpected<base::Error>(address.error());
  auto listener = listen_on(*address);
  if (!listener) return tl::unexpected<base::Error>(listener.error());
  listener_ = std::move(*listener);
  auto port = port_of(listener_.get());
  if (!port) return tl::unexpected<base::Error>(port.error());
  port_ = *port;
  poller_ = Descriptor(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{EPOLLIN, {.u64 = kListener}};
  ::epoll_ctl(poller_.get(), EPOLL_CTL_ADD, listener_.get(), &event);
  bell_ = Descriptor(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  event.data.u64 = kBell;
  ::epoll_ctl(poller_.get(), EPOLL_CTL_ADD, bell_.get(), &event);
  if (target_.wake_fd() >= 0) {
    event.data.u64 = kTarget;
    ::epoll_ctl(poller_.get(), EPOLL_CTL_ADD, target_.wake_fd(), &event);
  }
  return {};
}

void TargetServer::refuse(Descriptor socket, const std::string& why) {
  ++stats_.refused;
  SendQueue out;
  out.start(socket.get(), ZeroCopy::kNever);
  const auto reason = encode_text(why);
  Header header;
  header.kind = Kind::kRefused;
  out.push(header, reason);
  (void)out.flush();  // a fresh connection takes so little at once
  ::shutdown(socket.get(), SHUT_WR);
}

void TargetServer::accept_all() {
  while (true) {
    Descriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) return;
    tune(socket.get());
    const std::uint64_t promised = (connections_.size() + 1) * options_.credit_bytes + orphan_bytes_;
    if (promised > options_.memory_bytes) {
      refuse(std::move(socket),
             fmt::format("{} connections have a credit of {} bytes each, and {} bytes is all there is",
                         connections_.size(), options_.credit_bytes, options_.memory_bytes));
      continue;
    }
    ++stats_.accepted;
    const std::uint64_t id = ++last_id_;
    auto connection = std::make_unique<Connection>(id, std::move(socket), steady_now());
    connection->out.start(connection->socket.get(), options_.zero_copy);
    epoll_event event{EPOLLIN, {.u64 = id}};
    connection->watched = EPOLLIN;
    ::epoll_ctl(poller_.get(), EPOLL_CTL_ADD, connection->socket.get(), &event);
    connections_.emplace(id, std::move(connection));
  }
}

void TargetServer::step(base::Nanos patience) {
  std::array<epoll_event, 64> events;
  const int wait_ms = static_cast<int>(std::min<std::int64_t>((patience.value + 999'999) / 1'000'000, 1'000));
  const int count = ::epoll_wait(poller_.get(), events.data(), static_cast<int>(events.size()), wait_ms);
  for (int i = 0; i < count; ++i) {
    const std::uint64_t id = events[static_cast<std::size_t>(i)].data.u64;
    if (id == kListener && !stopping_) accept_all();
    if (id == kBell) {
      std::uint64_t rung = 0;
      (void)!::read(bell_.get(), &rung, sizeof rung);
    }
    const auto found = connections_.find(id);
    if (found != connections_.end()) handle(*found->second, events[static_cast<std::size_t>(i)].events);
  }
  submit();
  collect();
  for (auto it = connections_.begin(); it != connections_.end();) {
    Connection& connection = *(it++)->second;
    settle(connection);
    if (connection.broken) close_broken(connection.id);
  }
  close_late();
}

void TargetServer::handle(Connection& connection, std::uint32_t events) {
  if ((events & EPOLLERR) != 0) {
    connection.out.read_notifications();
    if (socket_error(connection.socket.get()) != 0) connection.broken = true;
  }
  if (connection.broken || (events & (EPOLLIN | EPOLLHUP)) == 0 || stopping_) {
    connection.broken |= (events & EPOLLHUP) != 0;
    return;
  }
  const std::uint64_t before = connection.stream.bytes();
  const auto state = connection.stream.receive(
      connection.socket.get(), [&](const Header& header) { return place(connection, header); },
      [&](const Header& header) { return take(connection, header); });
  stats_.bytes_received += connection.stream.bytes() - before;
  if (state == FrameStream::State::kBroken && !connection.ending) {
    ++stats_.broken_frames;
    connection.broken = true;
  }
  if (state == FrameStream::State::kEnded) connection.broken = true;
}

/// Gives what was asked for to the target, in the order in which it arrived.
void TargetServer::submit() {
  if (incoming_.empty()) return;
  target_.submit(incoming_);
  incoming_.clear();
}

void TargetServer::collect() {
  completions_.clear();
  target_.poll(completions_);
  for (const kv_target::Completion& completion : completions_) {
    const auto found = pending_.find(completion.tag);
    if (found == pending_.end()) continue;
    Pending pending = std::move(found->second);
    pending_.erase(found);
    answer(std::move(pending), completion);
  }
}

void TargetServer::answer(Pending pending, const kv_target::Completion& completion) {
  const auto found = connections_.find(pending.connection);
  if (found == connections_.end()) {
    orphan_bytes_ -= pending.cost_bytes;
    return;
  }
  Connection& connection = *found->second;
  connection.under_way.erase(pending.question.tag);
  stats_.failed += completion.outcome != kv_target::Outcome::kDone;
  Header header;
  header.kind = Kind::kAnswer;
  header.name = pending.question.name;
  header.tag = pending.question.tag;
  header.outcome = completion.outcome;
  header.bytes = completion.bytes;
  connection.costs.emplace(++connection.last_token, pending.cost_bytes);
  if (pending.question.kind == Kind::kWrite && says_why(completion.outcome))
    return connection.out.push_copy(header, base::encode(condition_of(target_)), connection.last_token);
  const bool has_content =
      pending.question.kind == Kind::kRead && completion.outcome == kv_target::Outcome::kDone;
  const std::span<const std::byte> content(pending.memory.get(), has_content ? completion.bytes : 0);
  connection.out.push(header, content, connection.last_token, std::move(pending.memory));
}

/// Sends what there is, takes back the memory that has left, and grants it anew.
void TargetServer::settle(Connection& connection) {
  for (int round = 0; round < 2 && !connection.broken; ++round) {
    const std::uint64_t before = connection.out.stats().bytes;
    connection.broken |= !connection.out.flush();
    connection.out.read_notifications();
    stats_.bytes_sent += connection.out.stats().bytes - before;
    for (const std::uint64_t token : connection.out.released()) {
      if (connection.questions.erase(token) > 0) continue;
      const auto cost = connection.costs.find(token);
      connection.held_bytes -= cost->second;
      connection.free_bytes += cost->second;
      ++connection.free_requests;
      connection.costs.erase(cost);
    }
    if (connection.free_requests == 0) break;
    connection.granted_requests += std::exchange(connection.free_requests, 0);
    connection.granted_bytes += std::exchange(connection.free_bytes, 0);
    Header grant;
    grant.kind = Kind::kGrant;
    grant.offset = connection.granted_requests;
    grant.bytes = connection.granted_bytes;
    connection.out.push(grant);
  }
  if (connection.ending && connection.out.empty()) connection.broken = true;
  watch(connection);
}

void TargetServer::watch(Connection& connection) {
  const std::uint32_t wanted =
      (stopping_ || connection.ending ? 0U : EPOLLIN) | (connection.out.blocked() ? EPOLLOUT : 0U);
  if (wanted == connection.watched || connection.broken) return;
  epoll_event event{wanted, {.u64 = connection.id}};
  ::epoll_ctl(poller_.get(), EPOLL_CTL_MOD, connection.socket.get(), &event);
  connection.watched = wanted;
}

void TargetServer::close_broken(std::uint64_t id) {
  const auto found = connections_.find(id);
  Connection& connection = *found->second;
  for (const auto& [theirs, ours] : connection.under_way) {
    const auto pending = pending_.find(ours);
    if (pending == pending_.end()) continue;
    orphan_bytes_ += pending->second.cost_bytes;
    target_.cancel(ours);
  }
  stats_.sends += connection.out.stats();
  // A refusal in words should arrive; everything else ends without a trace.
  if (!connection.ending) abort_connection(connection.socket);
  connections_.erase(found);
}

void TargetServer::close_late() {
  const base::Nanos now = steady_now();
  for (auto it = connections_.begin(); it != connections_.end();) {
    Connection& connection = *(it++)->second;
    if (!connection.greeted && now - connection.since > options_.hello_patience) close_broken(connection.id);
  }
}

bool TargetServer::idle() const {
  return pending_.empty() &&
         std::ranges::all_of(connections_, [](const auto& entry) { return entry.second->out.empty(); });
}

void TargetServer::serve(const std::atomic<bool>& stop) {
  while (!stop.load(std::memory_order_relaxed)) step(base::Nanos{100'000'000});
  stopping_ = true;
  listener_.reset();
  const base::Nanos last = steady_now() + options_.stop_patience;
  while (!idle() && steady_now() < last) step(base::Nanos{10'000'000});
  while (!connections_.empty()) close_broken(connections_.begin()->first);
}

void TargetServer::wake() const {
  const std::uint64_t one = 1;
  (void)!::write(bell_.get(), &one, sizeof one);
}

ServerStats TargetServer::stats() const {
  ServerStats stats = stats_;
  stats.open = connections_.size();
  for (const auto& [id, connection] : connections_) {
    stats.sends += connection->out.stats();
  }
  return stats;
}

}  // namespace trimtab::kv_remote
