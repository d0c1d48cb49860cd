#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "base/error.h"
#include "base/strong.h"
#include "ipc/channel.h"

namespace trimtab::agents {

/// One peer's connection; numbers are never used twice within a process.
using ConnectionId = base::Id<struct ConnectionTag, std::uint64_t>;

struct ControlServerConfig {
  std::size_t connections_max = 1024;
  /// A peer that lets this much pile up does not read any more: it is cut off and counts as lost.
  std::size_t outgoing_bytes_max = 256UL << 20;
};

/// The control socket: ranks and encoders connect here and exchange frames with the one thread of the host.
/// Callbacks never run inside `send` or `close`, so a caller in the middle of a decision is not re-entered.
class ControlServer {
 public:
  using OnFrame = std::function<void(ConnectionId, const ipc::Frame&)>;
  using OnClosed = std::function<void(ConnectionId, const std::string& why)>;

  ControlServer(boost::asio::io_context& context, ControlServerConfig config, OnFrame on_frame,
                OnClosed on_closed);
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;
  ~ControlServer();

  /// Binds the Unix socket `path` (an old file of that name is replaced) and begins to accept.
  base::Status listen(const std::string& path);
  /// Queues a frame. A connection that is gone swallows it: its loss is reported by `on_closed`.
  void send(ConnectionId to, const ipc::Frame& frame);
  /// Cuts the peer off; `on_closed` follows from the event loop.
  void close(ConnectionId connection, const std::string& why);
  /// Stops accepting, and closes each connection once what is queued for it has been written. No callbacks
  /// after this.
  void stop();

  std::size_t connections() const { return connections_.size(); }
  std::uint64_t outgoing_bytes() const;

 private:
  class Connection;
  void accept();
  void adopt(boost::asio::local::stream_protocol::socket socket);
  void lost(ConnectionId id, const std::string& why);

  boost::asio::io_context& context_;
  ControlServerConfig config_;
  OnFrame on_frame_;
  OnClosed on_closed_;
  boost::asio::local::stream_protocol::acceptor acceptor_;
  boost::asio::steady_timer accept_again_;
  std::string path_;
  std::map<ConnectionId, std::shared_ptr<Connection>> connections_;
  std::uint64_t next_id_ = 1;
  bool stopped_ = false;
  /// Handlers that outlive the server hold this and find it false.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace trimtab::agents
