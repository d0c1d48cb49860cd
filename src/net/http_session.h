#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "net/http_parser.h"
#include "net/http_server.h"

namespace trimtab::net {

class Exchange;

/// What the sessions of one server share. The server owns it and outlives no session: sessions hold it.
struct SessionContext {
  ServerOptions options;
  Handler* handler = nullptr;  // null once the server is gone
  ServerStats stats;
  bool draining = false;
  std::string date;  // the Date header's value, renewed by the server's sweep
};

/// One connection. A read is always pending while an answer is being made, so a client that leaves is noticed
/// at once. Callbacks rather than coroutines: a session is a small state machine, and every pending operation
/// holds the session alive by a shared pointer.
class Session final : public std::enable_shared_from_this<Session> {
 public:
  using Clock = std::chrono::steady_clock;

  Session(boost::asio::ip::tcp::socket socket, std::shared_ptr<SessionContext> context);
  ~Session();

  void start();
  /// Answers 503 without reading anything: the connection limit is reached.
  void turn_away();
  /// Called a few times a second: deadlines, and departure of a client whose bytes are no longer read.
  void sweep(Clock::time_point now);
  /// Server is draining: idle connections close, others close after their answer.
  void drain();
  /// Drops everything at once.
  void cut();
  bool closed() const { return phase_ == Phase::kClosed; }
  /// A request is being read, answered or sent.
  bool busy() const {
    return phase_ != Phase::kClosed && phase_ != Phase::kIdle && phase_ != Phase::kLingering;
  }

  // Called by the exchange.
  void respond(Exchange& exchange, Response response);
  void begin_stream(int status, const Headers& headers);
  bool write_chunk(std::string_view bytes);
  void finish(Exchange& exchange);
  void abort(Exchange& exchange);
  std::size_t pending_bytes() const { return out_.size() + in_flight_.size() - in_flight_done_; }

 private:
  enum class Phase : std::uint8_t { kIdle, kHead, kBody, kHandling, kFlushing, kLingering, kClosed };

  void read_more();
  void on_read(boost::system::error_code error, std::size_t bytes);
  void process();
  void feed_parser();
  /// False when the request was refused.
  bool on_head();
  bool account_body();
  void hand_over();
  void refuse(int status, std::string_view why);
  void send_refusal(const Response& response, bool unread_body);
  void linger();
  void discard();
  void send_head(int status, const Headers& headers, std::optional<std::size_t> length);
  void flush();
  void on_written(boost::system::error_code error, std::size_t bytes);
  void on_flushed();
  void answer_done(Exchange& exchange);
  void stop_answering();
  void peer_left();
  void close();
  void enter(Phase phase, base::Nanos limit);
  void release_body();

  boost::asio::ip::tcp::socket socket_;
  std::shared_ptr<SessionContext> context_;
  Phase phase_ = Phase::kIdle;
  Clock::time_point deadline_;
  std::string remote_;

  std::vector<char> buffer_;  // bytes [begin_, end_) are read and not consumed
  std::size_t begin_ = 0, end_ = 0;
  bool reading_ = false;
  bool read_closed_ = false;  // the peer sends no more

  std::optional<RequestParser> parser_;
  RequestHead head_;
  bool head_only_ = false;  // HEAD
  bool keep_alive_ = true;
  bool chunked_ = false;
  bool http_1_0_ = false;
  std::uint64_t body_accounted_ = 0;
  std::uint64_t lingered_ = 0;
  std::weak_ptr<Exchange> exchange_;
  bool answering_ = false;  // an exchange is open

  std::string out_, in_flight_;
  std::size_t in_flight_done_ = 0;
  bool writing_ = false;
  Clock::time_point write_progress_;
};

/// The writer of one request's answer; the handler holds it, the session only watches it.
class Exchange final : public ResponseWriter {
 public:
  explicit Exchange(std::shared_ptr<Session> session) : session_(std::move(session)) {}
  ~Exchange() override;
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  void respond(Response response) override;
  void begin_stream(int status, const Headers& headers) override;
  bool write(std::string_view bytes) override;
  void finish() override;
  void abort() override;
  void on_disconnect(std::function<void()> callback) override;
  bool open() const override;
  std::size_t pending_bytes() const override { return session_ ? session_->pending_bytes() : 0; }

  /// The client has left. Calls back unless the answer was finished.
  void gone();
  /// The answer is complete: the session is let go.
  void settle();

 private:
  enum class State : std::uint8_t { kWaiting, kStreaming, kDone, kGone };

  std::shared_ptr<Session> session_;  // dropped when done, so that a kept writer holds no connection
  std::function<void()> on_disconnect_;
  State state_ = State::kWaiting;
};

}  // namespace trimtab::net
