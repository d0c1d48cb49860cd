#include "net/http_server.h"

#include <fmt/format.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <ctime>
#include <list>

#include "net/http_session.h"

namespace trimtab::net {
namespace asio = boost::asio;
using asio::ip::tcp;
namespace {

constexpr auto kSweepPeriod = std::chrono::milliseconds(250);
constexpr auto kAcceptPause = std::chrono::milliseconds(50);
// Connections beyond the limit that may be told so at the same time; more are closed without a word.
constexpr std::size_t kTurnedAwayMax = 64;

std::string http_date() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::array<char, 64> text{};
  const std::size_t size = std::strftime(text.data(), text.size(), "%a, %d %b %Y %H:%M:%S GMT", &parts);
  return {text.data(), size};
}

class AsioServer final : public Server {
 public:
  AsioServer(asio::io_context& io, ServerOptions options, Handler& handler)
      : acceptor_(io), sweep_timer_(io), accept_timer_(io), context_(std::make_shared<SessionContext>()) {
    context_->options = std::move(options);
    context_->handler = &handler;
    context_->date = http_date();
  }
  ~AsioServer() override {
    context_->handler = nullptr;
    alive_.reset();
    boost::system::error_code ignored;
    acceptor_.close(ignored);
    for (const auto& weak : sessions_) {
      if (const auto session = weak.lock()) session->cut();
    }
  }

  base::Status open();
  std::uint16_t port() const override { return port_; }
  ServerStats stats() const override { return context_->stats; }
  void drain(base::Nanos limit, std::function<void()> done) override;

 private:
  void accept();
  void on_accept(boost::system::error_code error, tcp::socket socket);
  void sweep();
  void check_drained();

  tcp::acceptor acceptor_;
  asio::steady_timer sweep_timer_;
  asio::steady_timer accept_timer_;
  std::shared_ptr<SessionContext> context_;
  std::list<std::weak_ptr<Session>> sessions_;
  std::uint16_t port_ = 0;
  std::function<void()> drained_;
  Session::Clock::time_point drain_deadline_;
  std::shared_ptr<bool> alive_ =
      std::make_shared<bool>(true);  // pending operations look before they touch us
};

base::Status AsioServer::open() {
  const ServerOptions& options = context_->options;
  boost::system::error_code error;
  const std::string host = options.host == "localhost" ? "127.0.0.1" : options.host;
  const auto address = asio::ip::make_address(host, error);
  if (error)
    return base::fail(base::Code::kInvalidArgument,
                      fmt::format("host \"{}\" is not an IP address; use 127.0.0.1, 0.0.0.0 or ::", host),
                      "net");
  const tcp::endpoint endpoint(address, options.port);
  acceptor_.open(endpoint.protocol(), error);
  if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error && options.send_buffer_bytes > 0)
    acceptor_.set_option(asio::socket_base::send_buffer_size(options.send_buffer_bytes), error);
  if (!error) acceptor_.bind(endpoint, error);
  if (!error) acceptor_.listen(4096, error);
  if (error == asio::error::address_in_use)
    return base::fail(
        base::Code::kUnavailable,
        fmt::format("port {} of {} is in use by another process; stop it or choose another port",
                    options.port, host),
        "net");
  if (error)
    return base::fail(base::Code::kIo,
                      fmt::format("cannot listen on {}:{}: {}", host, options.port, error.message()), "net");
  port_ = acceptor_.local_endpoint().port();
  accept();
  sweep();
  return {};
}

void AsioServer::accept() {
  if (!acceptor_.is_open()) return;
  acceptor_.async_accept(
      [this, alive = std::weak_ptr<bool>(alive_)](boost::system::error_code error, tcp::socket socket) {
        if (alive.lock()) on_accept(error, std::move(socket));
      });
}

void AsioServer::on_accept(boost::system::error_code error, tcp::socket socket) {
  if (!acceptor_.is_open()) return;
  if (error) {
    // Out of descriptors, most likely: let some connections end before trying again.
    accept_timer_.expires_after(kAcceptPause);
    accept_timer_.async_wait([this, alive = std::weak_ptr<bool>(alive_)](boost::system::error_code) {
      if (alive.lock()) accept();
    });
    return;
  }
  ++context_->stats.accepted_total;
  const std::size_t limit = context_->options.connections_max;
  const std::size_t now_open = context_->stats.connections;
  if (now_open < limit + kTurnedAwayMax) {
    boost::system::error_code ignored;
    socket.set_option(tcp::no_delay(true), ignored);
    const auto session = std::make_shared<Session>(std::move(socket), context_);
    sessions_.push_back(session);
    if (now_open < limit) {
      session->start();
    } else {
      session->turn_away();
    }
  } else {
    ++context_->stats.refused_total;
  }
  accept();
}

void AsioServer::sweep() {
  context_->date = http_date();
  const auto now = Session::Clock::now();
  for (auto it = sessions_.begin(); it != sessions_.end();) {
    if (const auto session = it->lock()) {
      session->sweep(now);
      ++it;
    } else {
      it = sessions_.erase(it);
    }
  }
  if (drained_) check_drained();
  sweep_timer_.expires_after(kSweepPeriod);
  sweep_timer_.async_wait([this, alive = std::weak_ptr<bool>(alive_)](boost::system::error_code error) {
    if (!error && alive.lock()) sweep();
  });
}

void AsioServer::drain(base::Nanos limit, std::function<void()> done) {
  boost::system::error_code ignored;
  acceptor_.close(ignored);
  context_->draining = true;
  drained_ = std::move(done);
  drain_deadline_ = Session::Clock::now() + std::chrono::nanoseconds(limit.value);
  for (const auto& weak : sessions_) {
    if (const auto session = weak.lock()) session->drain();
  }
  check_drained();
}

void AsioServer::check_drained() {
  const bool late = Session::Clock::now() >= drain_deadline_;
  bool busy = false;
  for (const auto& weak : sessions_) {
    const auto session = weak.lock();
    if (!session) continue;
    if (late) session->cut();
    busy = busy || session->busy();
  }
  if (busy) return;
  const auto done = std::exchange(drained_, nullptr);
  if (done) done();
}

}  // namespace

base::Result<std::unique_ptr<Server>> Server::listen(asio::io_context& io, ServerOptions options,
                                                     Handler& handler) {
  auto server = std::make_unique<AsioServer>(io, std::move(options), handler);
  TRIMTAB_TRY(server->open());
  return server;
}

}  // namespace trimtab::net
