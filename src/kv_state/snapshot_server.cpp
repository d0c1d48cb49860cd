#include "kv_state/snapshot_server.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "base/codec.h"
#include "base/hash.h"
#include "ipc/steady_clock.h"
#include "kv_state/fetch_protocol.h"

namespace trimtab::kv_state {

using base::Nanos;

class SnapshotServer::Loop {
 public:
  Loop(SnapshotStore& store, const ServerOptions& options, Socket listener)
      : store_(store),
        options_(options),
        listener_(std::move(listener)),
        epoll_(epoll_create1(EPOLL_CLOEXEC)),
        wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    watch(listener_.fd(), EPOLLIN, EPOLL_CTL_ADD);
    watch(wake_.fd(), EPOLLIN, EPOLL_CTL_ADD);
    thread_ = std::thread([this] { run(); });
  }
  ~Loop() {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(wake_.fd(), &one, sizeof one);
    thread_.join();
  }
  ServerStats stats() const {
    const std::lock_guard lock(mutex_);
    return stats_;
  }

 private:
  enum class Phase : std::uint8_t { kReading, kWaiting, kSending };
  struct Connection {
    Socket socket;
    Phase phase = Phase::kReading;
    Nanos deadline;
    std::array<std::byte, kRequestBytes> question{};
    std::size_t have = 0;  // of the question, or of header and content sent
    FetchRequest request;
    std::array<std::byte, kAnswerHeaderBytes> header{};
    std::optional<SnapshotStore::Lease> lease;
    std::vector<std::byte> message;  // content that is no snapshot

    std::span<const std::byte> content() const { return lease ? lease->bytes() : std::span{message}; }
  };

  void run();
  void watch(int fd, std::uint32_t events, int operation) {
    epoll_event event{};
    event.events = events;
    event.data.fd = fd;
    epoll_ctl(epoll_.fd(), operation, fd, &event);
  }
  template <class Change>
  void count(Change&& change) {
    const std::lock_guard lock(mutex_);
    change(stats_);
  }
  void accept_all();
  void on_event(int fd, std::uint32_t events);
  void read_question(int fd, Connection& connection);
  void take_turn(Connection& connection);
  void answer(Connection& connection);
  void busy(Connection& connection);
  void begin_sending(Connection& connection, AnswerHeader header);
  void send_more(int fd, Connection& connection);
  void close(int fd);
  void give_turns();
  void end_the_late();

  SnapshotStore& store_;
  ServerOptions options_;
  Socket listener_, epoll_, wake_;
  ipc::SteadyClock clock_;
  std::map<int, Connection> connections_;
  std::deque<int> turns_;  // connections that wait, in order of their questions
  std::uint32_t sending_ = 0;
  mutable std::mutex mutex_;
  ServerStats stats_;
  std::thread thread_;  // last: it uses all the others
};

void SnapshotServer::Loop::run() {
  std::array<epoll_event, 64> events;
  Nanos sweep_at = clock_.now();
  while (true) {
    const int ready = epoll_wait(epoll_.fd(), events.data(), static_cast<int>(events.size()), 50);
    for (int i = 0; i < ready; ++i) {
      const int fd = events[static_cast<std::size_t>(i)].data.fd;
      if (fd == wake_.fd()) return;
      if (fd == listener_.fd()) {
        accept_all();
      } else {
        on_event(fd, events[static_cast<std::size_t>(i)].events);
      }
    }
    give_turns();
    if (clock_.now() >= sweep_at) {
      end_the_late();
      sweep_at = clock_.now() + Nanos{50'000'000};
    }
  }
}

