#include "agents/control_server.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <deque>
#include <utility>
#include <vector>

namespace trimtab::agents {

namespace asio = boost::asio;
using Socket = asio::local::stream_protocol::socket;

/// Reads frames and writes queued ones. Outlives the server's entry while a handler is pending; `server` is
/// null from the moment the loss is reported, so nothing is reported twice.
class ControlServer::Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Socket socket, ControlServer& server, ConnectionId id)
      : socket_(std::move(socket)), server_(&server), id_(id) {}

  void read() {
    socket_.async_read_some(
        asio::buffer(piece_),
        [self = shared_from_this()](const auto& error, std::size_t n) { self->on_read(error, n); });
  }

  void send(const ipc::Frame& frame) {
    if (server_ == nullptr) return;
    outgoing_bytes_ += frame.payload.size() + ipc::kFrameHeaderBytes;
    if (outgoing_bytes_ > server_->config_.outgoing_bytes_max) {
      fail(fmt::format("it left {} bytes unread; it is stuck", outgoing_bytes_));
      return;
    }
    outgoing_.push_back(ipc::pack(frame));
    if (outgoing_.size() == 1) write();
  }

  void fail(const std::string& why) {
    if (server_ == nullptr) return;
    ControlServer& server = *std::exchange(server_, nullptr);
    close_socket();
    server.lost(id_, why);
  }

  /// Forgets the server; the socket closes when the queue is written.
  void finish() {
    server_ = nullptr;
    closing_ = true;
    if (outgoing_.empty()) close_socket();
  }

  /// Forgets the server and what is queued.
  void abandon() {
    server_ = nullptr;
    close_socket();
  }

  std::size_t outgoing_bytes() const { return outgoing_bytes_; }

 private:
  void on_read(const boost::system::error_code& error, std::size_t n) {
    if (server_ == nullptr) return;
    if (error) {
      fail("its connection ended: " + error.message());
      return;
    }
    splitter_.append(std::span{piece_.data(), n});
    while (server_ != nullptr) {
      auto frame = splitter_.next();
      if (!frame) {
        fail(frame.error().message);
        return;
      }
      if (!frame->has_value()) break;
      server_->on_frame_(id_, **frame);
    }
    if (server_ != nullptr) read();
  }

  void write() {
    asio::async_write(
        socket_, asio::buffer(outgoing_.front()),
        [self = shared_from_this()](const auto& error, std::size_t) { self->on_written(error); });
  }

  void on_written(const boost::system::error_code& error) {
    if (error) {
      outgoing_.clear();
      fail("its connection broke: " + error.message());
      return;
    }
    outgoing_bytes_ -= outgoing_.front().size();
    outgoing_.pop_front();
    if (!outgoing_.empty()) {
      write();
    } else if (closing_) {
      close_socket();
    }
  }

  void close_socket() {
    boost::system::error_code ignored;
    socket_.shutdown(Socket::shutdown_both, ignored);
    socket_.close(ignored);
  }

  Socket socket_;
  ControlServer* server_;
  ConnectionId id_;
  ipc::FrameSplitter splitter_;
  std::array<std::byte, 65'536> piece_;
  std::deque<std::vector<std::byte>> outgoing_;
  std::size_t outgoing_bytes_ = 0;
  bool closing_ = false;
};

ControlServer::ControlServer(asio::io_context& context, ControlServerConfig config, OnFrame on_frame,
                             OnClosed on_closed)
    : context_(context),
      config_(config),
      on_frame_(std::move(on_frame)),
      on_closed_(std::move(on_closed)),
      acceptor_(context),
      accept_again_(context) {}

ControlServer::~ControlServer() {
  *alive_ = false;
  boost::system::error_code ignored;
  acceptor_.close(ignored);
  for (auto& [id, connection] : connections_) connection->abandon();
  if (!path_.empty()) ::unlink(path_.c_str());
}

base::Status ControlServer::listen(const std::string& path) {
  constexpr std::size_t kPathBytesMax = sizeof(sockaddr_un::sun_path) - 1;
  if (path.size() > kPathBytesMax) {
    return base::fail(
        base::Code::kInvalidArgument,
        fmt::format("socket path {} has {} bytes, the system allows {}: choose a shorter runtime directory",
                    path, path.size(), kPathBytesMax),
        "agents");
  }
  ::unlink(path.c_str());
  boost::system::error_code error;
  const asio::local::stream_protocol::endpoint endpoint(path);
  acceptor_.open(endpoint.protocol(), error);
  if (!error) acceptor_.bind(endpoint, error);
  if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
  if (error) {
    return base::fail(base::Code::kIo, fmt::format("cannot listen on {}: {}", path, error.message()),
                      "agents");
  }
  path_ = path;
  accept();
  return {};
}

void ControlServer::accept() {
  acceptor_.async_accept([this, alive = alive_](const boost::system::error_code& error, Socket socket) {
    if (!*alive || stopped_) return;
    if (error == asio::error::operation_aborted) return;
    if (!error) {
      adopt(std::move(socket));
      accept();
      return;
    }
    // No descriptor left, most likely: try again soon, but do not spin.
    accept_again_.expires_after(std::chrono::milliseconds(100));
    accept_again_.async_wait([this, alive](const boost::system::error_code& cancelled) {
      if (!cancelled && *alive && !stopped_) accept();
    });
  });
}

void ControlServer::adopt(Socket socket) {
  if (connections_.size() >= config_.connections_max) return;  // the socket closes: the peer dials again
  const ConnectionId id{next_id_++};
  auto connection = std::make_shared<Connection>(std::move(socket), *this, id);
  connections_.emplace(id, connection);
  connection->read();
}

void ControlServer::send(ConnectionId to, const ipc::Frame& frame) {
  const auto found = connections_.find(to);
  if (found != connections_.end()) std::shared_ptr(found->second)->send(frame);
}

void ControlServer::close(ConnectionId id, const std::string& why) {
  const auto found = connections_.find(id);
  if (found != connections_.end()) std::shared_ptr(found->second)->fail(why);
}

void ControlServer::lost(ConnectionId id, const std::string& why) {
  connections_.erase(id);
  asio::post(context_, [this, alive = alive_, id, why] {
    if (*alive && !stopped_) on_closed_(id, why);
  });
}

void ControlServer::stop() {
  stopped_ = true;
  boost::system::error_code ignored;
  acceptor_.close(ignored);
  accept_again_.cancel();
  for (auto& [id, connection] : connections_) connection->finish();
  connections_.clear();
}

std::uint64_t ControlServer::outgoing_bytes() const {
  std::uint64_t sum = 0;
  for (const auto& [id, connection] : connections_) sum += connection->outgoing_bytes();
  return sum;
}

}  // namespace trimtab::agents