void SnapshotServer::Loop::accept_all() {
  while (true) {
    Socket socket(accept4(listener_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.open()) {
      // Out of descriptors: the connection stays in the queue, and asking again at once would only spin.
      if (errno == EMFILE || errno == ENFILE) usleep(1'000);
      return;
    }
    if (connections_.size() >= options_.connections_max) {
      count([](ServerStats& s) { ++s.connections_refused; });
      continue;
    }
    count([](ServerStats& s) { ++s.connections; });
    const int fd = socket.fd();
    Connection& connection = connections_[fd];
    connection.socket = std::move(socket);
    connection.deadline = clock_.now() + options_.idle_timeout;
    watch(fd, EPOLLIN | EPOLLRDHUP, EPOLL_CTL_ADD);
  }
}

void SnapshotServer::Loop::on_event(int fd, std::uint32_t events) {
  const auto found = connections_.find(fd);
  if (found == connections_.end()) return;  // closed by an event before this one
  // A peer that closes its side has given up: it sends nothing more, and waits for nothing.
  if ((events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP)) != 0) return close(fd);
  if (found->second.phase == Phase::kReading) return read_question(fd, found->second);
  if (found->second.phase == Phase::kSending) return send_more(fd, found->second);
}

void SnapshotServer::Loop::read_question(int fd, Connection& connection) {
  while (connection.have < kRequestBytes) {
    const auto rest = std::span{connection.question}.subspan(connection.have);
    const ssize_t n = ::recv(fd, rest.data(), rest.size(), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) return close(fd);
    connection.have += static_cast<std::size_t>(n);
  }
  const auto request = decode_request(connection.question);
  if (!request) {
    count([](ServerStats& s) { ++s.broken; });
    return close(fd);
  }
  connection.request = *request;
  connection.phase = Phase::kWaiting;
  connection.deadline = clock_.now() + options_.turn_timeout;
  watch(fd, EPOLLRDHUP, EPOLL_CTL_MOD);
  turns_.push_back(fd);
}

void SnapshotServer::Loop::give_turns() {
  while (sending_ < options_.transfers_max && !turns_.empty()) {
    const int fd = turns_.front();
    turns_.pop_front();
    Connection& connection = connections_.at(fd);
    answer(connection);
    send_more(fd, connection);
  }
}

void SnapshotServer::Loop::answer(Connection& connection) {
  const FetchRequest& request = connection.request;
  AnswerHeader header;
  if (request.epoch != 0 && request.epoch != store_.epoch()) {
    header.status = AnswerStatus::kOtherEpoch;
  } else if (request.question == Question::kSnapshot) {
    connection.lease = store_.find(request.name);
    if (connection.lease) header.content_checksum = connection.lease->checksum();
  } else if (request.question == Question::kList) {
    connection.message = base::encode(store_.list(request.argument));
  } else if (const auto changes = store_.changes_since(request.argument)) {
    connection.message = base::encode(*changes);
  }
  if (!connection.message.empty()) header.content_checksum = base::checksum(connection.message);
  header.content_bytes = connection.content().size();
  if (header.status == AnswerStatus::kOk && header.content_bytes == 0)
    header.status = AnswerStatus::kNotFound;
  begin_sending(connection, header);
}

void SnapshotServer::Loop::begin_sending(Connection& connection, AnswerHeader header) {
  header.id = connection.request.id;
  header.epoch = store_.epoch();
  count([&](ServerStats& s) {
    switch (header.status) {
      case AnswerStatus::kOk:
        ++s.answered;
        break;
      case AnswerStatus::kNotFound:
        ++s.not_found;
        break;
      case AnswerStatus::kOtherEpoch:
        ++s.other_epoch;
        break;
      case AnswerStatus::kBusy:
        ++s.busy;
        break;
    }
    s.transfers = ++sending_;
  });
  connection.header = encode(header);
  connection.have = 0;
  connection.phase = Phase::kSending;
  connection.deadline = clock_.now() + options_.transfer_timeout;
}

void SnapshotServer::Loop::send_more(int fd, Connection& connection) {
  const auto content = connection.content();
  const std::size_t total = kAnswerHeaderBytes + content.size();
  while (connection.have < total) {
    std::array<iovec, 2> pieces;
    std::size_t used = 0;
    if (connection.have < kAnswerHeaderBytes)
      pieces[used++] = {connection.header.data() + connection.have, kAnswerHeaderBytes - connection.have};
    const std::size_t at = connection.have < kAnswerHeaderBytes ? 0 : connection.have - kAnswerHeaderBytes;
    // sendmsg does not write to the content, but its interface is older than const.
    if (at < content.size())
      pieces[used++] = {const_cast<std::byte*>(content.data()) + at, content.size() - at};
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = used;
    const ssize_t n = ::sendmsg(fd, &message, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return watch(fd, EPOLLOUT | EPOLLRDHUP, EPOLL_CTL_MOD);
    if (n < 0) return close(fd);
    connection.have += static_cast<std::size_t>(n);
    count([n](ServerStats& s) { s.bytes_sent += static_cast<std::uint64_t>(n); });
  }
  connection.lease.reset();
  connection.message.clear();
  connection.have = 0;
  connection.phase = Phase::kReading;
  connection.deadline = clock_.now() + options_.idle_timeout;
  count([&](ServerStats& s) { s.transfers = --sending_; });
  watch(fd, EPOLLIN | EPOLLRDHUP, EPOLL_CTL_MOD);
}

void SnapshotServer::Loop::close(int fd) {
  const auto found = connections_.find(fd);
  if (found->second.phase == Phase::kSending) count([&](ServerStats& s) { s.transfers = --sending_; });
  if (found->second.phase == Phase::kWaiting) std::erase(turns_, fd);
  connections_.erase(found);  // the descriptor leaves epoll as it is closed
}

void SnapshotServer::Loop::end_the_late() {
  const Nanos now = clock_.now();
  for (auto at = connections_.begin(); at != connections_.end();) {
    const auto [fd, late] = std::pair(at->first, at->second.deadline <= now);
    Connection& connection = (at++)->second;
    if (!late) continue;
    if (connection.phase == Phase::kWaiting) {
      std::erase(turns_, fd);
      AnswerHeader header;
      header.status = AnswerStatus::kBusy;
      begin_sending(connection, header);
      send_more(fd, connection);
    } else {
      close(fd);
      count([](ServerStats& s) { ++s.timed_out; });
    }
  }
}

base::Result<std::unique_ptr<SnapshotServer>> SnapshotServer::start(SnapshotStore& store,
                                                                    ServerOptions options) {
  auto listener = listen_on(options.listen);
  if (!listener) return tl::unexpected(listener.error());
  const auto port = port_of(*listener);
  if (!port) return tl::unexpected(port.error());
  auto loop = std::make_unique<Loop>(store, options, std::move(*listener));
  return std::unique_ptr<SnapshotServer>(new SnapshotServer(std::move(loop), *port));
}

SnapshotServer::SnapshotServer(std::unique_ptr<Loop> loop, std::uint16_t port)
    : loop_(std::move(loop)), port_(port) {}
SnapshotServer::~SnapshotServer() = default;
ServerStats SnapshotServer::stats() const { return loop_->stats(); }

}  // namespace trimtab::kv_state
